"""From the settings of a link direction and its events to its schedule."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise

from testbed.scenario.events import (
    FlapEvent,
    LinkEvent,
    OutageEvent,
    PartitionEvent,
    RampEvent,
    StepEvent,
    TraceEvent,
)
from testbed.scenario.link import LinkEnd
from testbed.scenario.schedule import Line, Schedule, Segment
from testbed.scenario.settings import held_bytes, impairments, overlaid, queue_bytes
from testbed.scenario.shape import End
from testbed.scenario.sources import Constant, Ramp, Source, Trace, nanoseconds
from testbed.traces import RateTrace
from testbed.units import Rate


@dataclass(frozen=True, slots=True)
class Outage:
    """No service from ``begin`` to ``end`` (ns)."""

    begin: int
    end: int
    drop: bool


class Points:
    """The points of traces in whole ns and bit/s, each made once however many events use them."""

    def __init__(self, traces: Mapping[str, RateTrace]) -> None:
        self._traces = traces
        self._made: dict[tuple[str, float, float], tuple[tuple[int, ...], tuple[int, ...], int]]
        self._made = {}

    def of(self, event: TraceEvent) -> tuple[tuple[int, ...], tuple[int, ...], int]:
        """Times, rates and period as ``event`` asks for them; points that fall together are one."""
        key = event.key, event.scale, event.stretch
        if key not in self._made:
            trace = self._traces[event.key]
            times = [nanoseconds(time * event.stretch) for time in trace.times_s]
            rates = [round(rate * event.scale) for rate in trace.rates_bits]
            if any(later <= earlier for earlier, later in pairwise(times)):
                merged = dict(zip(times, rates, strict=True))
                times, rates = list(merged), list(merged.values())
            period = max(times[-1] + 1, nanoseconds(trace.duration_s * event.stretch))
            self._made[key] = tuple(times), tuple(rates), period
        return self._made[key]


def schedule(end: End, settings: LinkEnd, events: Sequence[LinkEvent], points: Points) -> Schedule:
    """The history of ``end``, whose ``events`` are in order of time.

    Of two events the one that begins last rules the rate; an outage lies over all of them. Raises
    InputError when a rate or queue is missing, or a queue is too small.
    """
    sources = _Sources(Constant(int(settings.rate or 0)), points)
    for event in events:
        sources.add(event)
    lines = list(_lines(end, settings, events))
    return Schedule(_segments(sources.finished(), lines, _outages(events)))


@dataclass(slots=True)
class _Sources:
    """What rules the rate, from when on. A trace that ends leaves a rate behind, if it still rules."""

    base: Constant
    points: Points
    ruling: list[tuple[int, Source]] = field(default_factory=list)
    _following: tuple[int, Source] | None = None

    def __post_init__(self) -> None:
        self.ruling.append((0, self.base))

    def add(self, event: LinkEvent) -> None:
        begin = nanoseconds(event.at)
        if isinstance(event, StepEvent) and event.rate is not None:
            self._rule(begin, Constant(int(event.rate), begin))
        elif isinstance(event, RampEvent):
            self._end_trace(begin)
            before = self.ruling[-1][1].piece(begin)[0]
            over, every = nanoseconds(event.over), max(1, nanoseconds(event.every))
            steps = max(1, -(-over // every))
            self._rule(begin, Ramp(begin, before, int(event.rate), max(1, over), steps))
        elif isinstance(event, TraceEvent):
            self._follow(begin, event)

    def finished(self) -> list[tuple[int, Source]]:
        self._end_trace(None)
        return self.ruling

    def _follow(self, begin: int, event: TraceEvent) -> None:
        times, rates, period = self.points.of(event)
        first = begin - nanoseconds(event.offset * event.stretch)
        self._rule(begin, Trace(first, times, rates, period))
        if event.at_end != "loop":
            end = max(begin, first + period * event.repeat)
            after = rates[-1] if event.at_end == "hold" else self.base.rate
            self._following = end, Constant(after, end)

    def _rule(self, begin: int, source: Source) -> None:
        self._end_trace(begin)
        self.ruling.append((begin, source))

    def _end_trace(self, before: int | None) -> None:
        """What follows a trace takes over, unless the next event does so first."""
        if self._following and (before is None or self._following[0] <= before):
            self.ruling.append(self._following)
        self._following = None


def line_of(settings: LinkEnd, held: int) -> Line:
    """What ``settings`` make of a link direction besides its rate."""
    return Line(held, int(settings.overhead or 0), impairments(settings))


def _lines(end: End, settings: LinkEnd, events: Iterable[LinkEvent]) -> Iterator[tuple[int, Line]]:
    held = queue_bytes(end, settings)
    yield 0, line_of(settings, held)
    for event in events:
        if isinstance(event, StepEvent):
            before, settings = settings, overlaid(settings, event)
            if settings is before and event.queue is None:
                continue
            if event.queue is not None:
                rate = settings.rate if event.rate is None else event.rate
                held = held_bytes(end, rate or Rate(0), event.queue)
            yield nanoseconds(event.at), line_of(settings, held)


def _outages(events: Iterable[LinkEvent]) -> list[Outage]:
    """All of them, by their beginning."""
    found = []
    for event in events:
        begin = nanoseconds(event.at)
        if isinstance(event, (OutageEvent, PartitionEvent)):
            drop = isinstance(event, PartitionEvent) or event.packets == "drop"
            found.append(Outage(begin, begin + nanoseconds(event.for_), drop))
        elif isinstance(event, FlapEvent):
            length, every = nanoseconds(event.for_), nanoseconds(event.every)
            starts = (begin + i * every for i in range(event.times))
            found += [Outage(at, at + length, event.packets == "drop") for at in starts]
    return sorted(found, key=lambda outage: outage.begin)


def _segments(
    sources: list[tuple[int, Source]], lines: list[tuple[int, Line]], outages: list[Outage]
) -> tuple[Segment, ...]:
    """One wherever anything begins or ends. Of outages the one that began last says what packets do."""
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
