"""Between two nodes: messages over TCP, and in which order messages are taken, however they were sent."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from testbed.fabric.sim.flow import Flow
from testbed.fabric.sim.network import Attached, VirtualNetwork
from testbed.fabric.sim.windows import Memory
from testbed.node import Message
from testbed.scenario.shape import SEGMENT_BYTES, wire_bytes

_PIECES = 2
"""In so many pieces does what may be unsent leave: how finely it is known."""


@dataclass(slots=True)
class _Outgoing:
    """A message on its way out: ``to_go`` of its ``size`` bytes are not yet, ``first_s``: when its first packet arrives."""

    message: Message
    size: int
    left: Callable[[], None] | None
    sent_s: float
    place: int
    to_go: int
    first_s: float | None = None


class Connection:
    """From one node to another: messages follow each other, in order.

    ``unsent_bytes``: as ``Terms.unsent_bytes`` of a socket.
    """

    def __init__(
        self,
        network: VirtualNetwork,
        source: Attached,
        sink: Attached,
        unsent_bytes: int | None = None,
    ) -> None:
        self._network, self._sink = network, sink
        self.way = network.board.way(source.name, sink.name)
        self._memory = Memory()
        self._waiting: deque[_Outgoing] = deque()
        self._room, self._unsent, self._piece = unsent_bytes, 0, 0
        self._held: list[Callable[[], None]] = []
        self._entered = self._arrived = 0
        """How many messages have been sent, and how many of these have come."""
        self._early: dict[int, tuple[Message, int, float, float, float]] = {}
        """Those that have come before others that were sent earlier, by place."""
        self._arrived_s = 0.0
        """When the last message has come: what overtakes it on the way is read after it."""

    def send(self, message: Message, size: int, left: Callable[[], None] | None = None) -> None:
        """Send a frame of ``size`` bytes over TCP.

        ``left`` is called when its last byte has left; or when no more than ``unsent_bytes`` are left, if there are any such.
        """
        now_s, place = self._network.clock.now, self.enter()
        if self._room is not None and left is not None:
            self._held.append(left)
            left = None
        self._waiting.append(_Outgoing(message, size, left, now_s, place, size))
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
        place: int,
        message: Message,
        size: int,
        sent_s: float,
        first_s: float,
        arrived_s: float,
    ) -> None:
        """The message at ``place`` will have come then; all that were sent before it are taken first."""
        if place > self._arrived:
            self._early[place] = message, size, sent_s, first_s, arrived_s
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
        to_go = self._waiting[0].to_go
        self._piece = to_go
        if self._room is not None:
            segments = max(1, self._room // _PIECES // SEGMENT_BYTES)
            self._piece = min(to_go, segments * SEGMENT_BYTES)
        bits = 8.0 * wire_bytes(self._piece)
        self._network.flows.begin(Flow(self.way, bits, self._left, self._memory))

    def _left(self, flow: Flow) -> None:
        first_s, arrived_s = self._network.passage(flow)
        out = self._waiting[0]
        out.first_s = first_s if out.first_s is None else out.first_s
        out.to_go -= self._piece
        self._unsent -= self._piece
        if not out.to_go:
            self._waiting.popleft()
            self.arrive(out.place, out.message, out.size, out.sent_s, out.first_s, arrived_s)
            if out.left is not None:
                out.left()
        if self._waiting:
            self._begin()
        self._release()

    def _release(self) -> None:
        """Whoever waits for room, if there is some."""
        while self._held and self._room is not None and self._unsent <= self._room:
            self._held.pop(0)()
