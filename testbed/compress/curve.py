"""The error curve of a vector: how much of its energy exact top-k leaves out, at several densities."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, gcd, isfinite
from typing import TYPE_CHECKING

from testbed.compress.elements import check_density, element_count
from testbed.errors import GradientError

if TYPE_CHECKING:
    from torch import Tensor

SAMPLE = 4096
"""Most elements that are looked at one by one."""
_PIECE = 1 << 18
"""Elements that are made float64 at a time: few enough for a processor's cache."""


def error_curve(p: Tensor, levels: Sequence[float]) -> list[float]:
    """‖p‖², and then ‖p − top_k(p)‖² / ‖p‖² at each density of ``levels``; zeros for a vector of zeros.

    ``p``: floating (n,), any device, not changed: gradient + memory. The energy is exact to rounding. Shares are exact for up to
    ``SAMPLE`` elements; of longer vectors they are those of every s-th element, with an s that has no factor in common
    with n, so that no row or column of a matrix is met more often than others. There the density stands for a fraction of an
    element too, by linear interpolation.
    Raises GradientError for NaN or infinity, InputError for a density outside (0, 1].
    """
    for level in levels:
        check_density(level)
    pieces = (p[begin : begin + _PIECE].double() for begin in range(0, p.numel(), _PIECE))
    energy = sum(float(piece.square().sum()) for piece in pieces)
    if not isfinite(energy):
        raise GradientError(f"the energy of {p.numel()} elements is {energy}: there is no curve")
    if not energy:
        return [0.0] * (1 + len(levels))
    sums = _sums(p)
    total = float(sums[-1])
    if not total:
        return [energy, *(0.0 for _ in levels)]
    counts = [_count(p.numel(), sums.numel() - 1, level) for level in levels]
    return [energy, *(max(0.0, 1 - one / total) for one in _kept(sums, counts))]


def stride(size: int) -> int:
    """The least s that leaves at most ``SAMPLE`` of ``size`` elements and has no factor in common with it."""
    step = max(1, ceil(size / SAMPLE))
    while gcd(step, size) > 1:
        step += 1
    return step


def _sums(p: Tensor) -> Tensor:
    """Energy of the 0, 1, 2, … largest of the sample, float64."""
    squares = p[:: stride(p.numel())].double().square().cpu()
    sums = squares.new_zeros(squares.numel() + 1)
    sums[1:] = squares.sort(descending=True).values.cumsum(0)
    return sums


def _count(size: int, sampled: int, level: float) -> float:
    """Elements of the sample that ``level`` keeps."""
    return element_count(size, level) if sampled == size else level * sampled


def _kept(sums: Tensor, counts: Sequence[float]) -> list[float]:
    """Energy of so many of the largest, linear between whole numbers."""
    wanted = sums.new_tensor(counts)
    whole = wanted.long().clamp(max=sums.numel() - 2)
    kept = sums[whole] + (wanted - whole) * (sums[whole + 1] - sums[whole])
    found: list[float] = kept.tolist()
    return found
