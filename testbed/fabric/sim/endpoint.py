"""``testbed.node.Endpoint`` on modelled links."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from testbed.errors import NodeLost
from testbed.exchange.frame import HEADER_BYTES
from testbed.fabric.sim.clock import Activity, VirtualClock
from testbed.fabric.sim.connection import Connection
from testbed.fabric.sim.multicast import Multicasts
from testbed.fabric.sim.network import VirtualNetwork
from testbed.fabric.sim.queue import VirtualQueue
from testbed.node import Message
from testbed.scenario.shape import End

HANDED_OVER_BYTES = 4 << 20
"""What a host's network stack takes from a sender at once (``tcp_wmem`` of nodes)."""


class VirtualEndpoint:
    """A node's place on the network. What is sent is copied, as a network would: buffers can be used again."""

    def __init__(
        self,
        network: VirtualNetwork,
        number: int,
        name: str,
        unsent_bytes: int | None = None,
    ) -> None:
        self.name, self.network, self._number = name, network, number
        self._unsent_bytes = unsent_bytes
        self._clock = network.clock
        self._inbox: VirtualQueue[Message | NodeLost] = VirtualQueue(
            network.clock, f"{name}'s inbox"
        )
        self._connections: dict[int, Connection] = {}
        self.groups: list[frozenset[int]] = []
        self._multicasts = Multicasts(network)
        self._free_s = 0.0
        self._down = network.board.number[End(name, "down")]
        self.sent: dict[int, int] = {}
        self.received: dict[int, int] = {}
        """Frame bytes by peer."""
        self.multicast_sent = 0
        """Frame bytes, each once for all that they were meant for."""
        network.endpoints[number] = self

    def send(self, destinations: Iterable[int], message: Message) -> int:
        """To all destinations side by side; returns when the network stack holds the rest."""
        message = _copied(message)
        size, cost_s = self.frame_bytes(message), self.network.costs.send_s
        numbers = list(destinations)
        waits = size > HANDED_OVER_BYTES or self._unsent_bytes is not None
        left = _Countdown(self._clock, len(numbers)) if waits else None
        told = None if left is None else left.one
        begun_s = self._clock.now
        for place, number in enumerate(numbers, 1):
            connection = self._connection(number)
            self.sent[number] = self.sent.get(number, 0) + size
            if place < len(numbers) and cost_s:
                at_s = begun_s + place * cost_s
                self._clock.at(at_s, connection.send, message, size, told)
            else:
                self._clock.sleep_until(begun_s + place * cost_s)
                connection.send(message, size, told)
        if left is not None:
            left.wait()
        return size * len(numbers)

    def form_groups(self, groups: Sequence[frozenset[int]]) -> None:
        """From now on messages can be multicast to these sets of peers, by their numbers in this order."""
        self.groups = list(groups)

    def multicast(self, group: int, message: Message) -> int:
        """To all of a group side by side, as one copy; returns when all of it has been sent once."""
        message, size = _copied(message), self.frame_bytes(message)
        members = sorted(self.groups[group] - {self._number})
        if not members:
            return 0
        connections = [self._connection(number) for number in members]
        for number in members:
            self._check_member(number, group)
        self.multicast_sent += size
        self._clock.sleep_until(self._clock.now + self.network.costs.send_s)
        left = _Countdown(self._clock, 1)
        self._multicasts.send(message, size, left.one, connections)
        left.wait()
        return size

    def receive(
        self,
        timeout: float,
        awaited: Collection[int] = (),
        waiting: Collection[int] = (),  # noqa: ARG002
    ) -> Message:
        """The next message. Raises NodeLost when for ``timeout`` of virtual time nothing has been coming in."""
        while True:
            try:
                item = self._inbox.get(timeout)
            except TimeoutError:
                if self.network.flows.serves(self._down):
                    continue
                raise NodeLost(
                    ", ".join(self._names(awaited)), None, f"nothing was received for {timeout:g} s"
                ) from None
            if isinstance(item, NodeLost):
                raise item
            return item

    def lose(self, number: int, name: str) -> None:
        """A peer was killed: where there was a connection with it, its end is heard of."""
        if number in self.sent or number in self.received:
            self._inbox.put(NodeLost(name, None, "its connection was closed"))

    def _names(self, awaited: Collection[int]) -> Iterable[str]:
        known = self.network.endpoints
        silent = [known[peer] for peer in awaited if peer in known] or known.values()
        return (endpoint.name for endpoint in silent if endpoint is not self)

    def frame_bytes(self, message: Message) -> int:
        """Header and body."""
        body = message.body
        return HEADER_BYTES + (len(body) if isinstance(body, bytes) else memoryview(body).nbytes)

    def take(self, message: Message, size: int, sent_s: float, first_s: float) -> None:
        """All of ``message`` has come; the node's processor reads one message after the other."""
        sender, now_s, t0_s = message.sender, self._clock.now, self.network.t0_s
        self.received[sender] = self.received.get(sender, 0) + size
        cost_s = self.network.costs.receive_s
        self._free_s = max(now_s, self._free_s) + cost_s
        read = Message(
            message.kind, message.step, message.bucket, sender, message.body,
            sent_s - t0_s, first_s - t0_s, now_s - t0_s, self._free_s - t0_s,
        )  # fmt: skip
        if cost_s:
            self._clock.at(self._free_s, self._inbox.put, read)
        else:
            self._inbox.put(read)

    def _check_member(self, number: int, group: int) -> None:
        """Raises NodeLost when a peer does not listen to a group."""
        other = self.network.endpoints[number]
        if other.groups[group : group + 1] != [self.groups[group]]:
            raise NodeLost(other.name, None, f"it has not joined group {group}")

    def _connection(self, number: int) -> Connection:
        if number not in self._connections:
            if number not in self.network.endpoints:
                raise NodeLost(f"peer {number}", None, "it is not on the network")
            sink = self.network.endpoints[number]
            unsent_bytes = self._unsent_bytes
            self._connections[number] = Connection(self.network, self, sink, unsent_bytes)
        return self._connections[number]


def _copied(message: Message) -> Message:
    """With a body that nobody changes."""
    body = message.body
    return message if isinstance(body, bytes) else replace(message, body=bytes(body))


class _Countdown:
    """Counts messages that have left, for whoever waits for the last of them."""

    def __init__(self, clock: VirtualClock, many: int) -> None:
        self._clock, self._many = clock, many
        self._waiting: Activity | None = None

    def one(self) -> None:
        self._many -= 1
        if not self._many and self._waiting is not None:
            self._clock.wake(self._waiting)

    def wait(self) -> None:
        if self._many:
            self._waiting = self._clock.current()
            self._clock.wait("its message to leave")
