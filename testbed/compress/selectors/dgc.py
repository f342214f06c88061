"""Deep Gradient Compression's selection (Lin et al., ICLR 2018, §3.3; its public code for the
constants): a threshold from a sample, lowered where it left too few, then exact top-k of what
reaches it.

Deep Gradient Compression (Lin et al., ICLR 2018): 1 % of the elements at equal distances from a
random start; the threshold is the sample's own top-k; while too few reach it, it is multiplied by
0.8.
"""

from __future__ import annotations

from math import ceil, sqrt
from random import Random
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from testbed.compress.base import Options
from testbed.compress.selectors.threshold_search import LEAST, Pool, ThresholdEstimator, kth_largest

if TYPE_CHECKING:
    from torch import Tensor


LOWER, ATTEMPTS = 0.8, 10


class SampleOptions(Options):
    """Options of selectors that look at a sample."""

    sample: Annotated[float, Field(gt=0.0, le=1.0)] = Field(
        0.01, description="Share of the elements to look at."
    )


def take(pool: Pool, share: float, count: int, rng: Random) -> Tensor:
    """A copy, float32 (s,), of ``share`` of the elements; of enough for two of the ``count``
    largest.

    The distance is a prime (or 1): an even one would see the same few columns of every matrix whose
    rows it divides.
    """
    flat, size = pool.given.flat, pool.size
    wanted = max(ceil(share * size), ceil(2 * size / count))
    distance = prime_at_most(max(1, size // wanted))
    chosen = flat[rng.getrandbits(64) % distance :: distance]
    pool.passes += 2 * chosen.numel() / size  # to copy and to part it
    return pool.scratch("sample", chosen.numel()).copy_(chosen)


def rank_for(expected: float, available: int, margin: float = 0.0) -> int:
    """Which place of a sample's order stands for ``expected`` of its elements, in [1,
    ``available``].

    ``margin``: standard errors (√expected) further down, so that too few are left but rarely.
    """
    return max(1, min(available, round(expected + margin * sqrt(expected))))


def threshold_of(pool: Pool, share: float, count: int, rng: Random, margin: float = 0.0) -> float:
    """The magnitude that about ``count`` elements of the vector reach, by a sample."""
    sample = take(pool, share, count, rng).abs_()
    expected = count * sample.numel() / pool.size
    return kth_largest(sample, rank_for(expected, sample.numel(), margin))


def lower_until(pool: Pool, threshold: float, least: float) -> int:
    """Cut ``pool`` by ever lower thresholds until ``least`` elements are left; returns how many."""
    count = pool.cut(threshold)
    for _ in range(ATTEMPTS):
        if count >= least or not pool.floor or pool.floor <= LEAST:
            break
        count = pool.cut(pool.floor * LOWER)
    return count


def prime_at_most(number: int) -> int:
    """The greatest prime up to ``number``; 1 for 1."""
    while number > 2 and any(number % factor == 0 for factor in range(2, int(sqrt(number)) + 1)):
        number -= 1
    return number


TOO_MANY = 1.3


MARGIN = 3.0
"""Standard errors by which the sample's threshold is put lower, so that hardly ever too few reach
it."""


class Dgc(ThresholdEstimator[SampleOptions]):
    """A threshold from a sample, good for 0.8 to 1.3 times what is asked for.

    Where more reach it, the largest of them are chosen exactly; where fewer do, it is lowered.
    """

    name, model = "dgc", SampleOptions

    def narrow(self, pool: Pool, count: int, rng: Random) -> None:
        """Within the bounds, all that reach the threshold are sent."""
        threshold = threshold_of(pool, self.options.sample, count, rng)
        if lower_until(pool, threshold, LOWER * count) > TOO_MANY * count:
            pool.keep_largest(count)


class Hierarchical(ThresholdEstimator[SampleOptions]):
    """Exactly the largest elements, of equal ones the first (zeros are left out)."""

    name, model = "hierarchical", SampleOptions

    def narrow(self, pool: Pool, count: int, rng: Random) -> None:
        """Where too few reach even the lowered threshold, all elements are ordered."""
        threshold = threshold_of(pool, self.options.sample, count, rng, MARGIN)
        if lower_until(pool, threshold, count) < count:
            pool.cut(0.0)
        pool.keep_largest(count)
