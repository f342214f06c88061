"""MSTop-k (Shi et al., MLSys 2021): approximate top-k of exactly the count asked for, by bisection.

Between the mean and the maximum of the magnitudes, two thresholds close in on the one that is
wanted: too few elements reach the upper one, too many the lower. All of the first kind are sent,
and a run of those between the two, from a random place.
"""

from __future__ import annotations

from random import Random

import numpy as np

from testbed.compress.base import Count, Options
from testbed.compress.selectors.threshold_search import Pool, ThresholdEstimator

SHRINK = 4
"""Elements below the lower threshold are out for good: those above it are copied when they are at
most a quarter of what is left, and counted there from then on."""


class MsTopKOptions(Options):
    """Options of ``mstopk``."""

    passes: Count = 30
    """Thresholds that are tried at most."""


class MsTopK(ThresholdEstimator[MsTopKOptions]):
    """Exactly as many as asked for, the largest and a run of those that come next."""

    name, model = "mstopk", MsTopKOptions

    def narrow(self, pool: Pool, count: int, rng: Random) -> None:
        """Fewer than ``count`` are left only where the others are zero."""
        low, high, upper = _bracket(pool, count)
        for _ in range(self.options.passes - 1):
            middle = _between(low, high)
            if not low < middle < high:  # neighbours: ties that no threshold can part
                break
            reached = pool.count_above(middle)
            if reached == count:
                pool.cut(middle)
                return
            if reached < count:
                high = upper = middle
                continue
            low = middle
            if SHRINK * reached <= pool.count:
                pool.cut(low)
        pool.cut(low)
        _fill(pool, upper, count, rng)


def _bracket(pool: Pool, count: int) -> tuple[float, float, float]:
    """From the mean up; from zero to the mean where too few reach that, which is then the first
    upper threshold."""
    mean = pool.given.sum_abs / pool.size
    if pool.count_above(mean) >= count:
        return mean, pool.given.max_abs, float("inf")
    return 0.0, mean, mean


def _between(low: float, high: float) -> float:
    """As many float32 numbers lie above it as below: 31 halvings part any two magnitudes."""
    bits = np.array([low, high], np.float32).view(np.uint32)
    return float(np.uint32((int(bits[0]) + int(bits[1])) // 2).view(np.float32))


def _fill(pool: Pool, upper: float, count: int, rng: Random) -> None:
    """Leave what reaches ``upper``, and of the rest a run that makes it ``count``."""
    if pool.count <= count:
        return
    chosen = pool.values.abs() >= upper
    others = (~chosen).nonzero().flatten()
    missing = count - (pool.count - others.numel())
    start = rng.getrandbits(64) % (others.numel() - missing + 1)
    chosen[others[start : start + missing]] = True
    pool.read(2)
    pool.keep(chosen.nonzero().flatten())
