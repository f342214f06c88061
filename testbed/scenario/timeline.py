"""The history of all links of a run: pure, exact, and lazy enough for traces that loop for hours."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from itertools import islice
from math import inf

from testbed.scenario.expand import end_settings
from testbed.scenario.history import Points
from testbed.scenario.history import schedule as history
from testbed.scenario.model import Scenario
from testbed.scenario.reach import alike, link_events
from testbed.scenario.schedule import Line, Schedule
from testbed.scenario.shape import End, LinkChange, Shape
from testbed.scenario.sources import NS, nanoseconds
from testbed.traces import RateTrace


class Timeline:
    """What every link direction is asked to be, at every time from t0 on. Ends alike share a schedule."""

    def __init__(self, schedules: list[tuple[Schedule, list[End]]], ends: list[End]) -> None:
        self._schedules = schedules
        self._of = {end: schedule for schedule, members in schedules for end in members}
        self.ends = ends
        self.initial = {end: self.shape_at(end, 0.0) for end in ends}
        """Shapes at t0, events at 0 applied."""

    def changes(self, start_s: float, stop_s: float) -> Iterator[LinkChange]:
        """Changes from ``start_s`` up to, not including, ``stop_s`` (which may be infinite), by time.

        What holds at t0 is ``initial`` and no change; a change to the same shape is none either.
        """
        start, stop = nanoseconds(start_s), None if stop_s == inf else nanoseconds(stop_s)
        streams = [
            _after(schedule, i, start, stop) for i, (schedule, _) in enumerate(self._schedules)
        ]
        for time, i, shape in heapq.merge(*streams, key=lambda change: change[:2]):
            for end in self._schedules[i][1]:
                yield LinkChange(time / NS, end, shape)

    def shape_at(self, end: End, time_s: float) -> Shape:
        """What ``end`` is asked to be at ``time_s``."""
        return self._of[end].piece(nanoseconds(time_s))[0]

    def rate_at(self, end: End, time_s: float) -> int:
        """The rate asked of ``end`` at ``time_s`` in bit/s; 0 in an outage."""
        return self.shape_at(end, time_s).rate_bits

    def bits(self, end: End, start_s: float, stop_s: float) -> float:
        """Integral of the asked rate of ``end`` from ``start_s`` to ``stop_s``."""
        return self._of[end].bits(nanoseconds(start_s), nanoseconds(stop_s)) / NS

    def impaired(self, end: End) -> bool:
        """Whether ``end`` is asked for any impairment at any time."""
        return any(line.impairments for line in self._of[end].lines(0, None))

    def delays(self, end: End, start_s: float, stop_s: float) -> tuple[float, float]:
        """Least and greatest delay asked of ``end`` from ``start_s`` to ``stop_s``, in s; no jitter."""
        start, stop = nanoseconds(start_s), None if stop_s == inf else nanoseconds(stop_s)
        delays = [line.impairments.delay_ns for line in self._of[end].lines(start, stop)]
        return min(delays) / NS, max(delays) / NS

    def per_packet(self) -> bool:
        """Whether any end is to treat packets one by one at any time: they must not be bundled."""
        return any(
            _by_packet(line) for schedule, _ in self._schedules for line in schedule.lines(0, None)
        )

    def marks(self) -> bool:
        """Whether any end is to mark packets instead of losing them at any time: TCP must ask for it."""
        return any(
            line.impairments.ecn
            for schedule, _ in self._schedules
            for line in schedule.lines(0, None)
        )

    def lowest_rate(self) -> int:
        """The lowest rate but 0 of any end at any time, in bit/s; 0 if all links are dead for good."""
        rates = (schedule.summary.lowest for schedule, _ in self._schedules)
        return min((rate for rate in rates if rate), default=0)

    def highest_rates(self) -> dict[End, int]:
        """The highest rate of every end at any time, in bit/s."""
        return {
            end: schedule.summary.highest
            for schedule, members in self._schedules
            for end in members
        }

    def shortest_step_s(self) -> float | None:
        """The shortest time between two changes of one end (t0 counts as one); None if all is static."""
        steps = (schedule.summary.shortest for schedule, _ in self._schedules)
        shortest = min((step for step in steps if step is not None), default=None)
        return None if shortest is None else shortest / NS

    def longest_outage_s(self) -> tuple[float, End | None]:
        """The longest time without service of any end, and that end; infinite if it never ends."""
        worst: tuple[float, End | None] = (0.0, None)
        for schedule, members in self._schedules:
            outage = schedule.summary.outage
            length = inf if outage is None else outage / NS
            if length > worst[0]:
                worst = (length, members[0])
        return worst

    def longest_delays_s(self) -> dict[End, float]:
        """The longest that every end holds a packet back at any time: delay, jitter and the wait for a slot."""
        found = {}
        for schedule, members in self._schedules:
            longest = max(map(_held_back, schedule.lines(0, None))) / NS
            found.update(dict.fromkeys(members, longest))
        return found

    def weight(self) -> int:
        """About how many changes must be looked at to tell all of the above."""
        return sum(schedule.weight for schedule, _ in self._schedules)


def build(scenario: Scenario, traces: Mapping[str, RateTrace]) -> Timeline:
    """The timeline of a scenario in wall time (dilated, as are ``traces``, by the events' ``key``).

    Raises InputError when a rate or queue is missing, or a queue is too small.
    """
    points = Points(traces)
    schedules = [
        (history(ends[0], settings, link_events(scenario, events), points), ends)
        for settings, events, ends in alike(scenario)
    ]
    return Timeline(schedules, list(end_settings(scenario)))


def _by_packet(line: Line) -> bool:
    """A bundle would have one fate, one jitter, and count as one packet of a slot."""
    asked = line.impairments
    fates = asked.loss or asked.duplicate or asked.corrupt or asked.reorder
    return bool(fates or asked.jitter_ns or asked.slot or line.overhead_bytes)


def _held_back(line: Line) -> int:
    asked = line.impairments
    return asked.delay_ns + asked.jitter_ns + (asked.slot.longest_ns if asked.slot else 0)


def _after(
    schedule: Schedule, number: int, start: int, stop: int | None
) -> Iterator[tuple[int, int, Shape]]:
    """Changes at ``start`` or later; the shape just before it (at t0: then) is what they change."""
    for time, shape in islice(schedule.changes(max(0, start - 1), stop), 1, None):
        yield time, number, shape
