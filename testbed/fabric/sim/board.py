"""The state of every modelled link direction: arrays by a number that each has."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from testbed.fabric.sim.shares import Floats, Indices
from testbed.scenario.impairments import NONE, Impairments
from testbed.scenario.route import route
from testbed.scenario.shape import FRAME_BYTES, End, Shape

PACKET_BITS = 8.0 * FRAME_BYTES
"""Of a packet of full size."""

HOPS = 4
"""The longest way between two nodes: the one's link, its rack's, the other rack's, the other node's."""


class Way(NamedTuple):
    """The link directions from one node to another, and back, as numbers; filled up with the free one."""

    there: tuple[int, ...]
    back: tuple[int, ...]


class Board:
    """Link directions by number; the last number is a link that is no link: free, and never full.

    ``capacity`` bit/s of full frames, ``queue_bits``, ``delay_s``: as asked now. ``asked_bits``: the rate as the
    scenario writes it. ``carried_bits``, ``drops`` (packets): since t0. ``own``: uplinks in their sender's stack, which
    sees how full they are; not so those of ``elsewhere``.
    """

    def __init__(
        self,
        initial: Mapping[End, Shape],
        racks: Mapping[str, Sequence[str]],
        elsewhere: Collection[str] = (),
    ) -> None:
        self.ends = list(initial)
        self.number = {end: number for number, end in enumerate(self.ends)}
        self.free = len(self.ends)
        many = self.free + 1
        self.capacity: Floats = np.full(many, np.inf)
        self.finite: Floats = np.zeros(many)
        """``capacity``, but 0 of the link that is none."""
        self.served_bits: Floats = np.zeros(many)
        """The integral of ``finite`` over time."""
        self.asked_bits: Floats = np.zeros(many)
        self.queue_bits: Floats = np.full(many, np.inf)
        self.delay_s: Floats = np.zeros(many)
        self.dropping: NDArray[np.bool_] = np.zeros(many, np.bool_)
        others = {*racks, *elsewhere}
        self.own: NDArray[np.bool_] = np.array(
            [*(end.direction == "up" and end.link not in others for end in self.ends), False]
        )
        self.carried_bits: Floats = np.zeros(many)
        self.queued_bits: Floats = np.zeros(many)
        self.largest_bits: Floats = np.zeros(many)
        self.drops: Indices = np.zeros(many, np.int64)
        self.impaired: dict[int, Impairments] = {}
        """Directions that do more to packets than delay them evenly."""
        self.seen: set[Impairments] = set()
        """All that were asked for at any time."""
        self._rack = {node: rack for rack, members in racks.items() for node in members}
        self._ways: dict[tuple[str, str], Way] = {}
        for end, shape in initial.items():
            self.set(end, shape)

    def set(self, end: End, shape: Shape) -> int:
        """From now on ``end`` is as ``shape`` says; returns its number."""
        number, asked = self.number[end], shape.impairments
        self.asked_bits[number] = shape.rate_bits
        self.capacity[number] = shape.rate_bits * FRAME_BYTES / (FRAME_BYTES + shape.overhead_bytes)
        self.finite[number] = self.capacity[number]
        self.queue_bits[number] = 8.0 * shape.queue_bytes
        self.delay_s[number] = asked.delay_ns / 1e9
        self.dropping[number] = shape.drop and not shape.rate_bits
        if asked != NONE and asked != Impairments(delay_ns=asked.delay_ns):
            self.impaired[number] = asked
            self.seen.add(asked)
        else:
            self.impaired.pop(number, None)
        return number

    def way(self, source: str, sink: str) -> Way:
        """The way from node ``source`` to node ``sink``."""
        if (source, sink) not in self._ways:
            there, back = self._hops(source, sink), self._hops(sink, source)
            self._ways[source, sink] = Way(there, back)
        return self._ways[source, sink]

    def tree(self, ways: Iterable[Way]) -> Way:
        """Every link of ``ways`` from one node to several, each once, the sender's first; no way back."""
        links = dict.fromkeys(hop for way in ways for hop in way.there if hop != self.free)
        nothing = (self.free,) * HOPS
        return Way((*links, *nothing[len(links) :]), nothing)

    def wait_s(self, hops: Indices) -> Floats:
        """How long the queues along ``hops`` (flows, hops) are, added up."""
        queued = np.minimum(self.queued_bits[hops], self.queue_bits[hops])
        capacity = self.capacity[hops]
        wait = np.divide(queued, capacity, out=np.zeros_like(queued), where=capacity > 0)
        total: Floats = wait.sum(1)
        return total

    def round_trip_s(self, way: Way) -> float:
        """What the links of ``way`` take there and back, for one packet, just now."""
        both = [*way.there, *way.back]
        return self.one_way_s(both) + float(self.wait_s(np.array([both]))[0])

    def narrowest_bits(self, hops: Indices) -> Floats:
        """The capacity in bit/s of the narrowest link along ``hops`` (flows, hops), and 1 in an outage."""
        least: Floats = np.maximum(self.capacity[hops].min(1), 1.0)
        return least

    def one_way_s(self, hops: Sequence[int]) -> float:
        """The constant delay along ``hops``."""
        return float(self.delay_s[list(hops)].sum())

    def _hops(self, source: str, sink: str) -> tuple[int, ...]:
        numbers = [self.number[end] for end in route(self._rack, source, sink)]
        return (*numbers, *[self.free] * (HOPS - len(numbers)))
