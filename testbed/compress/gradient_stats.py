"""Figures about a gradient: elements that a density stands for, whether all are finite, how well a
Laplace distribution fits (1-Wasserstein), and its error curve.

For a sample in ascending order and the quantile function Q of a distribution,

    W₁ = mean over i of |x_i − Q((i − ½)/m)|

in the gradient's own units. Divided by the distribution's mean magnitude it can be compared between
steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import ceil, gcd, isfinite, sqrt
from random import Random
from typing import TYPE_CHECKING

from testbed.compress import indices
from testbed.compress.kernels.base import Fetching, fetched
from testbed.compress.layout import Layout
from testbed.errors import GradientError, InputError

if TYPE_CHECKING:
    from torch import Tensor


def check_density(density: float) -> None:
    """Raise InputError unless ``density`` is in (0, 1]."""
    if not 0.0 < density <= 1.0:  # also refuses NaN
        raise InputError(
            f"density {density!r} is outside (0, 1]", hint="It is the share of elements to send."
        )


def element_count(size: int, density: float) -> int:
    """Elements that ``density`` in (0, 1] of ``size`` asks for; at least one if there is any."""
    check_density(density)
    return min(size, max(1, round(density * size)))


def refuse(
    values: Tensor, layout: Layout, indices: Tensor | None = None, what: str = "gradient"
) -> None:
    """Raise GradientError naming the first parameter with NaN or infinity among ``values`` (float32
    (m,)).

    ``indices`` int64 (m,): which elements of the layout's vector they are; None: all of it.
    """
    wrong = (~values.isfinite()).nonzero().flatten()
    if not wrong.numel():
        return
    first = int(wrong[0])
    position = first if indices is None else int(indices[first])
    part = layout.at(position)
    raise GradientError(
        f"the {what} of {part.name!r} holds {float(values[first])} at element "
        f"{position - part.offset} ({wrong.numel()} such elements in all): the training has "
        "diverged, or its data are not finite"
    )


SAMPLE = 65_536
"""Most elements that are looked at."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Maximum-likelihood fits of Laplace(0, ``b``) and Normal(0, ``sigma``)."""

    b: float
    """Mean magnitude of all elements."""
    sigma: float
    """Root mean square of the elements looked at."""
    w1_laplace: float
    w1_normal: float
    sample: int
    """Elements looked at."""

    @property
    def laplace(self) -> float:
        """Distance over mean magnitude, without unit; 0 for a vector of zeros."""
        return self.w1_laplace / self.b if self.b else 0.0

    @property
    def normal(self) -> float:
        """Distance over mean magnitude, without unit; 0 for a vector of zeros."""
        return self.w1_normal / self.b if self.b else 0.0

    def to_json(self) -> dict[str, float]:
        """All of it, distances without unit included."""
        return {**asdict(self), "laplace": self.laplace, "normal": self.normal}


def report(flat: Tensor, rng: Random, sum_abs: float | None = None) -> Fit:
    """The fit of ``flat`` (float32 (n,), n ≥ 1, finite); one seed is drawn where a sample must do.

    ``sum_abs``: Σ|x| where it is known already.
    """
    import torch

    size = flat.numel()
    if sum_abs is None:
        sum_abs = float(flat.abs().sum(dtype=torch.float64))
    b = sum_abs / size
    sample = _sampled(flat, rng).double().sort().values
    count = sample.numel()
    sigma = sqrt(float(sample.square().mean()))
    shares = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    away = shares - 0.5
    laplace = -b * away.sign() * torch.log1p(-2 * away.abs())
    normal = sigma * torch.special.ndtri(shares)
    return Fit(b, sigma, _distance(sample, laplace), _distance(sample, normal), count)


def _sampled(flat: Tensor, rng: Random) -> Tensor:
    """On the host: all of a short vector, else ``SAMPLE`` elements without replacement."""
    import torch

    if flat.numel() <= SAMPLE:
        return flat.cpu()
    places = torch.from_numpy(indices.indices(flat.numel(), SAMPLE, rng.getrandbits(64)))
    return flat[places.to(flat.device)].cpu()


def _distance(sample: Tensor, quantiles: Tensor) -> float:
    return float((sample - quantiles).abs().mean())


CURVE_SAMPLE = 4096
"""Most elements that are looked at one by one."""
_PIECE = 1 << 18
"""Elements that are made float64 at a time: few enough for a processor's cache."""


def error_curve(p: Tensor, levels: Sequence[float]) -> list[float]:
    """‖p‖², and then ‖p − top_k(p)‖² / ‖p‖² at each density of ``levels``; zeros for a vector of
    zeros.

    ``p``: floating (n,), any device, not changed: gradient + memory. The energy is exact to
    rounding. Shares are exact for up to ``CURVE_SAMPLE`` elements; of longer vectors they are those
    of every s-th element, with an s that has no factor in common with n, so that no row or column
    of a matrix is met more often than others. There the density stands for a fraction of an element
    too, by linear interpolation. Raises GradientError for NaN or infinity, InputError for a density
    outside (0, 1].
    """
    return fetched(error_curving(p, levels))


def error_curving(p: Tensor, levels: Sequence[float]) -> Fetching[list[float]]:
    """``error_curve``, for which those of other vectors can be waited for too."""
    for level in levels:
        check_density(level)
    if not p.numel():
        return [0.0] * (1 + len(levels))
    pieces, squares = yield [_energies(p), p[:: stride(p.numel())].double().square()]
    energy = float(sum(pieces.tolist()))
    if not isfinite(energy):
        raise GradientError(f"the energy of {p.numel()} elements is {energy}: there is no curve")
    if not energy:
        return [0.0] * (1 + len(levels))
    sums = _sums(squares)
    total = float(sums[-1])
    if not total:
        return [energy, *(0.0 for _ in levels)]
    counts = [_count(p.numel(), sums.numel() - 1, level) for level in levels]
    return [energy, *(max(0.0, 1 - kept / total) for kept in _kept(sums, counts))]


def _energies(p: Tensor) -> Tensor:
    """‖p‖² of each piece, float64."""
    import torch

    pieces = (p[begin : begin + _PIECE].double() for begin in range(0, p.numel(), _PIECE))
    return torch.stack([piece.square().sum() for piece in pieces])


def stride(size: int) -> int:
    """The least s that leaves at most ``CURVE_SAMPLE`` of ``size`` elements, coprime to it."""
    step = max(1, ceil(size / CURVE_SAMPLE))
    while gcd(step, size) > 1:
        step += 1
    return step


def _sums(squares: Tensor) -> Tensor:
    """Energy of the 0, 1, 2, … largest of the sample, float64."""
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
    energies: list[float] = kept.tolist()
    return energies
