"""Between two nodes: messages over TCP, and in which order messages are taken, however they were sent."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from testbed.fabric.sim.flow import Flow
from testbed.fabric.sim.windows import Memory
from testbed.node import Message
from testbed.scenario.shape import wire_bytes

if TYPE_CHECKING:
    from testbed.fabric.sim.endpoint import VirtualEndpoint
    from testbed.fabric.sim.network import VirtualNetwork


class Frame(NamedTuple):
    """A message of ``size`` bytes, header included; ``left``: who is to be told when its last byte has left."""

    message: Message
    size: int
    left: Callable[[], None] | None
    sent_s: float


class Connection:
    """From one node to another: messages follow each other, in order."""

    def __init__(
        self, network: VirtualNetwork, source: VirtualEndpoint, sink: VirtualEndpoint
    ) -> None:
        self._network, self._sink = network, sink
        self.way = network.board.way(source.name, sink.name)
        self._memory = Memory()
        self._waiting: deque[tuple[Frame, int]] = deque()
        self._entered = self._arrived = 0
        """How many messages have been sent, and how many of these have come."""
        self._early: dict[int, tuple[Frame, float, float]] = {}
        self._arrived_s = 0.0
        """When the last message has come: what overtakes it on the way is read after it."""

    def send(self, message: Message, size: int, left: Callable[[], None] | None = None) -> None:
        """Send a frame of ``size`` bytes over TCP; ``left`` is called when its last byte has left."""
        frame = Frame(message, size, left, self._network.clock.now)
        self._waiting.append((frame, self.enter()))
        if len(self._waiting) == 1:
            self._begin()

    def enter(self) -> int:
        """The place of what is sent now among all messages between the two nodes."""
        self._entered += 1
        return self._entered - 1

    def arrive(self, place: int, frame: Frame, first_s: float, arrived_s: float) -> None:
        """The message at ``place`` will be there then; it is read after all that were sent before it."""
        self._early[place] = frame, first_s, arrived_s
        while (due := self._early.pop(self._arrived, None)) is not None:
            self._arrived += 1
            frame, *passed = due
            first_s, arrived_s = (max(time_s, self._arrived_s) for time_s in passed)
            self._arrived_s = arrived_s
            message, size, _, sent_s = frame
            self._network.clock.at(arrived_s, self._sink.take, message, size, sent_s, first_s)

    def _begin(self) -> None:
        bits = 8.0 * wire_bytes(self._waiting[0][0].size)
        self._network.flows.begin(Flow(self.way, bits, self._left, self._memory))

    def _left(self, flow: Flow) -> None:
        frame, place = self._waiting.popleft()
        self.arrive(place, frame, *self._network.passage(flow))
        if frame.left is not None:
            frame.left()
        if self._waiting:
            self._begin()
