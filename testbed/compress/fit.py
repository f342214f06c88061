"""How well a distribution fits a gradient: the 1-Wasserstein distance between them.

For a sample in ascending order and the quantile function Q of a distribution,

    W₁ = mean over i of |x_i − Q((i − ½)/m)|

in the gradient's own units. Divided by the distribution's mean magnitude it can be compared between steps.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import sqrt
from random import Random
from typing import TYPE_CHECKING

from testbed.compress import seeded

if TYPE_CHECKING:
    from torch import Tensor

SAMPLE = 65_536
"""Most elements that are looked at."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Of Laplace(0, ``b``) and Normal(0, ``sigma``), each with its maximum-likelihood scale."""

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
    found = _sampled(flat, rng).double().sort().values
    count = found.numel()
    sigma = sqrt(float(found.square().mean()))
    shares = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    away = shares - 0.5
    laplace = -b * away.sign() * torch.log1p(-2 * away.abs())
    normal = sigma * torch.special.ndtri(shares)
    return Fit(b, sigma, _distance(found, laplace), _distance(found, normal), count)


def _sampled(flat: Tensor, rng: Random) -> Tensor:
    """On the host: all of a short vector, else ``SAMPLE`` elements without replacement."""
    import torch

    if flat.numel() <= SAMPLE:
        return flat.cpu()
    places = torch.from_numpy(seeded.indices(flat.numel(), SAMPLE, rng.getrandbits(64)))
    return flat[places.to(flat.device)].cpu()


def _distance(found: Tensor, quantiles: Tensor) -> float:
    return float((found - quantiles).abs().mean())
