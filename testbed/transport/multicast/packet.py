"""A datagram of multicast: a little-endian header of 20 bytes, then a part of a frame or a report;
and counters.

offset size field
0      1    magic and version, 0xB1
1      1    ``Flag``
2      2    sender of this datagram (peer number)
4      4    the run, folded
8      2    group
10     2    number of the message: counts up within a sender's messages to a group, modulo 2**16
12     4    index of this packet in its message; in a probe and a report see there
16     4    the sender's clock when it was sent, µs modulo 2**32; in a report that of the packet it
            answers

A message is a frame (``testbed.transport.frame``), cut into packets of ``PAYLOAD`` bytes; the last
may be shorter.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from enum import IntFlag
from typing import Any

from testbed.errors import WireError

MAGIC = 0xB1
LAYOUT = struct.Struct("<BBHIHHII")
HEADER_BYTES = LAYOUT.size
DATAGRAM = 1472
"""Bytes of a datagram that fit into an IPv4 packet of 1500 bytes."""
PAYLOAD = DATAGRAM - HEADER_BYTES
HEADERS_ON_LINK = 42
"""Ethernet 14, IPv4 20, UDP 8: what a link counts on top of each datagram."""

_REPORT = struct.Struct("<II")
_RANGE = struct.Struct("<II")
MOST_RANGES = 128
_CLOCK = 1 << 32


class Flag(IntFlag):
    """Kind and marks of a datagram; without PROBE and REPORT it carries data."""

    ASK = 1
    """Whoever receives this reports at once."""
    LAST = 2
    """The message ends with this packet."""
    REPAIR = 4
    REST = 8
    """The sender has been at its least rate for long: what delay there is now, is not of its
    making."""
    PROBE = 16
    """No data: a question after a message of ``index`` packets."""
    REPORT = 32
    """No data: what has come. ``index``: one more than the highest index received."""
    DONE = 64
    """In a report: the message is complete."""


@dataclass(frozen=True, slots=True)
class ReceiverReport:
    """Report of a receiver on a message.

    ``queued_us``: how long packets have waited on their way; ``held_us``: how long the receiver has
    had the packet that it answers; ``missing``: ranges ``(first, count)`` below the highest index
    received.
    """

    queued_us: int
    held_us: int
    missing: tuple[tuple[int, int], ...]

    def pack(self) -> bytes:
        """Encode the part that follows the header."""
        parts = [_RANGE.pack(*part) for part in self.missing[:MOST_RANGES]]
        return b"".join(
            [_REPORT.pack(min(self.queued_us, _CLOCK - 1), min(self.held_us, _CLOCK - 1)), *parts]
        )

    @classmethod
    def unpack(cls, raw: bytes) -> ReceiverReport:
        """Read what follows the header. Raises WireError; there are at most ``MOST_RANGES``
        ranges."""
        ranges, rest = divmod(len(raw) - _REPORT.size, _RANGE.size)
        if rest or not 0 <= ranges <= MOST_RANGES:
            raise WireError(f"a report of {len(raw)} B")
        queued_us, held_us = _REPORT.unpack_from(raw)
        missing = tuple((first, count) for first, count in _RANGE.iter_unpack(raw[_REPORT.size :]))
        return cls(queued_us, held_us, missing)


def fold(run: int) -> int:
    """A run's id in 32 bits."""
    return (run ^ run >> 32) & 0xFFFFFFFF


def packets_of(frame_bytes: int) -> int:
    """How many packets a frame takes."""
    return -(-frame_bytes // PAYLOAD)


def ranges(indices: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Indices as ``(first, count)``, in order, the first ``MOST_RANGES`` of them."""
    runs: list[tuple[int, int]] = []
    for index in sorted(indices):
        if runs and runs[-1][0] + runs[-1][1] == index:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        elif len(runs) == MOST_RANGES:
            break
        else:
            runs.append((index, 1))
    return tuple(runs)


def clock_us(time_ns: int) -> int:
    """A time as datagrams carry it."""
    return time_ns // 1000 % _CLOCK


def since(earlier_us: int, later_us: int) -> int:
    """µs from one such time to another, negative if it was before, as long as it is less than 35
    minutes."""
    return (later_us - earlier_us + _CLOCK // 2) % _CLOCK - _CLOCK // 2


@dataclass
class Amount:
    """Datagrams, and bytes in them."""

    packets: int = 0
    bytes: int = 0

    def add(self, packets: int, octets: int) -> None:
        """Count some more."""
        self.packets += packets
        self.bytes += octets

    @property
    def wire_bytes(self) -> int:
        """Bytes that an Ethernet link counts for them."""
        return self.bytes + HEADERS_ON_LINK * self.packets


@dataclass
class MulticastCounters:
    """Totals since the start. What was sent is counted once, however many members it was for."""

    data: Amount = field(default_factory=Amount)
    repairs: Amount = field(default_factory=Amount)
    feedback: Amount = field(default_factory=Amount)
    """Reports of one's own, and questions to members."""
    received: Amount = field(default_factory=Amount)
    """Datagrams received, of every kind, strangers' included."""
    to: dict[int, Amount] = field(default_factory=dict)
    """Amount that should come to each peer, of every kind; a copy to a group counts for all its
    members."""
    frame_bytes_sent: int = 0
    frame_bytes_received: int = 0
    strangers: int = 0
    """Datagrams dropped because they were not of this run, or cannot have been sent by a peer of
    ours."""
    duplicates: int = 0

    @property
    def sent(self) -> Amount:
        """Everything sent."""
        kinds = (self.data, self.repairs, self.feedback)
        return Amount(sum(kind.packets for kind in kinds), sum(kind.bytes for kind in kinds))

    def to_json(self) -> dict[str, Any]:
        """As sent over the control network."""
        return {**asdict(self), "sent": asdict(self.sent), "wire_bytes": self.sent.wire_bytes}
