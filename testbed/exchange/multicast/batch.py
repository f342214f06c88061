"""Many datagrams per system call: ``sendmmsg`` and ``recvmmsg`` over arrays that are made once.

Each datagram is handed over as a packet of its own: a bundle (``UDP_SEGMENT``) would take its place in a shaped queue,
and be lost, as one.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
import time

import numpy as np
from numpy.typing import NDArray

from testbed.exchange.multicast.packet import DATAGRAM, HEADER_BYTES

SLOTS = 64
HEADER = np.dtype(
    [("magic", "u1"), ("flags", "u1"), ("sender", "<u2"), ("run", "<u4"),
     ("group", "<u2"), ("message", "<u2"), ("index", "<u4"), ("stamp", "<u4")]
)  # fmt: skip
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
        self._held: Bytes = np.frombuffer(packed + socket.inet_aton(address) + bytes(8), np.uint8)
        self.pointer = address_of(self._held)


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
        """Hand over ``len(offsets)`` datagrams, whose headers have been filled in; returns how many were taken."""
        count = len(offsets)
        self._parts[:count, 1, 0] = address_of(stream) + offsets
        self._parts[:count, 1, 1] = lengths
        self._messages["name"][:count] = to.pointer
        return _call("sendmmsg", descriptor, self._messages, count)


class Receiver:
    """Room for ``SLOTS`` datagrams."""

    def __init__(self) -> None:
        self._room = np.zeros((SLOTS, _SLOT), np.uint8)
        self.view = self._room.reshape(-1).data
        """All slots; the one of number n begins at ``n * Receiver.SLOT``."""
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

    SLOT = _SLOT

    def receive(self, descriptor: int) -> int:
        """Take what has come; returns how many datagrams. Raises OSError."""
        self._messages["control_bytes"] = _CONTROL
        return _call("recvmmsg", descriptor, self._messages, SLOTS, None)

    def lengths(self, count: int) -> list[int]:
        """Bytes of each; longer ones than ``DATAGRAM`` were longer than a sender of ours makes them."""
        lengths: list[int] = self._messages["length"][:count].tolist()
        return lengths

    def headers(self, count: int) -> list[tuple[int, ...]]:
        """The fields of each header, whatever was in it."""
        headers: list[tuple[int, ...]] = self._headers[:count].tolist()
        return headers

    def arrivals(self, count: int) -> list[int]:
        """When each came to the network stack, ns of the monotonic clock."""
        stamped = self._messages["control_bytes"][:count] >= 32
        # The kernel stamps with the wall clock; the difference of the clocks is read at once.
        now_ns = time.monotonic_ns()
        wall = self._control[:count, 2] * 1_000_000_000 + self._control[:count, 3]
        times: list[int] = np.where(stamped, wall + (now_ns - time.time_ns()), now_ns).tolist()
        return times


assert DATAGRAM < _SLOT
