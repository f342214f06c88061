"""Intervals of time, quantiles, and what the host's processors did meanwhile, out of the ``host``
records. Pure.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, isnan, lgamma, log, log1p, nan
from typing import Any, NamedTuple

from testbed.records.events import Event
from testbed.records.manifest import Thresholds


@dataclass(frozen=True, slots=True)
class HostClockOffset(Event):
    """The monotonic clock of a swarm's host against the session's, about once a second."""

    kind = "host_clock"
    host: str
    at_s: float
    ahead_ns: int
    moved_ns: int
    """Its movement since the links were prepared, when t0 was translated."""
    error_ns: int
    """Half of the round trip: ``ahead_ns`` is right to that, and ``moved_ns`` to its sum with that
    of the look before t0."""


@dataclass(frozen=True, slots=True)
class ClockRecord(Event):
    """The instant t0 on the host's wall clock, by which others' records are set beside a run's."""

    kind = "clock"
    unix_ns: int
    """Nanoseconds of Unix time."""


_JOIN_S = 1e-6
_AT_ONCE = 4096
"""So many are merged together: there may be millions, and they come nearly in order."""


class IntervalSet:
    """Made from ``(from_s, to_s)`` in any order; those that touch become one. 16 bytes each."""

    def __init__(self, spans: Iterable[tuple[float, float]] = ()) -> None:
        self._from, self._to = array("d"), array("d")
        self._new: list[tuple[float, float]] = []
        for from_s, to_s in spans:
            self.add(from_s, to_s)

    def __iter__(self) -> Iterator[tuple[float, float]]:
        self._merge()
        return iter(zip(self._from, self._to, strict=True))

    def __bool__(self) -> bool:
        return bool(self._from or self._new)

    @property
    def total_s(self) -> float:
        """How long they are together."""
        return sum(to_s - from_s for from_s, to_s in self)

    def add(self, from_s: float, to_s: float) -> None:
        """One more."""
        if self._to and self._from[-1] <= from_s <= self._to[-1] + _JOIN_S:
            self._to[-1] = max(self._to[-1], to_s)
            return
        self._new.append((from_s, to_s))
        if len(self._new) >= _AT_ONCE:
            self._merge()

    def overlaps(self, start_s: float, stop_s: float) -> bool:
        """Return whether a part of the intervals lies between the two times."""
        self._merge()
        after = bisect_left(self._from, stop_s)
        return after > 0 and self._to[after - 1] > start_s

    def covers(self, start_s: float, stop_s: float) -> bool:
        """Return whether all the time between the two lies in one of the intervals."""
        self._merge()
        after = bisect_right(self._from, start_s)
        return after > 0 and self._to[after - 1] >= stop_s

    def _merge(self) -> None:
        if not self._new:
            return
        first = max(0, bisect_left(self._from, min(self._new)[0]) - 1)
        again = [*zip(self._from[first:], self._to[first:], strict=True), *self._new]
        del self._from[first:], self._to[first:]
        self._new.clear()
        for from_s, to_s in sorted(again):
            if self._to and from_s <= self._to[-1] + _JOIN_S:
                self._to[-1] = max(self._to[-1], to_s)
            else:
                self._from.append(from_s)
                self._to.append(to_s)


def quantiles(values: Sequence[float], fewest: int = 1) -> dict[str, float | None]:
    """``{"p50", "p99", "p99_at_least", "max"}``, each one of the values (nearest rank); None of
    nothing.

    ``p99_at_least``: what the p99 is not below, with 95 % confidence; ``fewest`` values must be as
    large, so of fewer it is None.
    """
    ordered = sorted(values)
    if not ordered:
        return dict.fromkeys(("p50", "p99", "p99_at_least", "max"))
    needed = max(fewest, significant(len(ordered)))
    rank = {share: max(0, -(-share * len(ordered) // 100) - 1) for share in (50, 99)}
    return {
        "p50": ordered[rank[50]],
        "p99": ordered[rank[99]],
        "p99_at_least": ordered[-min(needed, len(ordered))] if fewest <= len(ordered) else None,
        "max": ordered[-1],
    }


def significant(count: int, share: float = 0.01, confidence: float = 0.95) -> int:
    """The fewest of ``count`` values above a limit that show that more than ``share`` of all are
    above it.

    Fewer are likely enough (over 1 - ``confidence``) where exactly ``share`` is: the second largest
    of 160 values says little about their p99.
    """
    fewer, above = 0.0, 0
    while fewer < confidence and above < count:
        fewer += _exactly(above, count, share)
        above += 1
    return above


def _exactly(above: int, count: int, share: float) -> float:
    """Probability that ``above`` of ``count`` are; by logarithms, since there may be a million."""
    ways = lgamma(count + 1) - lgamma(above + 1) - lgamma(count - above + 1)
    return exp(ways + above * log(share) + (count - above) * log1p(-share))


_WIDEN_S = 0.1
"""Stolen time is counted in ticks: it may have begun in the interval before."""


class Moment(NamedTuple):
    """About 100 ms of the host's life; the fields of ``HostSample``."""

    from_s: float
    to_s: float
    stolen_s: float
    idle_share: float
    pressure: float | None
    backlog_drops: int


class HostMoments:
    """Any number of them, packed."""

    def __init__(self) -> None:
        self._columns: list[array[Any]] = [array(code) for code in "dddddq"]

    def __len__(self) -> int:
        return len(self._columns[0])

    def __iter__(self) -> Iterator[Moment]:
        return (
            Moment(from_s, to_s, stolen_s, idle, None if isnan(pressure) else pressure, drops)
            for from_s, to_s, stolen_s, idle, pressure, drops in zip(*self._columns, strict=True)
        )

    def take(self, record: Mapping[str, Any]) -> None:
        """Read a ``host`` record."""
        for name, column in zip(Moment._fields, self._columns, strict=True):
            value = record[name]
            column.append(nan if value is None else value)

    def by_time(self) -> Every:
        """The same, in order of time."""
        begins = self._columns[0]
        if all(before < after for before, after in pairwise(begins)):
            return self
        return sorted(self)


Every = HostMoments | Sequence[Moment]


@dataclass(frozen=True, slots=True)
class HostLog:
    """All moments of a run, in order of time."""

    moments: Every

    @property
    def stolen_s(self) -> float:
        """Processor seconds that others on the same hardware took."""
        return sum(moment.stolen_s for moment in self.moments)

    def stolen_share(self, processors: int) -> float:
        """Return the stolen share of the watched time of all processors, at most 1: the kernel
        counts in steps and may exceed it."""
        watched_s = sum(moment.to_s - moment.from_s for moment in self.moments)
        return min(1.0, self.stolen_s / (watched_s * processors)) if watched_s > 0 else 0.0

    @property
    def backlog_drops(self) -> int:
        """Packets that the host itself dropped."""
        return sum(moment.backlog_drops for moment in self.moments)

    def stolen(self) -> IntervalSet:
        """When a processor was taken away."""
        return IntervalSet((m.from_s - _WIDEN_S, m.to_s) for m in self.moments if m.stolen_s > 0)

    def dropping(self) -> IntervalSet:
        """When the host dropped packets itself."""
        return IntervalSet((m.from_s, m.to_s) for m in self.moments if m.backlog_drops > 0)

    def starved(self, under_way: IntervalSet, limits: Thresholds) -> IntervalSet:
        """When, with traffic ``under_way``, no processor was idle and something waited for one."""
        return IntervalSet(
            (m.from_s, m.to_s)
            for m in self.moments
            if _starved(m, limits) and under_way.overlaps(m.from_s, m.to_s)
        )

    def starved_share(self, under_way: IntervalSet, limits: Thresholds) -> tuple[float, float]:
        """Seconds watched while traffic was ``under_way`` from one end of a moment to the other,
        and the share of them without an idle processor."""
        watched: float = 0
        starved: float = 0
        for moment in self.moments:
            if under_way.covers(moment.from_s, moment.to_s):
                watched += moment.to_s - moment.from_s
                if _starved(moment, limits):
                    starved += moment.to_s - moment.from_s
        return watched, starved / watched if watched else 0.0

    def summary(self) -> dict[str, Any]:
        """Means and extremes over the run, each None where nothing was measured."""
        idle = array("d", (moment.idle_share for moment in self.moments))
        pressure = array("d", (m.pressure for m in self.moments if m.pressure is not None))
        return {
            "idle_share": sum(idle) / len(idle) if idle else None,
            "idle_share_least": min(idle, default=None),
            "pressure": sum(pressure) / len(pressure) if pressure else None,
            "pressure_most": max(pressure, default=None),
            "stolen_s": self.stolen_s,
            "backlog_drops": self.backlog_drops,
        }


def _starved(moment: Moment, limits: Thresholds) -> bool:
    pressed = moment.pressure is None or moment.pressure >= limits.starved_pressure
    return moment.idle_share <= limits.starved_idle and pressed
