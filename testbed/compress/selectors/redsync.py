"""RedSync (Fang et al., JPDC 2019): thresholds mean + t·(max − mean) of the magnitudes, t in [0,
1]."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from testbed.compress.base import whole_number
from testbed.compress.selectors.threshold_search import Pool, ThresholdEstimator
from testbed.errors import InputError

TRIMS = (0.8, 0.6, 0.4, 0.2, 0.0)


def threshold_at(pool: Pool, t: float) -> float:
    """From the statistics that came with the vector."""
    mean = pool.given.sum_abs / pool.size
    return mean + t * (pool.given.max_abs - mean)


class Trimmed(ThresholdEstimator):
    """Trimmed top-k: exact top-k of what reaches the highest of five thresholds that enough reach.

    Exactly the largest elements, of equal ones the first (zeros are left out).
    """

    def narrow(self, pool: Pool, count: int, rng: Random) -> None:
        """All elements are ordered where too few reach even the mean."""
        del rng
        thresholds = (threshold_at(pool, t) for t in TRIMS)
        enough = (one for one in thresholds if pool.count_from(one) >= count)
        pool.cut(next(enough, 0.0))
        pool.keep_largest(count)


class Search(ThresholdEstimator):
    """Threshold binary search: halves t's interval [0, 1] until one to two times as many elements
    as asked for reach it, or the interval is no wider than ``width``; then all that reach it are
    sent.

    ``reuse``: calls with equal density that one search serves.
    """

    def __init__(self, width: float = 0.2, reuse: int = 1) -> None:
        super().__init__()
        if not 0.0 < width < 1.0:
            raise InputError(
                f"width {width!r} is outside (0, 1)", hint="It is a share of max − mean."
            )
        self._width, self._reuse = width, whole_number("reuse", reuse, 1)
        self._threshold, self._count, self._left = 0.0, 0, 0

    def narrow(self, pool: Pool, count: int, rng: Random) -> None:
        """The last threshold tried is taken."""
        del rng
        if not self._left or count != self._count:
            self._threshold, self._count, self._left = self._search(pool, count), count, self._reuse
        self._left -= 1
        pool.cut(self._threshold)

    def state(self) -> dict[str, float]:
        """The threshold in use, for how many elements, and how many more calls it serves."""
        return {"threshold": self._threshold, "count": self._count, "left": self._left}

    def load(self, state: Mapping[str, float]) -> None:
        """Restore what ``state`` returned."""
        self._threshold = float(state["threshold"])
        self._count, self._left = int(state["count"]), int(state["left"])

    def _search(self, pool: Pool, count: int) -> float:
        low, high, threshold = 0.0, 1.0, 0.0
        while high - low > self._width:
            middle = (low + high) / 2
            threshold = threshold_at(pool, middle)
            found = pool.count_from(threshold)
            if count <= found <= 2 * count:
                break
            low, high = (low, middle) if found < count else (middle, high)
        return threshold
