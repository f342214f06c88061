"""``testbed.node.Node`` on a virtual clock and modelled links."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from random import Random
from typing import TypeVar

from testbed.errors import NodeLost
from testbed.exchange.frame import HEADER_BYTES
from testbed.fabric.sim.clock import Activity, VirtualClock
from testbed.fabric.sim.link import LinkModel, Pipe, carry
from testbed.fabric.sim.queue import VirtualQueue
from testbed.node import Message

T = TypeVar("T")


class VirtualNetwork:
    """All nodes on one switch, by peer number. ``t0_s``: the clock's time that nodes count from."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock, self.t0_s = clock, 0.0
        self.endpoints: dict[int, VirtualEndpoint] = {}

    def join(self, number: int, name: str, link: LinkModel) -> VirtualEndpoint:
        """A place on the network for peer ``number``."""
        endpoint = VirtualEndpoint(self, name, link)
        self.endpoints[number] = endpoint
        return endpoint


class VirtualEndpoint:
    """``testbed.node.Endpoint``. What is sent is copied, as a network would: buffers can be used again."""

    def __init__(self, network: VirtualNetwork, name: str, link: LinkModel) -> None:
        self.name, self.link = name, link
        self.network, self._clock = network, network.clock
        self._up, self._down = Pipe(link.up_bits), Pipe(link.down_bits)
        self._inbox: VirtualQueue[Message] = VirtualQueue(network.clock, f"{name}'s inbox")

    def send(self, destinations: Iterable[int], message: Message) -> int:
        """To one destination after the other; returns when the last byte has left the uplink."""
        frame_bytes, now_s = self.frame_bytes(message), self._clock.now
        sent_s = now_s - self.network.t0_s
        message = replace(message, body=bytes(message.body), sent_s=sent_s)
        left_s, sent = now_s, 0
        for number in destinations:
            left_s = self._pass(self._peer(number), message, now_s, frame_bytes)
            sent += frame_bytes
        self._clock.sleep_until(left_s)
        return sent

    def receive(self, timeout: float) -> Message:
        """The next message. Raises NodeLost when none has come within ``timeout`` of virtual time."""
        try:
            return self._inbox.get(timeout)
        except TimeoutError:
            others = (e.name for e in self.network.endpoints.values() if e is not self)
            raise NodeLost(
                ", ".join(others), None, f"nothing was received for {timeout:g} s"
            ) from None

    def frame_bytes(self, message: Message) -> int:
        """Header and body."""
        return HEADER_BYTES + len(memoryview(message.body).cast("B"))

    def _pass(self, peer: VirtualEndpoint, message: Message, now_s: float, size: int) -> float:
        latency_s = self.link.latency_s + peer.link.latency_s
        passage = carry(self._up, peer._down, latency_s, now_s, size)
        t0_s = self.network.t0_s
        first_s, last_s = passage.first_s - t0_s, passage.last_s - t0_s
        arrived = replace(message, first_s=first_s, arrived_s=last_s, last_s=last_s)
        self._clock.at(passage.last_s, lambda: peer._inbox.put(arrived))
        return passage.left_s

    def _peer(self, number: int) -> VirtualEndpoint:
        if number not in self.network.endpoints:
            raise NodeLost(f"peer {number}", None, "it is not on the network")
        return self.network.endpoints[number]


class VirtualNode:
    """A role's whole world, simulated. ``records`` holds what it recorded; ``seed`` is the run's."""

    def __init__(self, endpoint: VirtualEndpoint, seed: int) -> None:
        self.name, self.endpoint = endpoint.name, endpoint
        self.rng = Random(f"{seed}/{self.name}")
        self.records: list[dict[str, object]] = []
        self._network, self._clock = endpoint.network, endpoint.network.clock

    def now(self) -> float:
        """Seconds since t0."""
        return self._clock.now - self._network.t0_s

    def cpu(self) -> float:
        """Virtual time: computing takes none but what it is paced to."""
        return self.now()

    def sleep_until(self, time_s: float) -> None:
        """Let virtual time pass."""
        self._clock.sleep_until(time_s + self._network.t0_s)

    def spawn(self, activity: Callable[[], None]) -> Activity:
        """Another activity on the same clock."""
        return self._clock.spawn(f"{self.name}'s activity", activity)

    def background(self, work: Callable[[], T]) -> T:
        """Nothing else happens meanwhile on a virtual clock."""
        return work()

    def queue(self) -> VirtualQueue[T]:
        """A queue on the same clock."""
        return VirtualQueue(self._clock, f"{self.name}'s queue")

    def record(self, event: dict[str, object]) -> None:
        """Keep ``event``."""
        self.records.append(event)

    def link_rate(self) -> float | None:
        """Rate of the modelled uplink, bit/s."""
        return self.endpoint.link.up_bits
