"""The error curve of a vector: how much of its energy exact top-k leaves out, at several densities."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import ceil, gcd, isfinite
from typing import TYPE_CHECKING

from testbed.compress.elements import check_density, element_count
from testbed.errors import GradientError

if TYPE_CHECKING:
    from torch import Tensor

SAMPLE = 4096
"""Most elements that are looked at one by one."""


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
    energy = float(p.double().square().sum())
    if not isfinite(energy):
        raise GradientError(f"the energy of {p.numel()} elements is {energy}: there is no curve")
    if not energy:
        return [0.0] * (1 + len(levels))
    size, squares = p.numel(), _squares(p)
    sums = [0.0, *accumulate(squares)]
    kept = [_kept(sums, _count(size, len(squares), level)) for level in levels]
    return [energy, *(max(0.0, 1 - one / sums[-1]) if sums[-1] else 0.0 for one in kept)]


def stride(size: int) -> int:
    """The least s that leaves at most ``SAMPLE`` of ``size`` elements and has no factor in common with it."""
    step = max(1, ceil(size / SAMPLE))
    while gcd(step, size) > 1:
        step += 1
    return step


def _squares(p: Tensor) -> list[float]:
    """Of the sample, the largest first."""
    sample = p[:: stride(p.numel())].double().square()
    found: list[float] = sample.sort(descending=True).values.tolist()
    return found


def _count(size: int, sampled: int, level: float) -> float:
    """Elements of the sample that ``level`` keeps."""
    return element_count(size, level) if sampled == size else level * sampled


def _kept(sums: Sequence[float], count: float) -> float:
    """Energy of the ``count`` largest."""
    whole = int(count)
    if whole + 1 >= len(sums):
        return sums[-1]
    return sums[whole] + (count - whole) * (sums[whole + 1] - sums[whole])
