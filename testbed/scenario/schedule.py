"""The history of one link direction: sources of its rate, what else it is, and outages over that."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from testbed.scenario.impairments import NONE, Impairments
from testbed.scenario.shape import Shape
from testbed.scenario.sources import Source


@dataclass(frozen=True, slots=True)
class Line:
    """What a link direction is besides its rate."""

    queue_bytes: int
    overhead_bytes: int = 0
    impairments: Impairments = NONE


@dataclass(frozen=True, slots=True)
class Segment:
    """From ``begin`` (ns) on one source rules the rate, or an outage: ``drop`` says what packets do."""

    begin: int
    source: Source
    line: Line
    drop: bool | None = None
    """None: there is service."""

    def shape(self, rate: int) -> Shape:
        """What the direction is while its rate is ``rate``."""
        line = self.line
        return Shape(rate, line.queue_bytes, bool(self.drop), line.overhead_bytes, line.impairments)


@dataclass(frozen=True, slots=True)
class Summary:
    """What is true of a whole history. Times in ns."""

    lowest: int
    """The lowest rate but 0 in bit/s; 0 if there is no other."""
    highest: int
    """The highest rate in bit/s."""
    shortest: int | None
    """Between two changes; None if there are none."""
    outage: int | None
    """The longest time without service; None if it never ends."""


@dataclass(frozen=True)
class Schedule:
    """``segments`` one after the other; the first begins at 0, the last has no end and is no outage."""

    segments: tuple[Segment, ...]

    def piece(self, time: int) -> tuple[Shape, int | None]:
        """The shape at ``time`` and until when it holds at least (None: for good)."""
        i = bisect_right(self._begins, time) - 1
        segment = self.segments[i]
        rate, until = (0, None) if segment.drop is not None else segment.source.piece(time)
        limits = [*self._begins[i + 1 : i + 2], *([] if until is None else [until])]
        return segment.shape(rate), min(limits, default=None)

    def changes(self, start: int, stop: int | None = None) -> Iterator[tuple[int, Shape]]:
        """The shape at ``start``, then every change before ``stop``, with its time. Lazy."""
        for time, rate, segment in self._changes(start, stop):
            yield time, segment.shape(rate)

    def bits(self, start: int, stop: int) -> int:
        """Integral of the rate from ``start`` to ``stop``, in bit/s × ns. Exact."""
        total, since, held = 0, start, 0
        for time, rate, _ in self._pieces(start, stop) if start < stop else ():
            total += held * (time - since)
            since, held = time, rate
        return total + held * (stop - since)

    def lines(self, start: int, stop: int | None) -> list[Line]:
        """What it is besides its rate, in turn, from ``start`` up to ``stop`` (None: for good)."""
        first = bisect_right(self._begins, start) - 1
        within = (s for s in self.segments[first:] if stop is None or s.begin < stop)
        return list(dict.fromkeys(segment.line for segment in within))

    def condensed(self) -> Iterator[tuple[int, Shape]]:
        """All changes, with repetitions left out of which nothing new can be learnt. Ends.

        Whole periods of a repeating source, but for the first three, are cut out of the time between
        two events, so that every neighbourhood of a change is still there.
        """
        schedule, end = self._shortened
        return schedule.changes(0, end + 1)

    @property
    def weight(self) -> int:
        """About how many changes ``condensed`` has: what it costs to look at the whole history."""
        schedule, end = self._shortened
        stops = [*schedule._begins[1:], end + 1]
        return sum(
            1 if segment.drop is not None else segment.source.count(segment.begin, stop)
            for segment, stop in zip(schedule.segments, stops, strict=True)
        )

    @cached_property
    def summary(self) -> Summary:
        """One look at the whole history."""
        schedule, end = self._shortened
        lowest, highest, shortest, longest, before, since = 0, 0, end + 1, 0, 0, None
        for time, rate, _ in schedule._changes(0, end + 1):
            if time and time - before < shortest:
                shortest = time - before
            before = time
            if not rate:
                since = time if since is None else since
                continue
            if rate < lowest or not lowest:
                lowest = rate
            highest = max(highest, rate)
            if since is not None:
                longest, since = max(longest, time - since), None
        if since is not None:
            period = self.segments[-1].source.period
            seen_whole = period is not None and since > end - 2 * period  # a period earlier
            return Summary(
                lowest, highest, shortest if before else None, longest if seen_whole else None
            )
        return Summary(lowest, highest, shortest if before else None, longest)

    @cached_property
    def _begins(self) -> tuple[int, ...]:
        return tuple(segment.begin for segment in self.segments)

    def _pieces(self, start: int, stop: int | None) -> Iterator[tuple[int, int, Segment]]:
        """``start``, then whenever something may change before ``stop``: the rate, and its segment."""
        first = bisect_right(self._begins, start) - 1
        for i in range(first, len(self.segments)):
            segment = self.segments[i]
            begin = max(start, segment.begin)
            if stop is not None and begin >= stop:
                return
            if segment.drop is not None:
                yield begin, 0, segment
                continue
            end = self._begins[i + 1] if i + 1 < len(self._begins) else None
            until = stop if end is None else end if stop is None else min(stop, end)
            for time, rate in segment.source.pieces(begin, until):
                yield time, rate, segment

    def _changes(self, start: int, stop: int | None) -> Iterator[tuple[int, int, Segment]]:
        """Of ``_pieces`` those that differ from the one before."""
        held_rate, held = -1, self.segments[0]
        for time, rate, segment in self._pieces(start, stop):
            if rate != held_rate or (segment is not held and segment.shape(0) != held.shape(0)):
                yield time, rate, segment
                held_rate = rate
            held = segment

    @cached_property
    def _shortened(self) -> tuple[Schedule, int]:
        """Repetitions cut out, and when nothing new happens any more."""
        cut, kept = 0, []
        for segment, following in pairwise(self.segments):
            kept.append(_later(segment, -cut))
            period = segment.source.period
            if period and segment.drop is None:
                cut += max(0, (following.begin - segment.begin) // period - 3) * period
        last = _later(self.segments[-1], -cut)
        period = last.source.period
        tail = 3 * period if period else max(0, last.source.settled - last.begin)
        return Schedule((*kept, last)), last.begin + tail


def _later(segment: Segment, by: int) -> Segment:
    if not by:
        return segment
    return Segment(segment.begin + by, segment.source.later(by), segment.line, segment.drop)
