"""Adaptive quantization's selection (Dryden et al., MLHPC 2016): equal proportions of both signs.

Positive and negative elements have thresholds of their own, so that the same proportion of each is
sent. With values ``onebit``, each group is read as its mean, as in the paper.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, ClassVar

from testbed.compress.selectors.dgc import MARGIN, SampleOptions, lower_until, rank_for, take
from testbed.compress.selectors.threshold_search import Pool, ThresholdEstimator, kth_largest

if TYPE_CHECKING:
    from torch import Tensor


class Dryden(ThresholdEstimator[SampleOptions]):
    """A sample says how many elements have each sign and where to look; thresholds are exact."""

    name, model = "dryden", SampleOptions
    exact_below: ClassVar[int] = 0

    def narrow(self, pool: Pool, count: int, rng: Random) -> None:
        """Fewer than ``count`` are left only where a sign has fewer than the sample suggests."""
        sample = take(pool, self.options.sample, count, rng)
        shares = _signs(sample)
        if not sum(shares):  # the sample met zeros only
            pool.cut(0.0)
            shares = _signs(pool.values)
            _keep(pool, _split(count, shares))
            return
        wanted = _split(count, shares)
        lower_until(pool, _floor(sample, shares, wanted, sample.numel() / pool.size), count)
        _keep(pool, wanted)


def _signs(values: Tensor) -> tuple[int, int]:
    """How many are positive, how many negative."""
    return int((values > 0).sum()), int((values < 0).sum())


def _split(count: int, shares: tuple[int, int]) -> tuple[int, int]:
    """``count`` in the proportion of ``shares``."""
    positive = round(count * shares[0] / sum(shares))
    return positive, count - positive


def _floor(sample: Tensor, shares: tuple[int, int], wanted: tuple[int, int], scale: float) -> float:
    """The lower of both signs' thresholds, with a margin; ``sample`` is reordered and negated."""
    thresholds = []
    for available, count in zip(shares, wanted, strict=True):
        if count:
            rank = rank_for(count * scale, sample.numel(), MARGIN)
            thresholds.append(kth_largest(sample, rank) if rank <= available else 0.0)
        sample.neg_()
    return min(thresholds)


def _keep(pool: Pool, wanted: tuple[int, int]) -> None:
    """The largest elements of each sign, as far as they are left."""
    values = pool.values
    positions = _largest(values, wanted[0]).logical_or_(_largest(-values, wanted[1])).nonzero()
    pool.read(4)  # to copy and to part them, for both signs
    if positions.numel():
        pool.keep(positions.flatten())
    else:  # a sign whose elements in the sample all count as zero
        pool.keep_largest(sum(wanted))


def _largest(values: Tensor, count: int) -> Tensor:
    """bool (m,): the ``count`` largest that are positive, of equal ones the first."""
    count = min(count, int((values > 0).sum()))
    if not count:
        return values > float("inf")
    threshold = kth_largest(values.clone(), count)
    chosen = values >= threshold
    surplus = int(chosen.sum()) - count
    if surplus:
        chosen[(values == threshold).nonzero().flatten()[-surplus:]] = False
    return chosen
