"""Link states that the scenario requested, and the links and delays on a path: what records are
held against. Pure.

It comes from the scenario's own timeline, not from what the agent says that it was told: a change
that was lost on its way to the agent is missed here.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from math import inf

from testbed.records.intervals import IntervalSet
from testbed.scenario.link_state import Impairments, LinkChange, LinkDirection, LinkState, route
from testbed.scenario.timeline import Timeline


class RequestedLinks:
    """The shapes of every link direction from t0 until a time, in wall seconds after t0. Shapes
    that recur are kept once."""

    def __init__(
        self, initial: Mapping[LinkDirection, LinkState], changes: Iterable[LinkChange]
    ) -> None:
        self._known: dict[LinkState, int] = {}
        self._every: list[LinkState] = []
        self._times = {end: array("d", [0.0]) for end in initial}
        self._shapes = {end: array("l", [self._kept(shape)]) for end, shape in initial.items()}
        for change in changes:
            self._times[change.end].append(change.time_s)
            self._shapes[change.end].append(self._kept(change.shape))

    @classmethod
    def of(cls, timeline: Timeline, until_s: float) -> RequestedLinks:
        """Return the requests of ``timeline`` before ``until_s``."""
        return cls(timeline.initial, timeline.changes(0.0, max(until_s, 0.0)))

    def __contains__(self, end: LinkDirection) -> bool:
        return end in self._shapes

    @property
    def ends(self) -> list[LinkDirection]:
        """All link directions."""
        return list(self._shapes)

    def initial(self, end: LinkDirection) -> LinkState:
        """Return the state of the direction at t0."""
        return self._every[self._shapes[end][0]]

    def changes(self, end: LinkDirection) -> Iterator[tuple[float, LinkState]]:
        """When the direction changes, and to what."""
        return islice(zip(self._times[end], self.shapes(end), strict=True), 1, None)

    def shapes(self, end: LinkDirection) -> Iterator[LinkState]:
        """Every state that the direction has at some time; none if it is not shaped."""
        return (self._every[number] for number in self._shapes.get(end, ()))

    def outages(self, end: LinkDirection) -> Iterator[tuple[float, float]]:
        """From when to when nothing was asked for; the last one may have no end."""
        times = self._times.get(end, array("d"))
        until = chain(islice(times, 1, None), [inf])
        for from_s, shape, to_s in zip(times, self.shapes(end), until, strict=False):
            if not shape.rate_bits:
                yield from_s, to_s

    def _kept(self, shape: LinkState) -> int:
        """The number under which ``shape`` is kept."""
        number = self._known.setdefault(shape, len(self._every))
        if number == len(self._every):
            self._every.append(shape)
        return number


_TAIL = 4
"""How many times the jitter the tails of netem's distributions reach, all but the uniform one's."""


@dataclass(frozen=True, slots=True)
class _Link:
    """The demands of one direction on packets, over all of a run."""

    low_s: float
    high_s: float
    delay_s: float
    random: bool
    overheads: frozenset[int]
    outages: IntervalSet


class PathModel:
    """``rack_of``: each node's rack, for those that are in one. Node None: the switch."""

    def __init__(self, requested: RequestedLinks, rack_of: Mapping[str, str]) -> None:
        self._rack_of = rack_of
        self._links = {end: _link(requested, end) for end in requested.ends}

    def path(self, source: str | None, sink: str | None) -> list[LinkDirection]:
        """The link directions that a packet passes, in order."""
        return route(self._rack_of, source, sink)

    def racks_on(self, source: str, sink: str) -> bool:
        """Return whether a rack's link is on the route."""
        return self._rack_of.get(source) != self._rack_of.get(sink)

    def round_trip_s(self, node: str, peer: str | None) -> tuple[float, float]:
        """The least and the largest time that the delays on the way there and back may come to at
        best.

        Where delays change, at their least and at their largest: a minimum over a run is between
        them.
        """
        there_and_back = [*self.path(node, peer), *self.path(peer, node)]
        links = list(self._of(there_and_back))
        return sum(link.low_s for link in links), sum(link.high_s for link in links)

    def delay_s(self, end: LinkDirection) -> float:
        """The delay of a direction whose delay is constant; the largest, if it is not."""
        return self._links[end].delay_s if end in self._links else 0.0

    def random(self, ends: Iterable[LinkDirection]) -> bool:
        """Return whether directions at some time lose, copy or shuffle packets, or vary delay."""
        return any(link.random for link in self._of(ends))

    def outage(self, ends: Iterable[LinkDirection], start_s: float, stop_s: float) -> bool:
        """Return whether a direction was asked for nothing at some time between the two."""
        return any(link.outages.overlaps(start_s, stop_s) for link in self._of(ends))

    def overhead(self, ends: Iterable[LinkDirection]) -> int | None:
        """Bytes charged per packet on all directions; None where they differ or change."""
        overheads = frozenset[int]().union(*(link.overheads for link in self._of(ends)))
        return None if len(overheads) > 1 else next(iter(overheads), 0)

    def _of(self, ends: Iterable[LinkDirection]) -> Iterator[_Link]:
        return (self._links[end] for end in ends if end in self._links)


def _link(requested: RequestedLinks, end: LinkDirection) -> _Link:
    impaired = {shape.impairments for shape in requested.shapes(end)}
    spans = [_span_ns(each) for each in impaired]
    delays = {each.delay_ns for each in impaired}
    return _Link(
        low_s=min(low for low, _ in spans) / 1e9,
        high_s=max(high for _, high in spans) / 1e9,
        delay_s=max(delays) / 1e9,
        random=len(delays) > 1 or any(map(_random, impaired)),
        overheads=frozenset(shape.overhead_bytes for shape in requested.shapes(end)),
        outages=IntervalSet(requested.outages(end)),
    )


def _span_ns(impairments: Impairments) -> tuple[int, int]:
    """The least delay that a packet may have, and what the least of many is not above."""
    widest = impairments.jitter_ns * (1 if impairments.distribution == "uniform" else _TAIL)
    low = 0 if impairments.reorder else max(0, impairments.delay_ns - widest)
    return low, impairments.delay_ns + (impairments.slot.longest_ns if impairments.slot else 0)


def _random(impairments: Impairments) -> bool:
    return bool(
        impairments.jitter_ns
        or impairments.loss
        or impairments.reorder
        or impairments.duplicate
        or impairments.corrupt
        or impairments.slot
    )
