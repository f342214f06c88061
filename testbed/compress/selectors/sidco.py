"""SIDCo (Abdelmoniem et al., MLSys 2021): a threshold from a fitted distribution, in several
stages.

Every function gives the t with P(X > t) = ``share``, in (0, 1), for magnitudes X ≥ 0 with the
moments given.

The first stage is to leave a quarter of the elements. Every further one fits what the last one
left, as excess over its threshold, and leaves an equal ratio of it. After every fifth call the
number of stages follows what came of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, expm1, isinf, log, log2, sqrt
from random import Random
from typing import Any, ClassVar, Literal

from testbed.compress.base import Options
from testbed.compress.selectors.threshold_search import Pool, ThresholdEstimator
from testbed.registry import Carried

NEARLY_ZERO = 1e-6
"""Below it, a shape parameter's limit stands for a quotient of two small numbers."""


def exponential(mean: float, share: float) -> float:
    """t = −mean·ln(share): maximum likelihood of the double exponential (Laplace) distribution."""
    return -mean * log(share)


def pareto(mean: float, variance: float, share: float) -> float:
    """Generalised Pareto by its moments: with q = mean²/variance, c = (q − 1)/2 and a = mean·(q +
    1)/2,

    t = a·(1 − shareᶜ)/c, which for c → 0 is the exponential and for variance → 0 the mean itself (a
    variance below 0 is a rounding error).
    """
    ratio = mean * mean / variance if variance > 0 else float("inf")
    if isinf(ratio):
        return mean
    shape = (ratio - 1) / 2
    if abs(shape) < NEARLY_ZERO:
        return exponential(mean, share)
    return -mean * ((ratio + 1) / (ratio - 1)) * expm1(shape * log(share))


def gamma(mean: float, mean_log: float, share: float) -> float:
    """Gamma by Minka's closed form near maximum likelihood: with s = ln(mean) − mean of the
    logarithms,

    shape = (3 − s + √((s − 3)² + 24 s))/(12 s), scale = mean/shape. For s → 0 all values are the
    mean.
    """
    from scipy.special import gammainccinv

    spread = log(mean) - mean_log
    if spread < NEARLY_ZERO:
        return mean
    shape = (3 - spread + sqrt((spread - 3) ** 2 + 24 * spread)) / (12 * spread)
    return float(mean / shape * gammainccinv(shape, share))


FIRST = 0.25
"""Share that the first of several stages is to leave."""
EVERY, TOO_MANY, TOO_FEW = 5, 1.2, 0.8


def most_stages(share: float) -> int:
    """⌈log₂(1/share)⌉, at least one: with more, a stage would have to leave more than half."""
    return max(1, ceil(log2(1 / share)))


def stage_shares(share: float, stages: int) -> list[float]:
    """Return the share that each stage is to leave of what it gets; their product is ``share``."""
    if stages == 1:
        return [share]
    first = FIRST if share < FIRST else share ** (1 / stages)
    return [first] + [(share / first) ** (1 / (stages - 1))] * (stages - 1)


class Stages(Carried):
    """How many there are: one fewer when more than 1.2 times as much as asked for was sent on
    average of five calls, one more when less than 0.8 times.
    """

    carried = {"stages": "count", "calls": "_calls", "achieved": "_sum"}

    def __init__(self) -> None:
        self.count, self._calls, self._sum = 1, 0, 0.0

    def adapt(self, achieved: float, share: float) -> None:
        """``achieved``: elements sent over elements asked for in one call, ``share`` of all."""
        self._calls += 1
        self._sum += achieved
        if self._calls < EVERY:
            return
        mean = self._sum / self._calls
        change = -1 if mean > TOO_MANY else 1 if mean < TOO_FEW else 0
        self.count = min(max(1, self.count + change), most_stages(share))
        self._calls, self._sum = 0, 0.0


class Sidco(ThresholdEstimator[Options]):
    """Several stages, as many as ``Stages`` finds best."""

    fit: ClassVar[Literal["exponential", "pareto", "gamma"]]
    """Distribution of the first stage; those after a gamma fit are generalised Pareto."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.stages = Stages()

    def narrow(self, pool: Pool, count: int, rng: Random) -> None:
        """Stops early where no more than ``count`` are left."""
        del rng
        share = count / pool.size
        for part in stage_shares(share, min(self.stages.count, most_stages(share))):
            pool.cut(self._threshold(pool, part))
            if pool.count <= count:
                break
        self.stages.adapt(pool.count / count, share)

    def state(self) -> dict[str, Any]:
        """Number of stages, and what it is to be adapted by."""
        return self.stages.state()

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue where ``state`` was taken."""
        self.stages.load(state)

    def _threshold(self, pool: Pool, share: float) -> float:
        floor = pool.floor or 0.0
        if self.fit == "exponential":
            return floor + exponential(max(0.0, pool.sum_abs() / pool.count - floor), share)
        if self.fit == "gamma" and not floor:
            return _gamma_threshold(pool, share)
        moments = pool.moments()
        mean = moments.sum_abs / moments.count
        variance = moments.sum_squares / moments.count - mean * mean
        return floor + pareto(max(0.0, mean - floor), variance, share)


def _gamma_threshold(pool: Pool, share: float) -> float:
    """Return the threshold, from the elements that are not zero: others have no logarithm."""
    moments = pool.moments()
    share = share * moments.count / moments.nonzero
    if share >= 1:
        return 0.0
    return gamma(moments.sum_abs / moments.nonzero, moments.sum_log / moments.nonzero, share)


class SidcoExponential(Sidco):
    """SIDCo-E."""

    name, fit = "sidco-e", "exponential"


class SidcoPareto(Sidco):
    """SIDCo-P."""

    name, fit = "sidco-p", "pareto"


class SidcoGamma(Sidco):
    """SIDCo-GP."""

    name, fit = "sidco-gp", "gamma"
