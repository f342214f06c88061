"""Hierarchical selection (Lin et al., ICLR 2018, §3.3): a sample's threshold, then exact top-k of what reaches it."""

from __future__ import annotations

from random import Random

from testbed.compress.selectors.estimated import Estimated
from testbed.compress.selectors.pool import Pool
from testbed.compress.selectors.sample import check_sample, lower_until, threshold_of

MARGIN = 3.0
"""Standard errors by which the sample's threshold is put lower, so that hardly ever too few reach it."""


class Hierarchical(Estimated):
    """Exactly the largest elements, of equal ones the first (zeros are left out).

    ``sample``: share of the elements to look at, in (0, 1].
    """

    def __init__(self, sample: float = 0.01) -> None:
        super().__init__()
        self._sample = check_sample(sample)

    def narrow(self, pool: Pool, count: int, rng: Random) -> None:
        """Where too few reach even the lowered threshold, all elements are ordered."""
        threshold = threshold_of(pool, self._sample, count, rng, MARGIN)
        if lower_until(pool, threshold, count) < count:
            pool.cut(0.0)
        pool.keep_largest(count)
