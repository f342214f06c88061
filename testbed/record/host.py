"""What the host's processors did while a run went on, out of the ``host`` records. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isnan, nan
from typing import Any, NamedTuple

from testbed.record.spans import Spans
from testbed.record.thresholds import Thresholds

_WIDEN_S = 0.1
"""The kernel counts stolen time in whole ticks: what is seen in one interval may have begun in the one before."""


class Moment(NamedTuple):
    """About 100 ms of the host's life; the fields of ``HostSample``."""

    from_s: float
    to_s: float
    stolen_s: float
    idle_share: float
    pressure: float | None
    backlog_drops: int


class Moments:
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


Every = Moments | Sequence[Moment]


@dataclass(frozen=True, slots=True)
class Host:
    """All moments of a run, in order of time."""

    moments: Every

    @property
    def stolen_s(self) -> float:
        """Processor seconds that others on the same hardware took."""
        return sum(moment.stolen_s for moment in self.moments)

    def stolen_share(self, processors: int) -> float:
        """Of the time of all processors while they were watched; the kernel's steps may say more than there was of it."""
        watched_s = sum(moment.to_s - moment.from_s for moment in self.moments)
        return min(1.0, self.stolen_s / (watched_s * processors)) if watched_s > 0 else 0.0

    @property
    def backlog_drops(self) -> int:
        """Packets that the host itself dropped."""
        return sum(moment.backlog_drops for moment in self.moments)

    def stolen(self) -> Spans:
        """When a processor was taken away."""
        return Spans((m.from_s - _WIDEN_S, m.to_s) for m in self.moments if m.stolen_s > 0)

    def dropping(self) -> Spans:
        """When the host dropped packets itself."""
        return Spans((m.from_s, m.to_s) for m in self.moments if m.backlog_drops > 0)

    def starved(self, under_way: Spans, limits: Thresholds) -> Spans:
        """When, with traffic ``under_way``, no processor was idle and something waited for one."""
        return Spans(
            (m.from_s, m.to_s)
            for m in self.moments
            if _starved(m, limits) and under_way.touches(m.from_s, m.to_s)
        )

    def starved_share(self, under_way: Spans, limits: Thresholds) -> tuple[float, float]:
        """Seconds watched while traffic was ``under_way`` from one end of a moment to the other, and
        the share of them without an idle processor."""
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
