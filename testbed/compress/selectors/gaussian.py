"""GaussianK (Shi et al., 2019): a threshold from a normal distribution, corrected at most three
times."""

from __future__ import annotations

from math import sqrt
from random import Random
from statistics import NormalDist

from testbed.compress.selectors.threshold_search import Pool, ThresholdEstimator

TOO_FEW, TOO_MANY, LOWER, HIGHER, CORRECTIONS = 2 / 3, 4 / 3, 0.5, 1.5, 3


class Gaussian(ThresholdEstimator):
    """σ·Φ⁻¹(1 − density/2), times 0.5 or 1.5 while the count is outside [2/3, 4/3] of the target.

    σ² is the mean square: that the mean is 0 is known.
    """

    def narrow(self, pool: Pool, count: int, rng: Random) -> None:
        """After the last correction the count is what it is."""
        del rng
        seen = pool.moments()
        sigma = sqrt(seen.sum_squares / seen.count)
        found = pool.cut(-sigma * NormalDist().inv_cdf(count / pool.size / 2))
        for _ in range(CORRECTIONS):
            if TOO_FEW * count <= found <= TOO_MANY * count:
                break
            found = pool.cut((pool.floor or 0.0) * (LOWER if found < count else HIGHER))
