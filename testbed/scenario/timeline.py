"""The history of all links of a run, from settings and events: pure, exact, and lazy enough for
traces that loop for hours.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice, pairwise
from math import inf

from testbed.scenario.expand import alike, end_settings, link_events
from testbed.scenario.link_model import (
    FlapEvent,
    LinkEnd,
    LinkEvent,
    OutageEvent,
    PartitionEvent,
    RampEvent,
    StepEvent,
    TraceEvent,
    held_bytes,
    impairments,
    overlaid,
    queue_bytes,
)
from testbed.scenario.link_state import LinkChange, LinkDirection, LinkState
from testbed.scenario.model import Scenario
from testbed.scenario.schedule import (
    NS,
    Constant,
    LinkAttributes,
    Ramp,
    RateSource,
    Schedule,
    Segment,
    Trace,
    nanoseconds,
)
from testbed.traces.rate_trace import RateTrace
from testbed.units import Rate


@dataclass(frozen=True, slots=True)
class Outage:
    """No service from ``begin`` to ``end`` (ns)."""

    begin: int
    end: int
    drop: bool


_Points = tuple[tuple[int, ...], tuple[int, ...], int]
"""Times, rates and period."""


class TracePoints:
    """The points of traces in whole ns and bit/s, each made once however many events use them."""

    def __init__(self, traces: Mapping[str, RateTrace]) -> None:
        self._traces = traces
        self._known: dict[tuple[str, float, float], _Points] = {}

    def of(self, event: TraceEvent) -> _Points:
        """Times, rates and period as ``event`` asks for them; points that fall together are one."""
        key = event.key, event.scale, event.stretch
        if key not in self._known:
            trace = self._traces[event.key]
            times = [nanoseconds(time * event.stretch) for time in trace.times_s]
            rates = [round(rate * event.scale) for rate in trace.rates_bits]
            if any(later <= earlier for earlier, later in pairwise(times)):
                merged = dict(zip(times, rates, strict=True))
                times, rates = list(merged), list(merged.values())
            period = max(times[-1] + 1, nanoseconds(trace.duration_s * event.stretch))
            self._known[key] = tuple(times), tuple(rates), period
        return self._known[key]


def schedule(
    end: LinkDirection, settings: LinkEnd, events: Sequence[LinkEvent], points: TracePoints
) -> Schedule:
    """The history of ``end``, whose ``events`` are in order of time.

    Of two events the one that begins last rules the rate; an outage lies over all of them. Raises
    InputError when a rate or queue is missing, or a queue is too small.
    """
    sources = _Sources(Constant(0, int(settings.rate or 0)), points)
    for event in events:
        sources.add(event)
    lines = list(_lines(end, settings, events))
    return Schedule(_segments(sources.finished(), lines, _outages(events)))


@dataclass(slots=True)
class _Sources:
    """The sources that set the rate, by begin. A trace that ends leaves a rate behind."""

    base: Constant
    points: TracePoints
    ruling: list[tuple[int, RateSource]] = field(default_factory=list)
    _following: tuple[int, RateSource] | None = None

    def __post_init__(self) -> None:
        self.ruling.append((0, self.base))

    def add(self, event: LinkEvent) -> None:
        begin = nanoseconds(event.at)
        if isinstance(event, StepEvent) and event.rate is not None:
            self._rule(begin, Constant(begin, int(event.rate)))
        elif isinstance(event, RampEvent):
            self._end_trace(begin)
            before = self.ruling[-1][1].state_at(begin)[0]
            over, every = nanoseconds(event.over), max(1, nanoseconds(event.every))
            steps = max(1, -(-over // every))
            self._rule(begin, Ramp(begin, before, int(event.rate), max(1, over), steps))
        elif isinstance(event, TraceEvent):
            self._follow(begin, event)

    def finished(self) -> list[tuple[int, RateSource]]:
        self._end_trace(None)
        return self.ruling

    def _follow(self, begin: int, event: TraceEvent) -> None:
        times, rates, period = self.points.of(event)
        first = begin - nanoseconds(event.offset * event.stretch)
        self._rule(begin, Trace(first, times, rates, period))
        if event.at_end != "loop":
            end = max(begin, first + period * event.repeat)
            after = rates[-1] if event.at_end == "hold" else self.base.rate
            self._following = end, Constant(end, after)

    def _rule(self, begin: int, source: RateSource) -> None:
        self._end_trace(begin)
        self.ruling.append((begin, source))

    def _end_trace(self, before: int | None) -> None:
        """Let what follows a trace take over, unless the next event does so first."""
        if self._following and (before is None or self._following[0] <= before):
            self.ruling.append(self._following)
        self._following = None


def line_of(settings: LinkEnd, size: int) -> LinkAttributes:
    """Return the attributes besides the rate that ``settings`` give a link direction."""
    return LinkAttributes(size, int(settings.overhead or 0), impairments(settings))


def _lines(
    end: LinkDirection, settings: LinkEnd, events: Iterable[LinkEvent]
) -> Iterator[tuple[int, LinkAttributes]]:
    size = queue_bytes(end, settings)
    yield 0, line_of(settings, size)
    for event in events:
        if isinstance(event, StepEvent):
            before, settings = settings, overlaid(settings, event)
            if settings is before and event.queue is None:
                continue
            if event.queue is not None:
                rate = settings.rate if event.rate is None else event.rate
                size = held_bytes(end, rate or Rate(0), event.queue)
            yield nanoseconds(event.at), line_of(settings, size)


def _outages(events: Iterable[LinkEvent]) -> list[Outage]:
    """All of them, by their beginning."""
    outages = []
    for event in events:
        begin = nanoseconds(event.at)
        if isinstance(event, (OutageEvent, PartitionEvent)):
            drop = isinstance(event, PartitionEvent) or event.packets == "drop"
            outages.append(Outage(begin, begin + nanoseconds(event.for_), drop))
        elif isinstance(event, FlapEvent):
            length, every = nanoseconds(event.for_), nanoseconds(event.every)
            starts = (begin + i * every for i in range(event.times))
            outages += [Outage(at, at + length, event.packets == "drop") for at in starts]
    return sorted(outages, key=lambda outage: outage.begin)


def _segments(
    sources: list[tuple[int, RateSource]],
    lines: list[tuple[int, LinkAttributes]],
    outages: list[Outage],
) -> tuple[Segment, ...]:
    """A segment wherever anything begins or ends. The latest outage says what packets do."""
    edges = chain.from_iterable((outage.begin, outage.end) for outage in outages)
    marks = sorted({begin for begin, _ in sources} | {begin for begin, _ in lines} | set(edges))
    at_source, at_line, at_outage = 0, 0, 0
    begun: list[Outage] = []
    segments = []
    for mark in marks:
        while at_source + 1 < len(sources) and sources[at_source + 1][0] <= mark:
            at_source += 1
        while at_line + 1 < len(lines) and lines[at_line + 1][0] <= mark:
            at_line += 1
        while at_outage < len(outages) and outages[at_outage].begin <= mark:
            begun.append(outages[at_outage])
            at_outage += 1
        while begun and begun[-1].end <= mark:
            begun.pop()
        drop = begun[-1].drop if begun else None
        segments.append(Segment(mark, sources[at_source][1], lines[at_line][1], drop))
    return tuple(segments)


class Timeline:
    """The state asked of every link direction at every time. Equal ones share a schedule."""

    def __init__(
        self, schedules: list[tuple[Schedule, list[LinkDirection]]], ends: list[LinkDirection]
    ) -> None:
        self._schedules = schedules
        self._of = {end: schedule for schedule, members in schedules for end in members}
        self.ends = ends
        self.initial = {end: self.shape_at(end, 0.0) for end in ends}
        """Shapes at t0, events at 0 applied."""

    def changes(self, start_s: float, stop_s: float) -> Iterator[LinkChange]:
        """Changes from ``start_s`` up to, not including, ``stop_s`` (which may be infinite), by
        time.

        What holds at t0 is ``initial`` and no change; a change to the same shape is none either.
        """
        start, stop = nanoseconds(start_s), None if stop_s == inf else nanoseconds(stop_s)
        streams = [
            _after(schedule, i, start, stop) for i, (schedule, _) in enumerate(self._schedules)
        ]
        for time, i, shape in heapq.merge(*streams, key=lambda change: change[:2]):
            for end in self._schedules[i][1]:
                yield LinkChange(time / NS, end, shape)

    def shape_at(self, end: LinkDirection, time_s: float) -> LinkState:
        """Return the state asked of ``end`` at ``time_s``."""
        return self._of[end].state_at(nanoseconds(time_s))[0]

    def rate_at(self, end: LinkDirection, time_s: float) -> int:
        """The rate asked of ``end`` at ``time_s`` in bit/s; 0 in an outage."""
        return self.shape_at(end, time_s).rate_bits

    def bits(self, end: LinkDirection, start_s: float, stop_s: float) -> float:
        """Integral of the asked rate of ``end`` from ``start_s`` to ``stop_s``."""
        return self._of[end].bits(nanoseconds(start_s), nanoseconds(stop_s)) / NS

    def impaired(self, end: LinkDirection) -> bool:
        """Return whether ``end`` is asked for any impairment at any time."""
        return any(line.impairments for line in self._of[end].lines(0, None))

    def delays(self, end: LinkDirection, start_s: float, stop_s: float) -> tuple[float, float]:
        """Least and greatest delay asked of ``end`` between the two, in s; no jitter."""
        start, stop = nanoseconds(start_s), None if stop_s == inf else nanoseconds(stop_s)
        delays = [line.impairments.delay_ns for line in self._of[end].lines(start, stop)]
        return min(delays) / NS, max(delays) / NS

    def per_packet(self) -> bool:
        """Return whether any end ever treats packets one by one: no bundles then."""
        return any(
            _by_packet(line) for schedule, _ in self._schedules for line in schedule.lines(0, None)
        )

    def marks(self) -> bool:
        """Return whether any end ever marks packets: TCP must ask for it."""
        return any(
            line.impairments.ecn
            for schedule, _ in self._schedules
            for line in schedule.lines(0, None)
        )

    def lowest_rate(self) -> int:
        """The lowest rate but 0 of any end, bit/s; 0 if all links are dead for good."""
        rates = (schedule.summary.lowest for schedule, _ in self._schedules)
        return min((rate for rate in rates if rate), default=0)

    def highest_rates(self) -> dict[LinkDirection, int]:
        """The highest rate of every end at any time, in bit/s."""
        return {
            end: schedule.summary.highest
            for schedule, members in self._schedules
            for end in members
        }

    def shortest_step_s(self) -> float | None:
        """The shortest time between two changes of one end, t0 included; None: all static."""
        steps = (schedule.summary.shortest for schedule, _ in self._schedules)
        shortest = min((step for step in steps if step is not None), default=None)
        return None if shortest is None else shortest / NS

    def longest_outage_s(self) -> tuple[float, LinkDirection | None]:
        """The longest time without service of any end, and that end; infinite if it never ends."""
        worst: tuple[float, LinkDirection | None] = (0.0, None)
        for schedule, members in self._schedules:
            outage = schedule.summary.outage
            length = inf if outage is None else outage / NS
            if length > worst[0]:
                worst = (length, members[0])
        return worst

    def longest_delays_s(self) -> dict[LinkDirection, float]:
        """The longest that every end holds a packet back: delay, jitter and slot."""
        delays = {}
        for schedule, members in self._schedules:
            longest = max(map(_held_back, schedule.lines(0, None))) / NS
            delays.update(dict.fromkeys(members, longest))
        return delays

    def change_count_estimate(self) -> int:
        """About how many changes must be looked at to tell all of the above."""
        return sum(schedule.change_count_estimate for schedule, _ in self._schedules)


def build(scenario: Scenario, traces: Mapping[str, RateTrace]) -> Timeline:
    """The timeline of a scenario in wall time (dilated, as are ``traces``, by the events' ``key``).

    Raises InputError when a rate or queue is missing, or a queue is too small.
    """
    points = TracePoints(traces)
    schedules = [
        (schedule(ends[0], settings, link_events(scenario, events), points), ends)
        for settings, events, ends in alike(scenario)
    ]
    return Timeline(schedules, list(end_settings(scenario)))


def _by_packet(line: LinkAttributes) -> bool:
    """A bundle would have one fate, one jitter, and count as one packet of a slot."""
    impairments = line.impairments
    fates = impairments.loss or impairments.duplicate or impairments.corrupt or impairments.reorder
    return bool(fates or impairments.jitter_ns or impairments.slot or line.overhead_bytes)


def _held_back(line: LinkAttributes) -> int:
    impairments = line.impairments
    return (
        impairments.delay_ns
        + impairments.jitter_ns
        + (impairments.slot.longest_ns if impairments.slot else 0)
    )


def _after(
    schedule: Schedule, number: int, start: int, stop: int | None
) -> Iterator[tuple[int, int, LinkState]]:
    """Changes at ``start`` or later; the shape just before it (at t0: then) is what they change."""
    for time, shape in islice(schedule.changes(max(0, start - 1), stop), 1, None):
        yield time, number, shape
