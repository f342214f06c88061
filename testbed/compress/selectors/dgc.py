"""Deep Gradient Compression's selection (Lin et al., ICLR 2018; its public code for the constants)."""

from __future__ import annotations

from random import Random

from testbed.compress.selectors.estimated import Estimated
from testbed.compress.selectors.pool import Pool
from testbed.compress.selectors.sample import LOWER, check_sample, lower_until, threshold_of

TOO_MANY = 1.3


class Dgc(Estimated):
    """A threshold from a sample, good for 0.8 to 1.3 times what is asked for.

    Where more reach it, the largest of them are chosen exactly; where fewer do, it is lowered.
    ``sample``: share of the elements to look at, in (0, 1].
    """

    def __init__(self, sample: float = 0.01) -> None:
        super().__init__()
        self._sample = check_sample(sample)

    def narrow(self, pool: Pool, count: int, rng: Random) -> None:
        """Within the bounds, all that reach the threshold are sent."""
        threshold = threshold_of(pool, self._sample, count, rng)
        if lower_until(pool, threshold, LOWER * count) > TOO_MANY * count:
            pool.keep_largest(count)
