"""Errors of a link in intervals, how late its changes were, and intervals in which the kernel held
something else. Pure.

What a day's worth of samples takes in memory would be gigabytes. So bins are judged when they have
closed, and only counts, sums and extremes of them are kept: the same numbers, added in the same
order, as of all bins at the end.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import frexp, inf
from typing import NamedTuple

Mark = tuple[float, int]
"""Seconds after t0, and bytes so far."""
Rate = tuple[float, int]
"""From when on so many bit/s were asked for."""


class Sample(NamedTuple):
    """One sample: whether a queue stood at every look, and what was asked and delivered."""

    from_s: float
    to_s: float
    asked_bits: float
    delivered_bits: int
    busy: bool


@dataclass(slots=True)
class Errors:
    """Relative errors of bins."""

    count: int = 0
    total: float = 0.0
    worst: float | None = None

    @property
    def mean(self) -> float | None:
        """None of nothing."""
        return self.total / self.count if self.count else None

    def add(self, error: float) -> None:
        """One more."""
        self.count += 1
        self.total += error
        self.worst = error if self.worst is None else max(self.worst, error)


@dataclass(slots=True)
class IntervalErrors:
    """The bins of one kind. Each ends at the marks nearest to two edges; edges with the same mark
    have none between them."""

    all: Errors = field(default_factory=Errors)
    busy: Errors = field(default_factory=Errors)
    """Errors of the bins in which the link was backlogged throughout."""
    excess_bits: float = 0.0
    """Delivered beyond what was asked and one bundle, in all bins."""
    edge_s: float = -inf
    """The last edge so far."""
    begin: Mark | None = None
    """The mark nearest to it, where the bin begins that is open."""
    _looked: bool = False
    _busy: bool = True

    def close(
        self,
        edges: Iterable[float],
        looks: Sequence[Sample],
        marks: Sequence[Mark],
        rates: Sequence[Rate],
        bundle_bytes: int,
    ) -> None:
        """Judge the bins that end at ``edges``, ascending; looks and marks must be there."""
        for edge_s in edges:
            self.edge_s, end = edge_s, nearest(marks, edge_s)
            if self.begin is not None and end[0] <= self.begin[0]:
                continue
            if self.begin is not None:
                self._judge(self.begin, end, looks, rates, bundle_bytes)
            self.begin, self._looked, self._busy = end, False, True

    def leave(self, looks: Iterable[Sample]) -> None:
        """Take in looks that will be there no longer; they end before the bin that is open can."""
        for look in looks:
            if self.begin is not None and look.to_s > self.begin[0]:
                self._looked, self._busy = True, self._busy and look.busy

    def _judge(
        self, begin: Mark, end: Mark, looks: Sequence[Sample], rates: Sequence[Rate], bundle: int
    ) -> None:
        requested = asked_between(rates, begin[0], end[0])
        delivered = 8 * (end[1] - begin[1])
        self.excess_bits += max(0.0, delivered - requested - 8 * bundle)
        if requested <= 0:
            return
        error = max(0.0, abs(delivered - requested) - 8 * bundle) / requested
        self.all.add(error)
        within = _touching(looks, begin[0], end[0])
        if (self._looked or within) and self._busy and all(look.busy for look in within):
            self.busy.add(error)


def nearest(marks: Sequence[Mark], time_s: float) -> Mark:
    """The mark that is nearest to a time; the earlier of two."""
    after = bisect_right(marks, time_s, key=lambda mark: mark[0])
    around = marks[max(0, after - 1) : after + 1]
    return min(around, key=lambda mark: abs(mark[0] - time_s))


def _touching(looks: Sequence[Sample], from_s: float, to_s: float) -> Sequence[Sample]:
    begin = bisect_right(looks, from_s, key=lambda look: look.to_s)
    end = bisect_right(looks, to_s - 1e-9, key=lambda look: look.from_s)
    return looks[begin:end]


def asked_between(rates: Sequence[Rate], from_s: float, to_s: float) -> float:
    """Integral of a step function of rates, bits."""
    total, at = 0.0, max(0, bisect_right(rates, from_s, key=lambda step: step[0]) - 1)
    while at < len(rates) and rates[at][0] < to_s:
        until = rates[at + 1][0] if at + 1 < len(rates) else to_s
        total += rates[at][1] * max(0.0, min(until, to_s) - max(rates[at][0], from_s))
        at += 1
    return total


def served_at(rates: Sequence[Rate], from_s: float, bits: float) -> float:
    """When a step function of rates has carried ``bits`` since ``from_s``; infinity: never."""
    at = max(0, bisect_right(rates, from_s, key=lambda step: step[0]) - 1)
    for n in range(at, len(rates)):
        begin, rate = max(rates[n][0], from_s), rates[n][1]
        until = rates[n + 1][0] if n + 1 < len(rates) else inf
        if rate and bits <= rate * (until - begin):
            return begin + bits / rate
        bits -= rate * (until - begin) if rate else 0.0
    return inf


_PARTS = 1024
"""Twice the classes of an octave: values within 0.2 % may count as the larger one."""
_LEAST_S = 1e-6


@dataclass(slots=True)
class LatenessHistogram:
    """Values in seconds, each of which stands for those a little smaller than itself."""

    count: int = 0
    _alike: dict[tuple[int, int], tuple[int, float]] = field(default_factory=dict)
    """How many, and the largest."""

    def take(self, values: Iterable[float]) -> None:
        """Some more."""
        for value in values:
            count, largest = self._alike.get(_bucket(value), (0, value))
            self._alike[_bucket(value)] = count + 1, max(value, largest)
            self.count += 1

    def __iter__(self) -> Iterator[float]:
        """All of them, in no order."""
        for count, largest in self._alike.values():
            for _ in range(count):
                yield largest


def _bucket(value: float) -> tuple[int, int]:
    """The same for values that are alike."""
    share, octave = frexp(value) if abs(value) >= _LEAST_S else (0.0, 0)
    return octave, round(share * _PARTS)


class Mismatch(NamedTuple):
    """The kernel held ``held``, not ``asked``, at some time between the two looks."""

    from_s: float
    to_s: float
    what: str
    asked: int | str
    held: int | str


class ReadBack:
    """A value that the kernel holds. ``what``: ``rate``, ``queue`` or ``line``."""

    def __init__(self, what: str) -> None:
        self.what = what
        self._right_s = 0.0
        self._wrong: tuple[int | str, int | str] | None = None
        self._from_s = 0.0

    def compare(self, now_s: float, requested: int | str, actual: int | str) -> Mismatch | None:
        """Take in a look; returns the interval of disagreement that it ends, if any."""
        wrong = None if requested == actual else (requested, actual)
        ended = self.end(now_s) if wrong != self._wrong else None
        if wrong is None:
            self._right_s = now_s
        elif self._wrong is None:
            self._from_s = now_s if ended else self._right_s
        self._wrong = wrong
        return ended

    def end(self, now_s: float) -> Mismatch | None:
        """No more looks, or other values: returns the disagreement under way, if any."""
        if self._wrong is None:
            return None
        wrong, self._wrong = self._wrong, None
        return Mismatch(self._from_s, now_s, self.what, *wrong)
