"""Sockets of a multicaster: many datagrams per system call, and one message on its way to a group.

Each datagram is handed over as a packet of its own: a bundle (``UDP_SEGMENT``) would take its place
in a shaped queue, and be lost, as one.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
import threading
import time
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import IPv4Address

import numpy as np
from numpy.typing import NDArray

from testbed.errors import MachineError
from testbed.transport.frame_reader import ask_for_stamps
from testbed.transport.multicast.packet import (
    DATAGRAM,
    HEADER_BYTES,
    LAYOUT,
    MAGIC,
    PAYLOAD,
    Amount,
    Flag,
    MulticastCounters,
    ReceiverReport,
    clock_us,
    fold,
    packets_of,
    since,
)

SLOTS = 64
HEADER = np.dtype(
    [
        ("magic", "u1"),
        ("flags", "u1"),
        ("sender", "<u2"),
        ("run", "<u4"),
        ("group", "<u2"),
        ("message", "<u2"),
        ("index", "<u4"),
        ("stamp", "<u4"),
    ]
)
_MESSAGE = np.dtype(
    {
        "names": [
            "name",
            "name_bytes",
            "parts",
            "part_count",
            "control",
            "control_bytes",
            "flags",
            "length",
        ],
        "formats": ["u8", "u4", "u8", "u8", "u8", "u8", "i4", "u4"],
        "offsets": [0, 8, 16, 24, 32, 40, 48, 56],
        "itemsize": 64,
    }
)
"""The kernel's ``struct mmsghdr`` where pointers have 64 bits."""
_CONTROL = 64
_SLOT = 1536
_libc = ctypes.CDLL(None, use_errno=True)

Bytes = NDArray[np.uint8]
Indices = NDArray[np.int64]


def address_of(array: NDArray[np.generic]) -> int:
    """Where an array's first byte is."""
    return int(array.ctypes.data)


def _call(name: str, descriptor: int, messages: NDArray[np.void], count: int, *more: object) -> int:
    """How many datagrams were handed over; 0 when the kernel would have to wait. Raises OSError."""
    done = getattr(_libc, name)(
        descriptor, ctypes.c_void_p(address_of(messages)), count, socket.MSG_DONTWAIT, *more
    )
    if done >= 0:
        return int(done)
    code = ctypes.get_errno()
    if code in (errno.EAGAIN, errno.EINTR, errno.ENOBUFS, errno.ECONNREFUSED):
        return 0
    raise OSError(code, f"{name}: {os.strerror(code)}")


class Address:
    """A socket address in memory for as long as this object lives."""

    def __init__(self, address: str, port: int) -> None:
        self.plain = (address, port)
        packed = struct.pack("=H", socket.AF_INET) + struct.pack("!H", port)
        self._packed: Bytes = np.frombuffer(packed + socket.inet_aton(address) + bytes(8), np.uint8)
        self.pointer = address_of(self._packed)


class Sender:
    """Datagrams made of a header and a part of a stream."""

    def __init__(self) -> None:
        self.headers = np.zeros(SLOTS, HEADER)
        self._parts = np.zeros((SLOTS, 2, 2), "u8")
        self._messages = np.zeros(SLOTS, _MESSAGE)
        self._parts[:, 0, 0] = address_of(self.headers) + HEADER_BYTES * np.arange(SLOTS)
        self._parts[:, 0, 1] = HEADER_BYTES
        self._messages["name_bytes"] = 16
        self._messages["parts"] = address_of(self._parts) + 32 * np.arange(SLOTS)
        self._messages["part_count"] = 2

    def send(
        self, descriptor: int, to: Address, offsets: Indices, lengths: Indices, stream: Bytes
    ) -> int:
        """Hand over ``len(offsets)`` datagrams, whose headers have been filled in; returns how many
        were taken."""
        count = len(offsets)
        self._parts[:count, 1, 0] = address_of(stream) + offsets
        self._parts[:count, 1, 1] = lengths
        self._messages["name"][:count] = to.pointer
        return _call("sendmmsg", descriptor, self._messages, count)


class Receiver:
    """Room for ``SLOTS`` datagrams."""

    def __init__(self) -> None:
        self._room = np.zeros((SLOTS, _SLOT), np.uint8)
        self._view = self._room.reshape(-1).data
        self._control = np.zeros((SLOTS, _CONTROL // 8), np.int64)
        parts = np.zeros((SLOTS, 2), "u8")
        parts[:, 0] = address_of(self._room) + _SLOT * np.arange(SLOTS)
        parts[:, 1] = _SLOT
        self._parts = parts
        self._messages = np.zeros(SLOTS, _MESSAGE)
        self._messages["parts"] = address_of(parts) + 16 * np.arange(SLOTS)
        self._messages["part_count"] = 1
        self._messages["control"] = address_of(self._control) + _CONTROL * np.arange(SLOTS)
        self._headers = self._room[:, :HEADER_BYTES].view(HEADER)[:, 0]

    def receive(self, descriptor: int) -> list[tuple[tuple[int, ...], int, memoryview, int]]:
        """Take what has come. Returns of each datagram the fields of its header, whatever was in
        it, its bytes (more than ``DATAGRAM``: no sender of ours makes it), what follows the header,
        and when it came to the network stack, ns of the monotonic clock. Raises OSError."""
        self._messages["control_bytes"] = _CONTROL
        count = _call("recvmmsg", descriptor, self._messages, SLOTS, None)
        stamped = self._messages["control_bytes"][:count] >= 32
        # The kernel stamps with the wall clock; the difference of the clocks is read at once.
        now_ns = time.monotonic_ns()
        wall = self._control[:count, 2] * 1_000_000_000 + self._control[:count, 3]
        arrivals = np.where(stamped, wall + (now_ns - time.time_ns()), now_ns).tolist()
        headers = self._headers[:count].tolist()
        lengths = self._messages["length"][:count].tolist()
        begins = range(HEADER_BYTES, count * _SLOT, _SLOT)
        ends = (slot * _SLOT + length for slot, length in enumerate(lengths))
        payloads = [self._view[begin:end] for begin, end in zip(begins, ends, strict=True)]
        return list(zip(headers, lengths, payloads, arrivals, strict=True))


assert DATAGRAM < _SLOT


_MULTICAST_ALL = 49
"""Switched off, a socket has only what goes to groups it has joined itself; Python has no name for
it."""
_RECEIVE_BYTES = 8 << 20
_LEAST_ROOM = 32 << 10
_PACKET_ROOM = 1152
"""Half of what the kernel counts for a packet: it doubles what it is asked for."""
MOST_GROUPS = 1 << 16


def group_address(run: int, group: int) -> str:
    """Where a group's datagrams go: 239.0.0.0/8 is for local use (RFC 2365)."""
    if not 0 <= group < MOST_GROUPS:
        raise ValueError(f"group {group}: there may be {MOST_GROUPS}")
    return str(IPv4Address("239.0.0.0") + ((fold(run) & 0xFF) << 16) + group)


class Sockets:
    """``groups`` and ``own`` receive; ``own`` sends reports and questions, ``out`` all that may
    fill a link.

    Made in the network namespace of the calling thread. Raises OSError.
    """

    def __init__(self, address: str, port: int) -> None:
        self.address = address
        self.groups = _receiver("", port)
        self.own = _receiver(address, port)
        self.out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.out.setblocking(False)
        self.out.bind((address, 0))
        self._room = 0
        self.make_room(0)
        loopback = IPv4Address(address).is_loopback
        for sends in (self.own, self.out):
            sends.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(address))
            sends.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, loopback)

    def make_room(self, packets: int) -> None:
        """Let so many packets, but at least about 28, wait in one's own link's queue.

        A sender that is late to fill the link up must have left it something to do; and what may
        not be under way shall not wait there either: a short queue would drop it without a word to
        the socket.
        """
        room = max(_LEAST_ROOM, packets * _PACKET_ROOM)
        if not self._room / 2 <= room <= self._room:
            self._room = room + room // 4
            self.out.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._room)

    def join(self, group: str) -> None:
        """Become a member of a group. Raises MachineError where the kernel allows no more
        memberships."""
        membership = socket.inet_aton(group) + socket.inet_aton(self.address)
        try:
            self.groups.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise
            raise MachineError(
                f"the kernel lets a node be in no more multicast groups: {group} is one too many",
                fix="Raise net.ipv4.igmp_max_memberships in the nodes' namespaces",
            ) from error

    def close(self) -> None:
        """Leave all groups."""
        for used in self:
            with suppress(OSError):
                used.close()

    def __iter__(self) -> Iterator[socket.socket]:
        return iter((self.groups, self.own, self.out))


def _receiver(address: str, port: int) -> socket.socket:
    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiver.setblocking(False)
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)
    ask_for_stamps(receiver)
    receiver.setsockopt(socket.IPPROTO_IP, _MULTICAST_ALL, 0)
    receiver.bind((address, port))
    return receiver


GATHER_S = 0.002
"""A packet that one member misses may be missed by others, whose reports are waited for this
long."""


@dataclass
class SendProgress:
    """Progress that a member has reported; ``reached``: one more than the highest index it has."""

    reached: int = 0
    done: bool = False


@dataclass
class Repair:
    """A packet to be sent again, not before ``due_s``."""

    due_s: float
    members: set[int] = field(default_factory=set)


class Outgoing:
    """A message until every member has all of it. Times are seconds of the engine's clock."""

    def __init__(self, group: int, number: int, members: Iterable[int], stream: bytes) -> None:
        self.group, self.number = group, number
        self.stream: Bytes = np.frombuffer(stream, np.uint8)
        self.count = packets_of(len(stream))
        self.sent = 0
        self.members = {member: SendProgress() for member in members}
        self.handed_over = threading.Event()
        self.repairs: dict[int, Repair] = {}
        self.begun_s = 0.0
        self.ask_s = 0.0
        """When to ask the members again, if nothing is heard before."""
        self.asks = 0
        """How often that has been done in a row."""
        self._stamps = array("I")
        self._repaired: set[int] = set()

    @property
    def done(self) -> bool:
        """Return whether every member has confirmed all of it."""
        return all(progress.done for progress in self.members.values())

    def waiting(self) -> list[int]:
        """The members that have not."""
        return [member for member, progress in self.members.items() if not progress.done]

    def reached(self) -> int:
        """How many packets have passed the slowest member, received or lost."""
        reached = (self.count if p.done else p.reached for p in self.members.values())
        return min(self.sent, min(reached, default=self.sent))

    def stamp(self, count: int, stamp_us: int) -> None:
        """The next ``count`` packets have been sent."""
        self._stamps.extend([stamp_us] * count)
        self.sent += count

    def stamp_repairs(self, indices: Iterable[int], stamp_us: int) -> None:
        """These have been sent again."""
        for index in indices:
            self._stamps[index] = stamp_us
            self._repaired.add(index)
            del self.repairs[index]

    def on_report(
        self,
        member: int,
        reached: int,
        done: bool,
        report: ReceiverReport,
        answered_us: int,
        now_s: float,
    ) -> int:
        """Take a member's report in; returns how many of its packets turn out to be lost.

        Packets keep their order on the way. So what was sent before the packet that is answered,
        and has not come, is lost. Raises ValueError for a report of what was never sent.
        """
        if reached > self.sent:
            raise ValueError(f"a report of {reached} packets of {self.sent}")
        progress = self.members[member]
        progress.reached = max(progress.reached, reached)
        if done and not progress.done:
            progress.done, progress.reached = True, self.count
            self._forget(member)
        if progress.done:
            return 0
        return sum(
            self._want(index, member, now_s)
            for index in self._missing(reached, report)
            if self._is_lost(index, reached, answered_us)
        )

    def drop(self, member: int) -> None:
        """A member is gone."""
        if self.members.pop(member, None) is not None:
            self._forget(member)

    def due(self, now_s: float) -> list[tuple[int, set[int]]]:
        """The packets to be sent again now, and who misses each."""
        return [
            (index, repair.members)
            for index, repair in sorted(self.repairs.items())
            if repair.due_s <= now_s
        ]

    def _missing(self, reached: int, report: ReceiverReport) -> Iterable[int]:
        for first, count in report.missing:
            yield from range(first, min(first + count, reached))
        yield from range(reached, self.sent)

    def _is_lost(self, index: int, reached: int, answered_us: int) -> bool:
        age_us = since(self._stamps[index], answered_us)
        return age_us > 0 or (age_us == 0 and index < reached and index not in self._repaired)

    def _want(self, index: int, member: int, now_s: float) -> bool:
        repair = self.repairs.setdefault(index, Repair(now_s + GATHER_S))
        new = member not in repair.members
        repair.members.add(member)
        return new

    def _forget(self, member: int) -> None:
        for index, repair in list(self.repairs.items()):
            repair.members.discard(member)
            if not repair.members:
                del self.repairs[index]


class Transmitter:
    """Everything that a multicaster sends goes through here. Not for several threads."""

    def __init__(self, own: int, run: int, sockets: Sockets, counters: MulticastCounters) -> None:
        self._own, self._run = own, run
        self._sockets, self._counters = sockets, counters
        self._sender = Sender()
        self._sender.headers["magic"], self._sender.headers["sender"] = MAGIC, own
        self._sender.headers["run"] = run

    def packets(
        self,
        message: Outgoing,
        indices: Sequence[int],
        flags: Sequence[int],
        to: Address,
        members: Iterable[int],
    ) -> tuple[int, int]:
        """Send these packets of a message, at most ``SLOTS``; the kernel may take only the first of
        them.

        Returns how many it took, and the time that is written on them.
        """
        now_us = clock_us(time.monotonic_ns())
        numbers = np.array(indices, np.int64)
        headers = self._sender.headers[: len(indices)]
        last = np.where(numbers == message.count - 1, int(Flag.LAST), 0)
        headers["flags"] = np.array(flags, np.int64) | last
        headers["group"], headers["message"] = message.group, message.number % 0x10000
        headers["index"], headers["stamp"] = numbers, now_us
        offsets = numbers * PAYLOAD
        lengths = np.minimum(PAYLOAD, len(message.stream) - offsets)
        taken = self._sender.send(self._sockets.out.fileno(), to, offsets, lengths, message.stream)
        if taken:
            repair = bool(flags[0] & Flag.REPAIR)
            kind = self._counters.repairs if repair else self._counters.data
            self._count(kind, taken, int(lengths[:taken].sum()) + HEADER_BYTES * taken, members)
        return taken, now_us

    def make_room(self, packets: int) -> None:
        """So many packets may be under way."""
        self._sockets.make_room(packets)

    def word(
        self,
        flags: int,
        message: tuple[int, int],
        index: int,
        stamp_us: int,
        body: bytes,
        to: Address,
        members: Iterable[int],
    ) -> None:
        """Send a question or a report; one that the kernel does not take is lost, as it may be on
        the way."""
        group, number = message
        header = LAYOUT.pack(
            MAGIC, flags, self._own, self._run, group, number % 0x10000, index, stamp_us
        )
        try:
            self._sockets.own.sendto(header + body, socket.MSG_DONTWAIT, to.plain)
        except OSError:
            return
        self._count(self._counters.feedback, 1, len(header) + len(body), members)

    def _count(self, kind: Amount, packets: int, octets: int, members: Iterable[int]) -> None:
        kind.add(packets, octets)
        for member in members:
            self._counters.to.setdefault(member, Amount()).add(packets, octets)
