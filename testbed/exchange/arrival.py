"""When bytes came to the host's network stack: the kernel's own time stamps of what is received."""

from __future__ import annotations

import socket
import struct
import time

Ancillary = list[tuple[int, int, bytes]]

_SO_TIMESTAMPNS = 35
"""Asks for arrival times of what is received; Python has no name for it."""
_TIMESPEC = struct.Struct("@ll")
STAMP_SPACE = socket.CMSG_SPACE(_TIMESPEC.size)
"""Room for a stamp in what ``recvmsg_into`` brings beside the bytes."""
_APART_NS, _READINGS = 10_000, 5
"""Clocks that are read within so little time of each other are read at once; how often that is tried."""


def ask_for_stamps(connected: socket.socket) -> None:
    """From now on every call that receives messages says when the last of their bytes came."""
    connected.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)


def stamp(ancillary: Ancillary) -> int:
    """The kernel's time of arrival, ns of the monotonic clock, or now where it gives none."""
    now_ns = time.monotonic_ns()
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == _SO_TIMESTAMPNS:
            seconds, nanoseconds = _TIMESPEC.unpack_from(data)
            arrived_ns: int = seconds * 1_000_000_000 + nanoseconds - _wall_ahead_ns()
            return min(arrived_ns, now_ns)
    return now_ns


def _wall_ahead_ns() -> int:
    """The kernel stamps with the wall clock, whose distance from ours is read anew each time: it is set, now and then.

    Of several readings the one counts between which the least time has passed: a thread may be held up there.
    """
    readings = []
    for _ in range(_READINGS):
        before_ns, wall_ns, after_ns = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        readings.append((after_ns - before_ns, wall_ns - after_ns))
        if after_ns - before_ns <= _APART_NS:
            break
    return min(readings)[1]
