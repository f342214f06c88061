"""All nodes of a run on modelled links: how long what they send is on its way, what a host takes
for a message, and records of links in the form of real ones.

Found by ``testbed bench agreement --calibrate`` on one half of its runs, and judged by the other
half (docs/explanation/simulation.md). There all nodes share two processors, and what they wait for
each other is in it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from random import Random
from typing import Any, NamedTuple, Protocol

import numpy as np

from testbed.fabric.sim.clock import VirtualClock
from testbed.fabric.sim.flows import Flows
from testbed.fabric.sim.link_state import PACKET_BITS, LinkArrays, extra_s
from testbed.fabric.sim.tcp_model import SimFlow
from testbed.node import Message
from testbed.records.events import LinkChanged, LinkSample
from testbed.scenario.link_state import (
    FRAME_BYTES,
    SEGMENT_BYTES,
    LinkChange,
    LinkDirection,
    LinkState,
)
from testbed.scenario.model import Sim
from testbed.scenario.timeline import Timeline

_GREETING_BITS = 1_000_000_000


class _Fixed(NamedTuple):
    """Links of a route, the position of the tightest, their delay, what storing packets adds to the
    last and to the first packet, and the rate of the tightest."""

    hops: list[int]
    tight: int
    delay_s: float
    apart_s: float
    all_s: float
    rate: float


@dataclass(slots=True)
class Wait:
    """A node's wait for a message, or the last one it had. ``awaited``: by number, who is to send
    it; ``waiting``: who waits for this node, and knows that it waits itself."""

    awaited: Collection[int]
    waiting: Collection[int]
    heard_s: float
    """When it last heard of anybody, or began to wait."""
    over: bool = False


class Attached(Protocol):
    """The part of a node's endpoint that the network and other nodes use."""

    name: str
    wait: Wait | None
    groups: list[frozenset[int]]
    """The numbers of the members of each multicast group, as this node knows them."""

    def take(self, message: Message, size: int, sent_s: float, first_s: float) -> None:
        """Receive a message; when it was sent and began to arrive, on the clock."""
        ...

    def lose(self, number: int, name: str) -> None:
        """Note that a node has left without a word."""
        ...


@dataclass(frozen=True, slots=True)
class Costs:
    """Processor seconds that a host takes to send, receive and compress one message."""

    send_s: float = 0.0
    receive_s: float = 0.0
    compress_s: float = 0.0
    """For everything that is made sparse by itself …"""
    element_s: float = 0.0
    """… and for each of its elements."""


class VirtualNetwork:
    """The links as ``initial`` says until ``start``; from then on as ``changes`` (by time after t0)
    say.

    ``racks``: members by name. ``elsewhere``: nodes whose uplinks are shaped one hop on.
    ``bundle``: packets of full size that hosts hand down at a time. ``seed``: of what chance
    decides.
    """

    def __init__(
        self,
        clock: VirtualClock,
        initial: Mapping[LinkDirection, LinkState],
        *,
        changes: Iterable[LinkChange] = (),
        racks: Mapping[str, Sequence[str]] | None = None,
        elsewhere: Collection[str] = (),
        bundle: int = 1,
        seed: int = 0,
        costs: Costs = Costs(),
    ) -> None:
        self.clock, self.t0_s, self.costs = clock, 0.0, costs
        self._initial = {end: shape for end, shape in initial.items() if not shape.rate_bits}
        """Outages that begin at t0: until then nodes greet each other."""
        greeting = dict.fromkeys(self._initial, LinkState(_GREETING_BITS, _GREETING_BITS))
        self.links = LinkArrays({**initial, **greeting}, racks or {}, elsewhere)
        self.flows = Flows(clock, self.links, seed, bundle)
        self.endpoints: dict[int, Attached] = {}
        self.at_start: list[Callable[[], None]] = []
        """Actions to be done at t0."""
        self.on_change: Callable[[LinkChange], None] = lambda _: None
        """Is told of every change."""
        self._changes = changes
        self._random = Random(f"{seed}/links")
        self._known: dict[tuple[int, int, float], _Fixed] = {}

    def start(self) -> None:
        """This instant is t0."""
        self.t0_s = self.clock.now
        for end, shape in self._initial.items():
            self.flows.change(end, shape)
        for action in self.at_start:
            action()
        changes = iter(self._changes)
        self._follow(changes, next(changes, None))

    def passage(self, flow: SimFlow) -> tuple[float, float]:
        """When the first packet and all of ``flow`` arrive, whose last bit leaves now.

        Switches store packets: every link but the tightest adds one packet's time.
        """
        hops, tight, delay_s, apart_s, all_s, rate = self._fixed(flow)
        if self.links.impaired:
            delay_s += self._jitter_s(flow, hops, rate)
        behind = flow.begun_bits[tight] + flow.bits - float(self.links.served_bits[hops[tight]])
        carried_s = self.clock.now + max(0.0, behind) / rate
        arrived_s = carried_s + apart_s + delay_s + flow.late_s
        return min(flow.start_s + flow.waited_s + all_s + delay_s, arrived_s), arrived_s

    def known_wait(self, number: int, peer: int) -> Wait | None:
        """Return the wait of ``peer`` as node ``number`` knows it; None: it knows of none.

        A node that waits lets those know who wait for it, unless it is paused or its link is down.
        """
        near, far = self.endpoints[number], self.endpoints.get(peer)
        if far is None or far.wait is None or number not in far.wait.waiting:
            return None
        reaches = self.links.passable(self.links.route(far.name, near.name))
        return far.wait if reaches and not self.clock.paused(far.name) else None

    def heard_s(self, number: int, peer: int) -> float:
        """Return when ``peer``, or whoever it waits for in turn, last gave a sign of life, as far
        as node ``number`` knows; -inf: it knows nothing."""
        latest_s, passed, ahead = -inf, {number}, [(number, peer)]
        while ahead:
            near, far = ahead.pop()
            if far in passed or far not in self.endpoints:
                continue
            if self._takes_in(near, far):
                return self.clock.now
            if (wait := self.known_wait(near, far)) is not None:
                passed.add(far)
                latest_s = max(latest_s, wait.heard_s)
                ahead += [] if wait.over else [(far, other) for other in wait.awaited]
        return latest_s

    def _takes_in(self, number: int, peer: int) -> bool:
        """Return whether ``peer`` is receiving a message of node ``number`` just now."""
        near, far = self.endpoints[number].name, self.endpoints[peer].name
        return not self.clock.paused(far) and self.flows.carries(self.links.route(near, far))

    def _fixed(self, flow: SimFlow) -> _Fixed:
        """Return what is the same for all flows of that size on a route, until a link changes."""
        key = (id(flow.route), flow.tightest, flow.bits)  # the links keep routes
        known = self._known.get(key)
        if known is None:
            links = self.links
            hops = [hop for hop in flow.route.forward if hop != links.null_link]
            rates = [float(links.capacity[hop]) or np.inf for hop in hops]
            full = min(flow.bits, PACKET_BITS)
            last = (flow.bits - 8) % PACKET_BITS + 8
            tight = hops.index(flow.tightest) if flow.tightest in hops else rates.index(min(rates))
            before_s = sum(full / rate for rate in rates[:tight])
            apart_s = before_s + sum(last / rate for rate in rates[tight + 1 :])
            all_s = sum(full / rate for rate in rates)
            known = self._known[key] = _Fixed(
                hops, tight, links.one_way_s(hops), apart_s, all_s, rates[tight]
            )
        return known

    def _jitter_s(self, flow: SimFlow, hops: Sequence[int], rate: float) -> float:
        total = 0.0
        for hop in hops:
            if (impairments := self.links.impaired.get(hop)) is not None:
                near = min(flow.bits, 2e-9 * impairments.jitter_ns * rate) / (8.0 * SEGMENT_BYTES)
                total += extra_s(impairments, near, self._random)
        return total

    def _follow(self, changes: Iterator[LinkChange], change: LinkChange | None) -> None:
        """Wait until ``change`` is due, and make it with all others of that instant."""
        if change is None:
            return

        def apply() -> None:
            due: LinkChange | None = change
            while due is not None and due.time_s == change.time_s:
                self.flows.change(due.end, due.shape)
                self._known.clear()
                self.on_change(due)
                due = next(changes, None)
            self._follow(changes, due)

        self.clock.at(self.t0_s + change.time_s, apply)


COSTS = Costs(send_s=600e-6, receive_s=1000e-6)
FLOAT_BITS = 32


def costs_of(given: Sim) -> Costs:
    """Return the costs that a scenario gives for its hosts; ``COSTS`` where it gives none."""
    return Costs(
        COSTS.send_s if given.send is None else float(given.send),
        COSTS.receive_s if given.receive is None else float(given.receive),
        float(given.compress),
        FLOAT_BITS / given.compress_rate if given.compress_rate else 0.0,
    )


EVERY_S = 0.1
SAMPLED_ENDS = 64
"""Most link directions that are all sampled all the time. Of larger networks only racks, servers
and what changes are, and the rest as a whole."""


_LEAST_S = 1e-9
"""A timeline has whole nanoseconds: of less than one it asks for nothing."""


class _Mark(NamedTuple):
    """A direction's counters at one instant, in seconds after t0, bits and packets."""

    now_s: float
    carried_bits: float
    delivered_bits: float
    drops: int
    waits: bool
    """Something is queued."""


class SimSampler:
    """Writes a sample of every direction in ``often`` every 100 ms, of others at the end."""

    def __init__(
        self,
        network: VirtualNetwork,
        timeline: Timeline,
        often: Iterable[LinkDirection],
        write: Callable[[list[dict[str, Any]]], None],
    ) -> None:
        self._network, self._timeline, self._write = network, timeline, write
        self._often = list(often)
        sampled = set(self._often)
        self._rest = [end for end in network.links.ends if end not in sampled]
        self._before: dict[LinkDirection, _Mark] = {}

    def start(self) -> None:
        """This instant is t0."""
        for end in self._network.links.ends:
            self._mark(end)
        self._later()

    def changed(self, change: LinkChange) -> None:
        """A link has changed, on time."""
        impairments = change.shape.impairments
        record = LinkChanged(
            change.end.link,
            change.end.direction,
            change.time_s,
            change.time_s,
            change.shape.rate_bits,
            change.shape.queue_bytes,
            impairments.to_json() if impairments else None,
        )
        self._write([record.to_json()])

    def finish(self) -> None:
        """Write what is not written yet."""
        if self._before:  # else it failed before t0
            self._look([*self._often, *self._rest])

    def _later(self) -> None:
        def look() -> None:
            self._look(self._often)
            self._later()

        self._network.clock.at(self._network.clock.now + EVERY_S, look)

    def _look(self, ends: list[LinkDirection]) -> None:
        self._network.flows.advance()
        samples = [self._sample(end) for end in ends]
        written = (sample for sample in samples if sample.to_s - sample.from_s >= _LEAST_S)
        self._write([sample.to_json() for sample in written])

    def _sample(self, end: LinkDirection) -> LinkSample:
        links = self._network.links
        number = links.number[end]
        before = self._before[end]
        largest = float(links.largest_bits[number])
        now = self._mark(end)
        return LinkSample(
            link=end.link,
            direction=end.direction,
            from_s=before.now_s,
            to_s=now.now_s,
            asked_bits=self._timeline.bits(end, before.now_s, now.now_s),
            delivered_bits=round(now.delivered_bits - before.delivered_bits),
            packets=round((now.carried_bits - before.carried_bits) / (8 * FRAME_BYTES)),
            backlog_bytes=round(largest / 8),
            busy=before.waits and now.waits,
            drops=now.drops - before.drops,
        )

    def _mark(self, end: LinkDirection) -> _Mark:
        links = self._network.links
        number = links.number[end]
        links.largest_bits[number] = min(links.queued_bits[number], links.queue_bits[number])
        mark = _Mark(
            self._network.clock.now - self._network.t0_s,
            float(links.carried_bits[number]),
            float(links.delivered_bits[number]),
            int(links.drops[number]),
            bool(links.queued_bits[number] > 0),
        )
        self._before[end] = mark
        return mark
