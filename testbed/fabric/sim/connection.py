"""Between two nodes: messages over TCP, and in which order messages are taken, however they were sent."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from testbed.fabric.sim.flow import Flow
from testbed.fabric.sim.windows import Memory
from testbed.node import Message
from testbed.scenario.shape import wire_bytes

if TYPE_CHECKING:
    from testbed.fabric.sim.endpoint import VirtualEndpoint
    from testbed.fabric.sim.network import VirtualNetwork


class Connection:
    """From one node to another: messages follow each other, in order."""

    def __init__(
        self, network: VirtualNetwork, source: VirtualEndpoint, sink: VirtualEndpoint
    ) -> None:
        self._network, self._sink = network, sink
        self.way = network.board.way(source.name, sink.name)
        self._memory = Memory()
        self._waiting: deque[tuple[Message, int, Callable[[], None] | None, float, int]] = deque()
        self._entered = self._arrived = 0
        """How many messages have been sent, and how many of these have come."""
        self._early: dict[int, tuple[Message, int, float, float, float]] = {}
        """Those that have come before others that were sent earlier, by place."""
        self._arrived_s = 0.0
        """When the last message has come: what overtakes it on the way is read after it."""

    def send(self, message: Message, size: int, left: Callable[[], None] | None = None) -> None:
        """Send a frame of ``size`` bytes over TCP; ``left`` is called when its last byte has left."""
        self._waiting.append((message, size, left, self._network.clock.now, self.enter()))
        if len(self._waiting) == 1:
            self._begin()

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
        bits = 8.0 * wire_bytes(self._waiting[0][1])
        self._network.flows.begin(Flow(self.way, bits, self._left, self._memory))

    def _left(self, flow: Flow) -> None:
        message, size, left, sent_s, place = self._waiting.popleft()
        self.arrive(place, message, size, sent_s, *self._network.passage(flow))
        if left is not None:
            left()
        if self._waiting:
            self._begin()
