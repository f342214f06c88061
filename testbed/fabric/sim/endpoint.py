"""``testbed.node.Endpoint`` on modelled links: messages over TCP, multicasts, and the order in
which messages are taken.

A multicast's window is that of its slowest member: all of a message goes at the rate of the
tightest of those links. What a link loses is asked for as soon as it is missed, and sent again to
the members behind that link.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf

from testbed.errors import NodeLost
from testbed.fabric.sim.clock import Countdown, VirtualQueue
from testbed.fabric.sim.flows import ROUND_TRIP_S
from testbed.fabric.sim.link_state import PACKET_BITS
from testbed.fabric.sim.network import Attached, VirtualNetwork, Wait
from testbed.fabric.sim.tcp_model import FAIR_SHARE, SimFlow, WindowMemory
from testbed.node import Message
from testbed.scenario.link_state import FRAME_BYTES, SEGMENT_BYTES, LinkDirection, wire_bytes
from testbed.transport.endpoint import PATIENCE
from testbed.transport.frame import frame_bytes

_PIECES = 2
"""In so many pieces does what may be unsent leave: how finely it is known."""


@dataclass(slots=True)
class _Outgoing:
    """A message, of which ``to_go`` bytes have not left, as far as is known."""

    message: Message
    size: int
    left: Callable[[], None] | None
    sent_s: float
    position: int
    to_go: int


class Connection:
    """From one node to another: messages follow each other, in order.

    ``unsent_bytes``: as ``ConnectionConfig.unsent_bytes`` of a socket.
    """

    def __init__(
        self,
        network: VirtualNetwork,
        source: Attached,
        sink: Attached,
        unsent_bytes: int | None = None,
    ) -> None:
        self._network, self._sink = network, sink
        self.route = network.links.route(source.name, sink.name)
        self._memory = WindowMemory()
        self._waiting: deque[_Outgoing] = deque()
        self._room, self._unsent, self._piece = unsent_bytes, 0, 0
        self._awaiting_room: list[Callable[[], None]] = []
        self._entered = self._arrived = 0
        """How many messages have been sent, and how many of these have come."""
        self._early: dict[int, tuple[Message, int, float, float, float]] = {}
        """Those that have come before others that were sent earlier, by place."""
        self._arrived_s = 0.0
        """When the last message has come: what overtakes it on the way is read after it."""

    def send(self, message: Message, size: int, left: Callable[[], None] | None = None) -> None:
        """Send a frame of ``size`` bytes over TCP.

        ``left`` is called when its last byte has left; or when no more than ``unsent_bytes`` are
        left, if there are any such.
        """
        now_s, position = self._network.clock.now, self.enter()
        if self._room is not None and left is not None:
            self._awaiting_room.append(left)
            left = None
        self._waiting.append(_Outgoing(message, size, left, now_s, position, size))
        if len(self._waiting) == 1:
            self._begin()
        self._unsent += size
        self._release()

    def enter(self) -> int:
        """The place of what is sent now among all messages to that node, over TCP or not."""
        self._entered += 1
        return self._entered - 1

    def arrive(
        self,
        position: int,
        message: Message,
        size: int,
        sent_s: float,
        first_s: float,
        arrived_s: float,
    ) -> None:
        """The message at ``position`` will have come then; all that were sent before go first."""
        if position > self._arrived:
            self._early[position] = message, size, sent_s, first_s, arrived_s
            return
        self._take(message, size, sent_s, first_s, arrived_s)
        while self._arrived in self._early:
            self._take(*self._early.pop(self._arrived))

    def _take(
        self, message: Message, size: int, sent_s: float, first_s: float, arrived_s: float
    ) -> None:
        self._arrived += 1
        first_s = max(first_s, self._arrived_s)
        self._arrived_s = arrived_s = max(arrived_s, self._arrived_s)
        self._network.clock.at(arrived_s, self._sink.take, message, size, sent_s, first_s)

    def _begin(self) -> None:
        flow = SimFlow(
            self.route, 8.0 * wire_bytes(self._waiting[0].size), self._left, self._memory
        )
        if self._room is not None:
            flow.marked, flow.mark_bits = self._piece_left, self._next_piece()
        self._network.flows.begin(flow)

    def _next_piece(self) -> float:
        """Return the bits of the first message that are left once its next piece is gone."""
        room, to_go = self._room or 0, self._waiting[0].to_go
        self._piece = min(to_go, max(1, room // _PIECES // SEGMENT_BYTES) * SEGMENT_BYTES)
        return 8.0 * wire_bytes(to_go - self._piece)

    def _piece_left(self) -> float:
        """A piece is gone, and the message goes on: its window is that of all its pieces."""
        self._waiting[0].to_go -= self._piece
        self._unsent -= self._piece
        self._release()
        return self._next_piece()

    def _left(self, flow: SimFlow) -> None:
        first_s, arrived_s = self._network.passage(flow)
        out = self._waiting.popleft()
        self._unsent -= out.to_go
        self.arrive(out.position, out.message, out.size, out.sent_s, first_s, arrived_s)
        if out.left is not None:
            out.left()
        if self._waiting:
            self._begin()
        self._release()

    def _release(self) -> None:
        """Whoever waits for room, if there is some."""
        while self._awaiting_room and self._room is not None and self._unsent <= self._room:
            self._awaiting_room.pop(0)()


_HEADER_BYTES = 42 + 20
"""Header bytes of a packet: Ethernet 14, IPv4 20, UDP 8, and 20 of the multicast itself."""
_PAYLOAD_BYTES = FRAME_BYTES - _HEADER_BYTES


def packet_bytes(frame_bytes: int) -> int:
    """Bytes that ``frame_bytes`` take at the link layer, in full packets."""
    return frame_bytes + _HEADER_BYTES * -(-frame_bytes // _PAYLOAD_BYTES)


class Multicasts:
    """All that one node multicasts: messages follow each other, whichever groups they are for."""

    def __init__(self, network: VirtualNetwork) -> None:
        self._network = network
        self._waiting: deque[_Delivery] = deque()

    def send(
        self,
        message: Message,
        size: int,
        left: Callable[[], None] | None,
        members: Sequence[Connection],
    ) -> None:
        """Send a frame to all ``members`` as one copy; ``left``: see ``Connection.send``."""
        self._waiting.append(_Delivery(self._network, message, size, left, members))
        if len(self._waiting) == 1:
            self._begin()

    def _begin(self) -> None:
        self._waiting[0].begin(self._left)

    def _left(self) -> None:
        left = self._waiting.popleft().left
        if left is not None:
            left()
        if self._waiting:
            self._begin()


@dataclass(slots=True)
class _Share:
    """One member's part of a message. ``position``: the message's position among all sent to it."""

    position: int
    missing: int = 0
    """Flows of which it needs something: all that was sent first, and repairs."""
    first_s: float = inf
    arrived_s: float = 0.0


class _Delivery:
    """A message until all of ``members`` have all of it."""

    def __init__(
        self,
        network: VirtualNetwork,
        message: Message,
        size: int,
        left: Callable[[], None] | None,
        members: Sequence[Connection],
    ) -> None:
        self.left, self._network = left, network
        self._frame = message, size, network.clock.now
        self._shares = {member: _Share(member.enter()) for member in members}

    def begin(self, left: Callable[[], None]) -> None:
        """Send all of it to everybody; ``left`` is called when it is sent, whatever was lost."""
        members = list(self._shares)
        self._expect(members)
        self._send(members, 8.0 * packet_bytes(self._frame[1]), left)

    def _expect(self, members: Sequence[Connection]) -> None:
        for member in members:
            self._shares[member].missing += 1

    def _send(
        self, members: Sequence[Connection], bits: float, left: Callable[[], None] = lambda: None
    ) -> None:
        def sent(flow: SimFlow) -> None:
            self._come(flow, members)
            left()

        tree = self._network.links.tree(member.route for member in members)
        legs = [SimFlow(member.route, bits, sent, None) for member in members]
        self._network.flows.begin(SimFlow(tree, bits, sent, None, FAIR_SHARE, legs=legs))

    def _come(self, flow: SimFlow, members: Sequence[Connection]) -> None:
        """All of ``flow`` has left; it comes to each member in its own time."""
        self._repair(flow, members)
        for member, leg in zip(members, flow.legs, strict=True):
            leg.start_s, leg.tightest = flow.start_s, flow.tightest
            first_s, arrived_s = self._network.passage(leg)
            share = self._shares[member]
            share.missing -= 1
            share.first_s = min(share.first_s, first_s)
            share.arrived_s = max(share.arrived_s, arrived_s)
            if not share.missing:
                member.arrive(share.position, *self._frame, share.first_s, share.arrived_s)

    def _repair(self, flow: SimFlow, members: Sequence[Connection]) -> None:
        """Send again what links have lost of ``flow``, a round trip after the last loss."""
        network, losses = self._network, self._network.flows.losses
        took_s, packets = network.clock.now - flow.start_s, ceil(flow.bits / PACKET_BITS)
        for link in flow.route.forward if network.links.impaired else ():
            if not (lost := losses.on_link(link, packets)):
                continue
            behind = [member for member in members if link in member.route.forward]
            self._expect(behind)
            trip_s = max(network.links.round_trip_s(member.route) for member in behind)
            lost_s = flow.start_s + took_s * losses.last_of(link, lost)
            again_s = lost_s + ROUND_TRIP_S + trip_s
            network.clock.at(again_s, self._send, behind, lost * PACKET_BITS)


_LEAVING = "its message to leave"
_MOMENT_S = 1e-9
"""Times of waits are no more exact, since they are sums."""
HANDED_OVER_BYTES = 4 << 20
"""Bytes that a host's network stack takes from a sender at once (``tcp_wmem`` of nodes)."""


class VirtualEndpoint:
    """A node's place on the network. What is sent is copied: buffers can be used again."""

    def __init__(
        self, network: VirtualNetwork, number: int, name: str, unsent_bytes: int | None = None
    ) -> None:
        self.name, self.network, self._number = name, network, number
        self._unsent_bytes = unsent_bytes
        self._clock = network.clock
        self._inbox: VirtualQueue[Message | NodeLost] = VirtualQueue(
            network.clock, f"{name}'s inbox"
        )
        self._connections: dict[int, Connection] = {}
        self.groups: list[frozenset[int]] = []
        self.wait: Wait | None = None
        self._multicasts = Multicasts(network)
        self._free_s = 0.0
        self._down = network.links.number[LinkDirection(name, "down")]
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
        left = Countdown(self._clock, len(numbers), _LEAVING) if waits else None
        on_left = None if left is None else left.count_down
        begun_s = self._clock.now
        for count, number in enumerate(numbers, 1):
            connection = self._connection(number)
            self.sent[number] = self.sent.get(number, 0) + size
            if count < len(numbers) and cost_s:
                at_s = begun_s + count * cost_s
                self._clock.at(at_s, connection.send, message, size, on_left)
            else:
                self._clock.sleep_until(begun_s + count * cost_s)
                connection.send(message, size, on_left)
        if left is not None:
            left.wait()
        return size * len(numbers)

    def form_groups(self, groups: Sequence[frozenset[int]]) -> None:
        """From now on messages can be multicast to these sets of peer numbers, in this order."""
        self.groups = list(groups)

    def multicast(self, group: int, message: Message) -> int:
        """To all of a group side by side, as one copy; returns when it has been sent once."""
        message, size = _copied(message), self.frame_bytes(message)
        members = sorted(self.groups[group] - {self._number})
        if not members:
            return 0
        connections = [self._connection(number) for number in members]
        for number in members:
            self._check_member(number, group)
        self.multicast_sent += size
        self._clock.sleep_until(self._clock.now + self.network.costs.send_s)
        left = Countdown(self._clock, 1, _LEAVING)
        self._multicasts.send(message, size, left.count_down, connections)
        left.wait()
        return size

    def receive(
        self,
        timeout: float,
        awaited: Collection[int] = (),
        waiting: Collection[int] = (),
    ) -> Message:
        """The next message. Raises NodeLost when nothing was coming in for ``timeout`` s, and those
        awaited have given no other sign of life."""
        self.wait = wait = Wait(awaited, waiting, self._clock.now)
        patience_s, item = timeout, None
        while item is None:
            try:
                item = self._inbox.get(patience_s)
            except TimeoutError:
                patience_s = self._patience_s(wait, timeout)
        wait.heard_s, wait.over = self._clock.now, True
        if isinstance(item, NodeLost):
            raise item
        return item

    def _patience_s(self, wait: Wait, timeout: float) -> float:
        """Return how much longer to wait now that nothing came. Raises NodeLost of those who are
        silent."""
        now_s = self._clock.now
        if self.network.flows.serves(self._down):
            wait.heard_s = now_s
            return timeout
        until_s = {peer: self._until_s(wait, peer, timeout) for peer in wait.awaited}
        silent = [peer for peer, limit_s in until_s.items() if limit_s <= now_s + _MOMENT_S]
        if silent or not until_s:
            names = ", ".join(self._names(silent))
            raise NodeLost(names, None, f"nothing was received for {timeout:g} s")
        return min(until_s.values()) - now_s

    def _until_s(self, wait: Wait, peer: int, timeout: float) -> float:
        """Return until when ``peer`` is waited for, as ``transport.endpoint.LivenessMonitor`` does:
        for longer where it waits itself."""
        known = self.network.known_wait(self._number, peer)
        patience = 1.0 if known is None or known.over else PATIENCE
        heard_s = max(wait.heard_s, self.network.heard_s(self._number, peer))
        return heard_s + patience * timeout

    def lose(self, number: int, name: str) -> None:
        """A peer was killed: where there was a connection with it, its end is heard of."""
        if number in self.sent or number in self.received:
            self._inbox.put(NodeLost(name, None, "its connection was closed"))

    def _names(self, awaited: Collection[int]) -> Iterable[str]:
        known = self.network.endpoints
        silent = [known[peer] for peer in awaited if peer in known] or known.values()
        return (endpoint.name for endpoint in silent if endpoint is not self)

    frame_bytes = staticmethod(frame_bytes)

    def take(self, message: Message, size: int, sent_s: float, first_s: float) -> None:
        """All of ``message`` has come; the node's processor reads one message after the other."""
        sender, now_s, t0_s = message.sender, self._clock.now, self.network.t0_s
        self.received[sender] = self.received.get(sender, 0) + size
        cost_s = self.network.costs.receive_s
        self._free_s = max(now_s, self._free_s) + cost_s
        times = sent_s - t0_s, first_s - t0_s, now_s - t0_s, self._free_s - t0_s
        read = Message(message.kind, message.step, message.bucket, sender, message.body, *times)
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
