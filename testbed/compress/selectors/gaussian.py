"""GaussianK (Shi et al., 2019): a threshold from a normal distribution, corrected at most three
times."""

from __future__ import annotations

from math import sqrt
from random import Random
from statistics import NormalDist

from testbed.compress.base import Options
from testbed.compress.selectors.threshold_search import Pool, ThresholdEstimator

TOO_FEW, TOO_MANY, LOWER, HIGHER, CORRECTIONS = 2 / 3, 4 / 3, 0.5, 1.5, 3


class Gaussian(ThresholdEstimator[Options]):
    """σ·Φ⁻¹(1 − density/2), times 0.5 or 1.5 while the count is outside [2/3, 4/3] of the target.

    σ² is the mean square: that the mean is 0 is known.
    """

    name = "gaussian"

    def narrow(self, pool: Pool, count: int, rng: Random) -> None:
        """After the last correction the count is what it is."""
        del rng
        moments = pool.moments()
        sigma = sqrt(moments.sum_squares / moments.count)
        reached = pool.cut(-sigma * NormalDist().inv_cdf(count / pool.size / 2))
        for _ in range(CORRECTIONS):
            if TOO_FEW * count <= reached <= TOO_MANY * count:
                break
            reached = pool.cut((pool.floor or 0.0) * (LOWER if reached < count else HIGHER))
