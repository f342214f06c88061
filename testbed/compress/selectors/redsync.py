"""RedSync (Fang et al., JPDC 2019): thresholds mean + t·(max − mean) of the magnitudes, t in [0,
1]."""

from __future__ import annotations

from random import Random
from typing import Annotated

from pydantic import Field

from testbed.compress.base import Count, Options
from testbed.compress.selectors.threshold_search import Pool, ThresholdEstimator

TRIMS = (0.8, 0.6, 0.4, 0.2, 0.0)


def threshold_at(pool: Pool, t: float) -> float:
    """From the statistics that came with the vector."""
    mean = pool.given.sum_abs / pool.size
    return mean + t * (pool.given.max_abs - mean)


class Trimmed(ThresholdEstimator[Options]):
    """Trimmed top-k: exact top-k of what reaches the highest of five thresholds that enough reach.

    Exactly the largest elements, of equal ones the first (zeros are left out).
    """

    name = "redsync-trimmed"

    def narrow(self, pool: Pool, count: int, rng: Random) -> None:
        """All elements are ordered where too few reach even the mean."""
        del rng
        thresholds = (threshold_at(pool, t) for t in TRIMS)
        enough = (threshold for threshold in thresholds if pool.count_above(threshold) >= count)
        pool.cut(next(enough, 0.0))
        pool.keep_largest(count)


class SearchOptions(Options):
    """Options of ``redsync-search``."""

    width: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.2
    """Width of the interval, a share of max − mean, at which the search ends."""
    reuse: Count = 1
    """Calls with equal density that one search serves."""


class Search(ThresholdEstimator[SearchOptions]):
    """Threshold binary search: halves t's interval [0, 1] until one to two times as many elements
    as asked for reach it, or the interval is no wider than ``width``; then all that reach it are
    sent.
    """

    name, model = "redsync-search", SearchOptions
    carried = {"threshold": "_threshold", "count": "_count", "left": "_left"}
    _threshold, _count, _left = 0.0, 0, 0
    """The threshold in use, for how many elements, and how many more calls it serves."""

    def narrow(self, pool: Pool, count: int, rng: Random) -> None:
        """The last threshold tried is taken."""
        del rng
        if not self._left or count != self._count:
            self._threshold, self._count = self._search(pool, count), count
            self._left = self.options.reuse
        self._left -= 1
        pool.cut(self._threshold)

    def _search(self, pool: Pool, count: int) -> float:
        low, high, threshold = 0.0, 1.0, 0.0
        while high - low > self.options.width:
            middle = (low + high) / 2
            threshold = threshold_at(pool, middle)
            reached = pool.count_above(threshold)
            if count <= reached <= 2 * count:
                break
            low, high = (low, middle) if reached < count else (middle, high)
        return threshold
