"""A receiver's side: packets come together, reports go back, messages come out in their order.
Memory is taken for what has come alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from testbed.errors import WireError
from testbed.transport.frame import HEADER_BYTES, MAX_BODY, FrameHeader
from testbed.transport.multicast.packet import (
    PAYLOAD,
    Flag,
    MulticastCounters,
    ReceiverReport,
    packets_of,
    ranges,
    since,
)
from testbed.transport.multicast.udp import Address, Transmitter

MOST_AHEAD = 32_768
"""Packets between the highest index so far and the next one; no sender has that many under way."""


class Frames(NamedTuple):
    """Frames that a receiver takes: their run, and the greatest length of their bodies."""

    run: int
    most_bytes: int = MAX_BODY


class Incoming:
    """One message of one sender."""

    def __init__(self, frames: Frames, sender: int) -> None:
        self._frames, self._sender = frames, sender
        self.header: FrameHeader | None = None
        self.stream = bytearray()
        self.reached = 0
        """One more than the highest index received."""
        self.missing: set[int] = set()
        self.first_ns = self.arrived_ns = 0
        self._total: int | None = None
        self._early: dict[int, bytes] = {}

    @property
    def complete(self) -> bool:
        """Return whether all of it is here."""
        return self.header is not None and not self.missing and self.reached == self._total

    def put(
        self, index: int, payload: memoryview, last: bool, arrived_ns: int, now_ns: int
    ) -> bool:
        """Take a packet in; False if it was here already. Raises WireError for one that cannot be
        of this message."""
        if index < self.reached and index not in self.missing:
            return False
        self._check(index, len(payload), last)
        if self.header is not None:
            self._copy(index, payload)
        elif index:
            self._early[index] = bytes(payload)
        else:
            self._begin(payload)
        self._mark(index)
        if last:
            self._total = index + 1
        self.first_ns = self.first_ns or now_ns
        self.arrived_ns = max(self.arrived_ns, arrived_ns)
        return True

    def _check(self, index: int, length: int, last: bool) -> None:
        ends = self._total is not None and (
            index >= self._total or last != (index + 1 == self._total)
        )
        if ends or (last and index + 1 < self.reached) or index > self.reached + MOST_AHEAD:
            raise WireError(f"packet {index} of a message of {self._total}")
        if self.header is not None:
            whole = len(self.stream) - index * PAYLOAD
        else:
            whole = length if last and index else PAYLOAD
        if index and not (length == min(whole, PAYLOAD) and length > 0):
            raise WireError(f"packet {index} has {length} B")

    def _begin(self, payload: memoryview) -> None:
        """The first packet says how long the frame is."""
        header = FrameHeader.unpack(payload[:HEADER_BYTES], self._frames.most_bytes)
        whole = HEADER_BYTES + header.length
        total = packets_of(whole)
        late = max(self._early, default=0)
        fits = (
            len(payload) == min(whole, PAYLOAD)
            and late < total
            and self._total in (None, total)
            and all(
                len(part) == min(PAYLOAD, whole - n * PAYLOAD) for n, part in self._early.items()
            )
        )
        if header.run != self._frames.run or header.sender != self._sender or not fits:
            raise WireError("the frame is not what its packets say")
        self.header, self._total, self.stream = header, total, bytearray(whole)
        self._copy(0, payload)
        for index, part in self._early.items():
            self._copy(index, memoryview(part))
        self._early.clear()

    def _copy(self, index: int, payload: memoryview) -> None:
        at = index * PAYLOAD
        self.stream[at : at + len(payload)] = payload

    def _mark(self, index: int) -> None:
        if index >= self.reached:
            self.missing.update(range(self.reached, index))
            self.reached = index + 1
        else:
            self.missing.discard(index)


AHEAD = 64
"""So many messages of a group may be under way at once."""
_BEHIND = 0x4000
_LAG_ALLOWED_US = 10_000


@dataclass
class PathDelay:
    """Delay of one sender's packets on their way here: how much longer they take than the quickest
    did."""

    _least_us: int | None = None
    _queued_us: int | None = None

    def passed(self, stamp_us: int, arrived_us: int, rest: bool) -> None:
        """A full packet was sent and has arrived, each by the clock of its side."""
        took_us = since(stamp_us, arrived_us)
        if self._least_us is None or rest or took_us < self._least_us:
            self._least_us = took_us
        queued_us = took_us - self._least_us
        if self._queued_us is None or queued_us < self._queued_us:
            self._queued_us = queued_us

    def queued_us(self, lag_us: int) -> int:
        """The least delay since this was last asked; a receiver that is far behind with reading
        counts as a queue."""
        queued, self._queued_us = self._queued_us or 0, None
        return max(queued, lag_us - _LAG_ALLOWED_US)


@dataclass
class MulticastStream:
    """A sender's messages to one group, in their order."""

    frames: Frames
    sender: int
    next: int = 0
    """The number, not folded, of the first message that has not been delivered."""
    parts: dict[int, Incoming] = field(default_factory=dict)
    heard_s: float = 0.0

    def find(self, folded: int) -> tuple[int, Incoming | None]:
        """A message by its number modulo 2**16; no Incoming where it has been delivered. Raises
        WireError."""
        ahead = (folded - self.next + 0x8000) % 0x10000 - 0x8000
        if not -_BEHIND <= ahead < AHEAD:
            raise WireError(f"message {folded} while {self.next} is due")
        number = self.next + ahead
        if ahead < 0:
            return number, None
        if number not in self.parts:
            self.parts[number] = Incoming(self.frames, self.sender)
        return number, self.parts[number]

    def ready(self) -> list[Incoming]:
        """Take out what is complete and whose turn it is."""
        messages = []
        while (part := self.parts.get(self.next)) is not None and part.complete:
            messages.append(self.parts.pop(self.next))
            self.next += 1
        return messages


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
        counters: MulticastCounters,
        deliver: Callable[[Incoming, int], None],
    ) -> None:
        self._frames, self._transmitter, self._addresses = frames, transmitter, addresses
        self._counters, self._deliver = counters, deliver
        self.senders: dict[int, frozenset[int]] = {}
        """Other members of each group that this node is in."""
        self.heard_s = float("-inf")
        """When the last part of a message came."""
        self._streams: dict[tuple[int, int], MulticastStream] = {}
        self._delays: defaultdict[int, PathDelay] = defaultdict(PathDelay)
        self._due: dict[tuple[int, int, int], Datagram] = {}
        """Reports to be made, each with the packet it answers."""

    def take(self, datagram: Datagram) -> None:
        """Take a packet or a question in. Raises WireError for what no peer can have sent."""
        if datagram.sender not in self.senders.get(datagram.group, ()):
            raise WireError("no member of a group of ours")
        origin = (datagram.sender, datagram.group)
        stream = self._streams.get(origin)
        if stream is None:
            stream = self._streams[origin] = MulticastStream(self._frames, datagram.sender)
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
            queued_us = self._delays[sender].queued_us(held_us)
            missing = () if part is None or done else ranges(part.missing)
            reached = 0 if part is None else part.reached
            self._transmitter.word(
                Flag.REPORT | (Flag.DONE if done else 0),
                (group, number),
                reached,
                datagram.stamp_us,
                ReceiverReport(max(0, queued_us), held_us, missing).pack(),
                self._addresses[sender],
                [sender],
            )
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
        for (other, _), stream in self._streams.items():
            if other == sender:
                stream.parts.clear()

    def _put(self, part: Incoming | None, datagram: Datagram) -> bool:
        """Take a datagram; return whether the sender should hear of a gap, or of completion, at
        once."""
        if len(datagram.payload) == PAYLOAD:
            rest = bool(datagram.flags & Flag.REST)
            self._delays[datagram.sender].passed(
                datagram.stamp_us, datagram.arrived_ns // 1000, rest
            )
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
