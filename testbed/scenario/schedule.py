"""The history of one link direction: where its rate comes from (base, step, ramp, trace), and
outages over that. Integers: ns after t0 and bit/s. ``timeline.schedule`` makes it of events.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Self

from testbed.scenario.link_state import NONE, Impairments, LinkState

NS = 1_000_000_000


def nanoseconds(seconds: float) -> int:
    """Whole nanoseconds: sums and remainders of them are exact."""
    return round(seconds * NS)


@dataclass(frozen=True, slots=True)
class RateSource(ABC):
    """A rate over time from ``begin`` (ns) on. Piecewise constant."""

    begin: int

    @property
    def period(self) -> int | None:
        """After how many ns it repeats itself; None if it does not."""
        return None

    @property
    def settled(self) -> int:
        """From when on it repeats itself, or stays as it is."""
        return self.begin

    @abstractmethod
    def state_at(self, time: int) -> tuple[int, int | None]:
        """The rate at ``time`` and until when it holds (None: for good)."""

    def intervals(self, start: int, stop: int | None) -> Iterator[tuple[int, int]]:
        """``start`` and its rate, then times and rates before ``stop``. Lazy."""
        rate, until = self.state_at(start)
        yield start, rate
        while until is not None and (stop is None or until < stop):
            time = until
            rate, until = self.state_at(time)
            yield time, rate

    def count(self, start: int, stop: int) -> int:  # noqa: ARG002
        """How many ``intervals`` there are, at most."""
        return 1

    def later(self, by: int) -> Self:
        """The same, but everything later by ``by`` ns."""
        return replace(self, begin=self.begin + by)


@dataclass(frozen=True, slots=True)
class Constant(RateSource):
    """One rate."""

    rate: int

    def state_at(self, time: int) -> tuple[int, int | None]:  # noqa: ARG002
        """See ``RateSource``."""
        return self.rate, None


@dataclass(frozen=True, slots=True)
class Ramp(RateSource):
    """From ``start`` to ``stop`` in ``steps`` equal steps, over ``over`` ns."""

    start: int
    stop: int
    over: int
    steps: int

    @property
    def settled(self) -> int:
        """When the ramp has reached its end."""
        return self.begin + self.over

    def state_at(self, time: int) -> tuple[int, int | None]:
        """See ``RateSource``."""
        i = self._step(time)
        if i >= self.steps:
            return self.stop, None
        return self.start + round((self.stop - self.start) * i / self.steps), self._due(i + 1)

    def count(self, start: int, stop: int) -> int:
        """See ``RateSource``."""
        return 1 + self._step(stop) - self._step(start)

    def _due(self, i: int) -> int:
        return self.begin + self.over * i // self.steps

    def _step(self, time: int) -> int:
        """How many steps are done at ``time``; exact, whatever the division left over."""
        i = min(self.steps, (time - self.begin) * self.steps // self.over)
        return i + 1 if i < self.steps and self._due(i + 1) <= time else i


@dataclass(frozen=True, slots=True)
class Trace(RateSource):
    """A recorded rate, again and again. ``times`` (ns) begin with 0, increase, and end before
    ``length``.

    ``begin`` is where in time its first point lies, which may be long before it rules.
    """

    times: tuple[int, ...]
    rates: tuple[int, ...]
    length: int

    @property
    def period(self) -> int:
        """Its length."""
        return self.length

    def state_at(self, time: int) -> tuple[int, int | None]:
        """See ``RateSource``."""
        phase = (time - self.begin) % self.length
        i = bisect_right(self.times, phase)
        end = self.times[i] if i < len(self.times) else self.length
        return self.rates[i - 1], time - phase + end

    def intervals(self, start: int, stop: int | None) -> Iterator[tuple[int, int]]:
        """See ``RateSource``."""
        phase = (start - self.begin) % self.length
        lap, i = start - phase, bisect_right(self.times, phase)
        yield start, self.rates[i - 1]
        while stop is None or lap < stop:
            last = len(self.times)
            if stop is not None and stop - lap < self.length:
                last = bisect_left(self.times, stop - lap)
            for j in range(i, last):
                yield lap + self.times[j], self.rates[j]
            lap, i = lap + self.length, 0

    def count(self, start: int, stop: int) -> int:
        """See ``RateSource``."""
        return 1 + self._passed(stop) - self._passed(start)

    def _passed(self, time: int) -> int:
        laps, phase = divmod(time - self.begin, self.length)
        return laps * len(self.times) + bisect_right(self.times, phase)


@dataclass(frozen=True, slots=True)
class LinkAttributes:
    """The attributes of a link direction besides its rate."""

    queue_bytes: int
    overhead_bytes: int = 0
    impairments: Impairments = NONE


@dataclass(frozen=True, slots=True)
class Segment:
    """From ``begin`` (ns) on a source's rate, or an outage: ``drop``: packets are lost."""

    begin: int
    source: RateSource
    line: LinkAttributes
    drop: bool | None = None
    """None: there is service."""

    def shape(self, rate: int) -> LinkState:
        """Return the state of the direction while its rate is ``rate``."""
        line = self.line
        return LinkState(
            rate, line.queue_bytes, bool(self.drop), line.overhead_bytes, line.impairments
        )


@dataclass(frozen=True, slots=True)
class ScheduleSummary:
    """Figures of a whole link history. Times in ns."""

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
    """``segments`` in turn; the first begins at 0, the last has no end and is no outage."""

    segments: tuple[Segment, ...]

    def state_at(self, time: int) -> tuple[LinkState, int | None]:
        """The shape at ``time`` and until when it holds at least (None: for good)."""
        i = bisect_right(self._begins, time) - 1
        segment = self.segments[i]
        rate, until = (0, None) if segment.drop is not None else segment.source.state_at(time)
        limits = [*self._begins[i + 1 : i + 2], *([] if until is None else [until])]
        return segment.shape(rate), min(limits, default=None)

    def changes(self, start: int, stop: int | None = None) -> Iterator[tuple[int, LinkState]]:
        """The shape at ``start``, then every change before ``stop``, with its time. Lazy."""
        for time, rate, segment in self._changes(start, stop):
            yield time, segment.shape(rate)

    def bits(self, start: int, stop: int) -> int:
        """Integral of the rate from ``start`` to ``stop``, in bit/s × ns. Exact."""
        total, since, before = 0, start, 0
        for time, rate, _ in self._intervals(start, stop) if start < stop else ():
            total += before * (time - since)
            since, before = time, rate
        return total + before * (stop - since)

    def lines(self, start: int, stop: int | None) -> list[LinkAttributes]:
        """Return the other attributes, in turn, from ``start`` to ``stop`` (None: for good)."""
        first = bisect_right(self._begins, start) - 1
        within = (s for s in self.segments[first:] if stop is None or s.begin < stop)
        return list(dict.fromkeys(segment.line for segment in within))

    @property
    def change_count_estimate(self) -> int:
        """About how many changes there are without repetitions: the cost of a look at them all."""
        schedule, end = self._shortened
        stops = [*schedule._begins[1:], end + 1]
        return sum(
            1 if segment.drop is not None else segment.source.count(segment.begin, stop)
            for segment, stop in zip(schedule.segments, stops, strict=True)
        )

    @cached_property
    def summary(self) -> ScheduleSummary:
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
        period = self.segments[-1].source.period
        ends = since is None or (period is not None and since > end - 2 * period)
        least = shortest if before else None
        return ScheduleSummary(lowest, highest, least, longest if ends else None)

    @cached_property
    def _begins(self) -> tuple[int, ...]:
        return tuple(segment.begin for segment in self.segments)

    def _intervals(self, start: int, stop: int | None) -> Iterator[tuple[int, int, Segment]]:
        """``start``, then whenever something may change before ``stop``: rate and segment."""
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
            for time, rate in segment.source.intervals(begin, until):
                yield time, rate, segment

    def _changes(self, start: int, stop: int | None) -> Iterator[tuple[int, int, Segment]]:
        """Yield the items of ``_intervals`` that differ from the one before."""
        rate_before, before = -1, self.segments[0]
        for time, rate, segment in self._intervals(start, stop):
            same = segment is before or segment.shape(0) == before.shape(0)
            if rate != rate_before or not same:
                yield time, rate, segment
                rate_before = rate
            before = segment

    @cached_property
    def _shortened(self) -> tuple[Schedule, int]:
        """The schedule without repetitions of which nothing new can be learnt, and when nothing new
        happens any more.

        Whole periods of a repeating source, but for the first three, are cut out of the time
        between two events, so that every neighbourhood of a change is still there.
        """
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
    return replace(segment, begin=segment.begin + by, source=segment.source.later(by))
