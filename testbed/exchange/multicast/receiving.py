"""A receiver's side: packets come together, reports go back, messages come out in their order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from testbed.errors import WireError
from testbed.exchange.multicast.batch import Address
from testbed.exchange.multicast.counters import Counters
from testbed.exchange.multicast.incoming import Frames, Incoming
from testbed.exchange.multicast.packet import PAYLOAD, Flag, Report
from testbed.exchange.multicast.stream import Stream, Way
from testbed.exchange.multicast.transmitter import Transmitter


@dataclass(slots=True)
class Datagram:
    """One that has come, its header taken apart. Times are ns of the monotonic clock."""

    flags: int
    sender: int
    group: int
    number: int
    index: int
    stamp_us: int
    payload: memoryview
    arrived_ns: int
    read_ns: int


class Receiving:
    """Everything on its way in. Not for several threads. ``deliver`` is given what is complete."""

    def __init__(
        self,
        frames: Frames,
        transmitter: Transmitter,
        addresses: Mapping[int, Address],
        counters: Counters,
        deliver: Callable[[Incoming, int], None],
    ) -> None:
        self._frames, self._transmitter, self._addresses = frames, transmitter, addresses
        self._counters, self._deliver = counters, deliver
        self.senders: dict[int, frozenset[int]] = {}
        """Of each group that this node is in, who else is."""
        self.heard_s = float("-inf")
        """When the last part of a message came."""
        self._streams: dict[tuple[int, int], Stream] = {}
        self._ways: dict[int, Way] = {}
        self._due: dict[tuple[int, int, int], Datagram] = {}
        """Reports to be made, each with the packet it answers."""

    def take(self, datagram: Datagram) -> None:
        """Take a packet or a question in. Raises WireError for what no peer can have sent."""
        if datagram.sender not in self.senders.get(datagram.group, ()):
            raise WireError("no member of a group of ours")
        place = (datagram.sender, datagram.group)
        stream = self._streams.get(place)
        if stream is None:
            stream = self._streams[place] = Stream(self._frames, datagram.sender)
        number, part = stream.find(datagram.number)
        self.heard_s = stream.heard_s = datagram.read_ns / 1e9
        news = self._put(part, datagram) if not datagram.flags & Flag.PROBE else False
        if news or datagram.flags & Flag.ASK:
            self._due[datagram.sender, datagram.group, number] = datagram
        for complete in stream.ready():
            self._deliver(complete, datagram.read_ns)

    def report(self, now_ns: int) -> None:
        """Send the reports that are due."""
        for (sender, group, number), datagram in self._due.items():
            part = self._streams[sender, group].parts.get(number)
            done = part is None or part.complete
            held_us = max(0, now_ns - datagram.arrived_ns) // 1000
            queued_us = self._way(sender).queued_us(held_us)
            missing = () if part is None or done else part.ranges_missing()
            reached = 0 if part is None else part.reached
            self._transmitter.word(
                Flag.REPORT | (Flag.DONE if done else 0), (group, number), reached,
                datagram.stamp_us, Report(max(0, queued_us), held_us, missing).pack(),
                self._addresses[sender], [sender],
            )  # fmt: skip
        self._due.clear()

    def silent(self, before_s: float) -> set[int]:
        """Senders of messages that are not complete, of which nothing has come since."""
        return {
            sender
            for (sender, _), stream in self._streams.items()
            if stream.parts and stream.heard_s < before_s
        }

    def drop(self, sender: int) -> None:
        """A sender is gone, and what was incomplete with it."""
        for place, stream in self._streams.items():
            if place[0] == sender:
                stream.parts.clear()

    def _way(self, sender: int) -> Way:
        return self._ways.setdefault(sender, Way())

    def _put(self, part: Incoming | None, datagram: Datagram) -> bool:
        """Whether the sender should hear at once: of a gap, or that the message is complete."""
        if len(datagram.payload) == PAYLOAD:
            rest = bool(datagram.flags & Flag.REST)
            self._way(datagram.sender).passed(datagram.stamp_us, datagram.arrived_ns // 1000, rest)
        if part is None:
            self._counters.duplicates += 1
            return bool(datagram.flags & Flag.LAST)
        expected = part.reached
        last = bool(datagram.flags & Flag.LAST)
        arrived_ns = min(datagram.arrived_ns, datagram.read_ns)
        if not part.put(datagram.index, datagram.payload, last, arrived_ns, datagram.read_ns):
            self._counters.duplicates += 1
            return False
        return datagram.index > expected or part.complete
