"""Means with 95 % intervals by Student's t."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import exp, isfinite, log, sqrt
from statistics import fmean, stdev


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean and its 95 % interval. ``low``, ``high`` None: of one value, or none. ``mean`` None: of none."""

    mean: float | None = None
    low: float | None = None
    high: float | None = None

    def to_json(self) -> dict[str, float | None]:
        """``mean``, ``low``, ``high``."""
        return asdict(self)

    def leaves_out(self, value: float) -> bool:
        """Whether ``value`` is outside; False without an interval."""
        if self.low is None or self.high is None:
            return False
        return not self.low <= value <= self.high

    def through(self, function: Callable[[float], float]) -> Interval:
        """Mean and ends through a rising function."""
        return Interval(*(None if end is None else function(end) for end in self._ends()))

    def _ends(self) -> tuple[float | None, float | None, float | None]:
        return self.mean, self.low, self.high


ONE = Interval(1.0, 1.0, 1.0)


def interval(values: Sequence[float | None]) -> Interval:
    """Of the values that are known and finite: mean ± t(0.975, n − 1) · s / √n."""
    known = [float(value) for value in values if value is not None and isfinite(value)]
    if not known:
        return Interval()
    mean = fmean(known)
    if len(known) < 2:
        return Interval(mean)
    half = _quantile(len(known) - 1) * stdev(known) / sqrt(len(known))
    return Interval(mean, mean - half, mean + half)


def ratio(above: Sequence[float], below: Sequence[float]) -> Interval:
    """Geometric mean of ``above`` ÷ ``below``, pair by pair, with the interval of its logarithm.

    Pairs of which a number is not positive have no ratio and are left out.
    """
    pairs = zip(above, below, strict=True)
    return interval([log(a / b) for a, b in pairs if a > 0 and b > 0]).through(exp)


def _quantile(freedom: int) -> float:
    """Return Student's t at 97.5 %. scipy.stats calls the same function, but takes a second longer to import."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.975))
