"""What a node multicasts on modelled links: one copy on every link that leads to members, one message at a time.

The sender's window is that of its slowest member: all of a message goes at the rate of the tightest of those
links. What a link loses is asked for as soon as it is missed, and sent again to the members behind that link.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, inf

from testbed.fabric.sim.board import PACKET_BITS
from testbed.fabric.sim.connection import Connection
from testbed.fabric.sim.flow import FAIR_SHARE, Flow
from testbed.fabric.sim.flows import ROUND_TRIP_S
from testbed.fabric.sim.network import VirtualNetwork
from testbed.node import Message
from testbed.scenario.shape import FRAME_BYTES

_HEADER_BYTES = 42 + 20
"""Of a packet: Ethernet 14, IPv4 20, UDP 8, and what says which part of which message it is."""
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
        """Send a frame of ``size`` bytes to all ``members`` as one copy; ``left``: see ``Connection.send``."""
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
    """What one member has of a message. ``place``: of the message among all that it is sent."""

    place: int
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
        """Send all of it to everybody; ``left`` is called when it has been sent, whatever was lost."""
        members = list(self._shares)
        self._expect(members)
        self._send(members, 8.0 * packet_bytes(self._frame[1]), left)

    def _expect(self, members: Sequence[Connection]) -> None:
        for member in members:
            self._shares[member].missing += 1

    def _send(
        self, members: Sequence[Connection], bits: float, left: Callable[[], None] = lambda: None
    ) -> None:
        def sent(flow: Flow) -> None:
            self._come(flow, members)
            left()

        tree = self._network.board.tree(member.way for member in members)
        legs = [Flow(member.way, bits, sent, None) for member in members]
        self._network.flows.begin(Flow(tree, bits, sent, None, FAIR_SHARE, legs=legs))

    def _come(self, flow: Flow, members: Sequence[Connection]) -> None:
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
                member.arrive(share.place, *self._frame, share.first_s, share.arrived_s)

    def _repair(self, flow: Flow, members: Sequence[Connection]) -> None:
        """What links have lost of ``flow`` is sent again, a round trip after the last of it was lost."""
        network, losses = self._network, self._network.flows.losses
        took_s, packets = network.clock.now - flow.start_s, ceil(flow.bits / PACKET_BITS)
        for link in flow.way.there if network.board.impaired else ():
            if not (lost := losses.on_link(link, packets)):
                continue
            behind = [member for member in members if link in member.way.there]
            self._expect(behind)
            trip_s = max(network.board.round_trip_s(member.way) for member in behind)
            lost_s = flow.start_s + took_s * losses.last_of(link, lost)
            again_s = lost_s + ROUND_TRIP_S + trip_s
            network.clock.at(again_s, self._send, behind, lost * PACKET_BITS)
