"""``testbed.node.Node`` on a virtual clock, roles from preparation to end, and cross traffic on
modelled links.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf
from random import Random
from typing import Any, Literal, TypeVar

from testbed.errors import MachineError
from testbed.fabric.sim.clock import Activity, Countdown, VirtualQueue
from testbed.fabric.sim.endpoint import VirtualEndpoint
from testbed.fabric.sim.link_state import PACKET_BITS
from testbed.fabric.sim.network import VirtualNetwork
from testbed.fabric.sim.tcp_model import SimFlow, WindowMemory
from testbed.node import CollectiveGroup
from testbed.scenario import node_timeline
from testbed.scenario.link_state import FRAME_BYTES, SEGMENT_BYTES, LinkDirection
from testbed.scenario.node_timeline import Burst
from testbed.training.roles import Role

T = TypeVar("T")


class VirtualNode:
    """A role's whole world, simulated. ``records`` holds what it recorded, unless ``record`` takes
    it.

    ``seed`` is the run's. ``measured``: computation takes as long as it takes here; else none,
    beside its pace.
    """

    def __init__(
        self,
        endpoint: VirtualEndpoint,
        seed: int,
        record: Callable[[dict[str, object]], None] | None = None,
        *,
        measured: bool = False,
        recording: bool = True,
    ) -> None:
        self.name, self.endpoint = endpoint.name, endpoint
        self.rng = Random(f"{seed}/{self.name}")
        self.records: list[dict[str, object]] = []
        self.record = record or self.records.append
        self.recording = recording
        self._network, self._clock = endpoint.network, endpoint.network.clock
        self._measured = measured

    def now(self) -> float:
        """Seconds since t0."""
        return self._clock.now - self._network.t0_s

    def cpu(self) -> float:
        """Virtual time: what is not computation takes none."""
        return self.now()

    def sleep_until(self, time_s: float) -> None:
        """Let virtual time pass."""
        self._clock.sleep_until(time_s + self._network.t0_s)

    def compressed(self, pieces: int, elements: int) -> None:
        """Let pass what the scenario says of it."""
        costs = self._network.costs
        took_s = pieces * costs.compress_s + elements * costs.element_s
        self._clock.sleep_until(self._clock.now + took_s)

    def spawn(self, activity: Callable[[], None]) -> Activity:
        """Another activity on the same clock."""
        return self._clock.spawn(f"{self.name}'s activity", activity, self.name)

    def background(self, work: Callable[[], T]) -> T:
        """Nothing else happens meanwhile; the clock goes on afterwards, if the time is measured."""
        before_s = time.perf_counter()
        result = work()
        if self._measured:
            self._clock.sleep_until(self._clock.now + time.perf_counter() - before_s)
        return result

    def queue(self) -> VirtualQueue[T]:
        """A queue on the same clock."""
        return VirtualQueue(self._clock, f"{self.name}'s queue")

    def group(self, members: Sequence[int], patience_s: float, timeout_s: float) -> CollectiveGroup:
        """A library's sockets know nothing of virtual time."""
        del members, patience_s, timeout_s
        raise MachineError(
            "gloo needs a real network, and there is none in virtual time",
            fix="Take --fabric netns or docker, or the algorithm 'ring'",
        )

    def asked_rate(self, link: str, direction: Literal["up", "down"]) -> float | None:
        """Rate asked of any link's direction, bit/s."""
        links = self._network.links
        return float(links.asked_bits[links.number[LinkDirection(link, direction)]])


def play(network: VirtualNetwork, roles: Mapping[str, Role]) -> dict[str, Any]:
    """Prepare all ``roles``, start them together, and return their summaries by name.

    t0 is the instant at which the last one is ready. Raises what the first failing role raised.
    """
    unready = Countdown(network.clock, len(roles), "the start of the run")

    def body(role: Role) -> Callable[[], dict[str, Any]]:
        def act() -> dict[str, Any]:
            role.prepare()
            if unready.left == 1:
                network.start()
            unready.count_down()
            unready.wait()
            return role.run()

        return act

    bodies = {name: body(role) for name, role in roles.items()}
    return network.clock.run(bodies, owners={name: name for name in roles})


_MANY_BITS = 1e15
"""A burst is ended by the clock before it has sent so much."""
_TCP_PAYLOAD = SEGMENT_BYTES / FRAME_BYTES
_DATAGRAM_PAYLOAD, _DATAGRAM_BITS = 1400, 8 * 1442
"""Payload bytes and frame bits of a datagram of iperf3 as real fabrics start it."""
_UDP_PAYLOAD = 8 * _DATAGRAM_PAYLOAD / _DATAGRAM_BITS


class Bursts:
    """One flow of the scenario. ``say`` gets a record of every burst that is over."""

    def __init__(
        self,
        network: VirtualNetwork,
        flow: node_timeline.Flow,
        say: Callable[[dict[str, Any]], None],
    ) -> None:
        self.flow, self._network, self._say = flow, network, say
        self._route = network.links.route(flow.source, flow.sink)
        self._sending: list[SimFlow] = []
        self._burst: Burst | None = None
        self._began_s = 0.0
        self._away: set[str] = set()

    def start(self) -> None:
        """This instant is t0."""
        self._next(self.flow.bursts())

    def leave(self, node: str) -> None:
        """A node is paused or killed: what it sends or is sent ends."""
        if node in (self.flow.source, self.flow.sink):
            self._away.add(node)
            self._stop()

    def join(self, node: str) -> None:
        """It is back, in the middle of whatever the flow is at."""
        if node in self._away:
            self._away.remove(node)
            if self._burst is not None:
                self._send()

    def finish(self) -> None:
        """The run is over."""
        self._stop()
        self._tell()

    def _next(self, bursts: Iterator[Burst]) -> None:
        burst = next(bursts, None)
        if burst is None:
            return
        clock, t0_s = self._network.clock, self._network.t0_s

        def begin() -> None:
            self._burst, self._sent_bits, self._asked_bits, self._lost = burst, 0.0, 0.0, 0
            self._send()

        def end() -> None:
            self._stop()
            self._tell()
            self._next(bursts)

        clock.at(t0_s + burst.start_s, begin)
        if burst.stop_s < inf:
            clock.at(t0_s + burst.stop_s, end)

    def _send(self) -> None:
        if self._away or self._burst is None:
            return
        self._began_s, flow = self._network.clock.now, self.flow
        for _ in range(flow.streams):
            udp = flow.kind == "udp"
            self._sending.append(
                SimFlow(
                    self._route,
                    _MANY_BITS,
                    lambda _: None,
                    None if udp else WindowMemory(),
                    (flow.rate_bits or 0) / flow.streams if udp else inf,
                    traffic=True,
                    packet_bits=_DATAGRAM_BITS if udp else PACKET_BITS,
                )
            )
            self._network.flows.begin(self._sending[-1])

    def _stop(self) -> None:
        self._sent_bits += sum(self._network.flows.end(flow) for flow in self._sending)
        self._lost += sum(flow.lost for flow in self._sending)
        if self._sending:
            passed_s = self._network.clock.now - self._began_s
            self._asked_bits += (self.flow.rate_bits or 0) * passed_s
        self._sending.clear()

    def _tell(self) -> None:
        burst, self._burst = self._burst, None
        if burst is None:
            return
        stop_s = min(burst.stop_s, self._network.clock.now - self._network.t0_s)
        udp, about = self.flow.kind == "udp", {"flow": self.flow.name, "due_s": burst.start_s}
        moved = round(self._sent_bits * (_UDP_PAYLOAD if udp else _TCP_PAYLOAD) / 8)
        packets = round(self._sent_bits / _DATAGRAM_BITS) if udp else 0
        missing_bits = max(0.0, self._asked_bits - self._sent_bits) if udp else 0.0
        refused, lost = round(missing_bits / _DATAGRAM_BITS), self._lost
        sent = {"bytes": moved + refused * _DATAGRAM_PAYLOAD, "packets": packets + refused}
        self._say({"kind": "sent", **about, "start_s": burst.start_s, "stop_s": stop_s, **sent})
        arrived = {"bytes": moved - lost * _DATAGRAM_PAYLOAD, "packets": packets - lost}
        received = {**arrived, "lost": refused + lost}
        self._say({"kind": "received", **about, **received, "complete": True})

    _sent_bits = _asked_bits = 0.0
    _lost = 0
    """Datagrams of the burst that links have lost at random."""


def bursts(
    network: VirtualNetwork,
    flows: Sequence[node_timeline.Flow],
    say: Callable[[dict[str, Any]], None],
) -> list[Bursts]:
    """The cross traffic of a scenario; each begins at t0."""
    traffic = [Bursts(network, flow, say) for flow in flows]
    network.at_start += [each.start for each in traffic]
    return traffic
