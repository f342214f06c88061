"""The history of one link direction: a base rate, what overrides it, and outages over that."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from testbed.scenario.shape import Shape
from testbed.scenario.sources import Source


@dataclass(frozen=True, slots=True)
class Outage:
    """No service from ``begin`` to ``end`` (ns)."""

    begin: int
    end: int
    drop: bool


@dataclass(frozen=True)
class Schedule:
    """``sources[i]`` rules from ``begins[i]`` (ns) until the next begins; ``begins[0]`` is 0."""

    queue_bytes: int
    begins: tuple[int, ...]
    sources: tuple[Source, ...]
    outages: tuple[Outage, ...] = ()

    def asked(self, time: int) -> int:
        """The rate at ``time``, outage or not."""
        return self.sources[bisect_right(self.begins, time) - 1].piece(time)[0]

    def piece(self, time: int) -> tuple[Shape, int | None]:
        """The shape at ``time`` and until when it holds at least (None: for good)."""
        at = bisect_right(self.begins, time)
        rate, until = self.sources[at - 1].piece(time)
        following = bisect_right(self._edges, time)
        later = self._edges[following : following + 1] + self.begins[at : at + 1]
        limits = (*later, until) if until is not None else later
        drops = [outage.drop for outage in self.outages if outage.begin <= time < outage.end]
        shape = Shape(0 if drops else rate, self.queue_bytes, bool(drops) and drops[-1])
        return shape, min(limits, default=None)

    def changes(self, start: int, stop: int | None = None) -> Iterator[tuple[int, Shape]]:
        """The shape at ``start``, then every change before ``stop``, with its time. Lazy."""
        time: int | None = start
        held: Shape | None = None
        while time is not None and (stop is None or time < stop):
            shape, until = self.piece(time)
            if shape != held:
                yield time, shape
            held, time = shape, until

    def bits(self, start: int, stop: int) -> int:
        """Integral of the rate from ``start`` to ``stop``, in bit/s × ns. Exact."""
        total, time = 0, start
        while time < stop:
            shape, until = self.piece(time)
            end = stop if until is None else min(until, stop)
            total += shape.rate_bits * (end - time)
            time = end
        return total

    @cached_property
    def condensed(self) -> tuple[tuple[int, Shape], ...]:
        """All changes, with repetitions left out of which nothing new can be learnt.

        Whole periods of a looping source, but for the first three, are cut out of the time between
        two events, so that what remains ends, and every neighbourhood of a change is still there.
        """
        schedule, end = self._shortened
        return tuple(schedule.changes(0, end + 1))

    def longest_outage(self) -> int | None:
        """The longest time without service in ns; 0 if there is none, None if one never ends."""
        longest, since = 0, None
        for time, shape in self.condensed:
            if not shape.rate_bits:
                since = time if since is None else since
            elif since is not None:
                longest, since = max(longest, time - since), None
        if since is None:
            return longest
        period, end = self.sources[-1].period, self._shortened[1]
        cut_short = period is not None and since > end - 2 * period  # seen whole a period earlier
        return longest if cut_short else None

    @cached_property
    def _edges(self) -> tuple[int, ...]:
        edges = {edge for outage in self.outages for edge in (outage.begin, outage.end)}
        return tuple(sorted(edges))

    @cached_property
    def _shortened(self) -> tuple[Schedule, int]:
        marks = sorted({*self.begins, *self._edges})
        cut, moved = 0, {}
        for mark, following in zip(marks, [*marks[1:], None], strict=True):
            moved[mark] = mark - cut
            period = self._source(mark).period
            if period and following is not None:
                cut += max(0, (following - mark) // period - 3) * period
        last = self._source(marks[-1])
        tail = 3 * last.period if last.period else max(0, last.settled - marks[-1])
        return self._moved(moved), marks[-1] - cut + tail

    def _source(self, time: int) -> Source:
        return self.sources[bisect_right(self.begins, time) - 1]

    def _moved(self, moved: dict[int, int]) -> Schedule:
        outages = [Outage(moved[o.begin], moved[o.end], o.drop) for o in self.outages]
        sources = [
            _shifted(source, moved[begin] - begin)
            for begin, source in zip(self.begins, self.sources, strict=True)
        ]
        begins = tuple(moved[begin] for begin in self.begins)
        return replace(self, begins=begins, sources=tuple(sources), outages=tuple(outages))


def _shifted(source: Source, by: int) -> Source:
    """``source`` that does everything later by ``by`` ns."""
    if not by or not hasattr(source, "begin"):
        return source
    return replace(source, begin=source.begin + by)  # type: ignore[type-var]
