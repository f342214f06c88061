"""The history of all links of a run: pure, exact, and lazy enough for traces that loop for hours."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from itertools import islice, pairwise
from math import inf

from testbed.scenario.events import Event, OutageEvent, RampEvent, StepEvent, TraceEvent
from testbed.scenario.expand import end_settings, node_names, queue_bytes
from testbed.scenario.model import LinkEnd, Scenario
from testbed.scenario.schedule import Outage, Schedule
from testbed.scenario.shape import End, LinkChange, Shape
from testbed.scenario.sources import NS, Constant, Ramp, Source, Trace, nanoseconds
from testbed.traces import RateTrace

ALL = "all"
"""What an event calls every link."""


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

    def lowest_rate(self) -> int:
        """The lowest rate but 0 of any end at any time, in bit/s; 0 if all links are dead for good."""
        shapes = (shape for schedule, _ in self._schedules for _, shape in schedule.condensed)
        return min((shape.rate_bits for shape in shapes if shape.rate_bits), default=0)

    def shortest_step_s(self) -> float | None:
        """The shortest time between two changes of one end (t0 counts as one); None if all is static."""
        steps = (
            later[0] - earlier[0]
            for schedule, _ in self._schedules
            for earlier, later in pairwise(schedule.condensed)
        )
        shortest = min(steps, default=None)
        return None if shortest is None else shortest / NS

    def longest_outage_s(self) -> tuple[float, End | None]:
        """The longest time without service of any end, and that end; infinite if it never ends."""
        worst: tuple[float, End | None] = (0.0, None)
        for schedule, members in self._schedules:
            outage = schedule.longest_outage()
            length = inf if outage is None else outage / NS
            if length > worst[0]:
                worst = (length, members[0])
        return worst


def build(scenario: Scenario, traces: Mapping[str, RateTrace]) -> Timeline:
    """The timeline of a scenario in wall time (dilated, as are ``traces``, by the events' ``file``).

    Of two events the one that begins last rules an end; an outage lies over all of them.
    Raises InputError when a rate or queue is missing, or a queue is too small.
    """
    events = sorted(scenario.events, key=lambda event: event.at)
    touched = [_touched(scenario, event) for event in events]
    settings = end_settings(scenario)
    groups: dict[tuple[int, int, tuple[int, ...]], tuple[Schedule, list[End]]] = {}
    for end, own in settings.items():
        concerned = tuple(i for i, ends in enumerate(touched) if end in ends)
        key = (int(own.rate or 0), queue_bytes(end, own), concerned)
        if key not in groups:
            groups[key] = _schedule(own, key[1], [events[i] for i in concerned], traces), []
        groups[key][1].append(end)
    return Timeline(list(groups.values()), list(settings))


def named_nodes(scenario: Scenario, name: str) -> list[str]:
    """The nodes that ``name`` means: itself, its group's, or all. Empty if it is unknown."""
    by_group = {group: node_names(scenario, group) for group in scenario.nodes}
    everyone = [node for nodes in by_group.values() for node in nodes]
    if name == ALL:
        return everyone
    return by_group.get(name) or [node for node in everyone if node == name]


def _touched(scenario: Scenario, event: Event) -> set[End]:
    nodes = {node for name in event.links for node in named_nodes(scenario, name)}
    up = {End(node, "up") for node in nodes if event.direction != "down"}
    down = {End(node, "down") for node in nodes if event.direction != "up"}
    return up | down


def _schedule(
    own: LinkEnd, held: int, events: list[Event], traces: Mapping[str, RateTrace]
) -> Schedule:
    schedule = Schedule(held, (0,), (Constant(int(own.rate or 0)),))
    outages: list[Outage] = []
    for event in events:
        begin = nanoseconds(event.at)
        if isinstance(event, OutageEvent):
            end = begin + nanoseconds(event.for_)
            outages.append(Outage(begin, end, event.packets == "drop"))
        else:
            source = _source(event, begin, schedule, traces)
            begins, sources = (*schedule.begins, begin), (*schedule.sources, source)
            schedule = Schedule(held, begins, sources)
    return Schedule(held, schedule.begins, schedule.sources, tuple(outages))


def _source(
    event: TraceEvent | StepEvent | RampEvent,
    begin: int,
    before: Schedule,
    traces: Mapping[str, RateTrace],
) -> Source:
    if isinstance(event, StepEvent):
        return Constant(int(event.rate))
    if isinstance(event, RampEvent):
        over, every = nanoseconds(event.over), max(1, nanoseconds(event.every))
        return Ramp(
            begin, before.asked(begin), int(event.rate), max(1, over), max(1, -(-over // every))
        )
    trace = traces[event.file]
    return Trace(
        begin=begin,
        times=tuple(nanoseconds(time) for time in trace.times_s),
        rates=tuple(round(rate * event.scale) for rate in trace.rates_bits),
        duration=max(1, nanoseconds(trace.duration_s)),
        offset=nanoseconds(event.offset),
        at_end=event.at_end,
        base=before.sources[0].piece(0)[0],
    )


def _after(
    schedule: Schedule, number: int, start: int, stop: int | None
) -> Iterator[tuple[int, int, Shape]]:
    """Changes at ``start`` or later; the shape just before it (at t0: then) is what they change."""
    for time, shape in islice(schedule.changes(max(0, start - 1), stop), 1, None):
        yield time, number, shape
