"""Frames out of a stream, with as few calls into the kernel as their sizes allow, and the kernel's
time stamps of them.

A small frame that is as long as the one before comes with a single call, header and body; of a
large one the body is read to where it stays. Nothing is read beyond the end that is expected, so
that a frame's time of arrival is that of its own last byte; where a frame is shorter than the one
before, a next one that waits already may be read with it, and both bear the later time.
"""

from __future__ import annotations

import mmap
import socket
import struct
import time
from collections.abc import Callable

from testbed.errors import WireError
from testbed.node import Message
from testbed.transport.frame import HEADER_BYTES, FrameHeader

Ancillary = list[tuple[int, int, bytes]]

_SO_TIMESTAMPNS = 35
"""Asks for arrival times of what is received; Python has no name for it."""
_TIMESPEC = struct.Struct("@ll")
STAMP_SPACE = socket.CMSG_SPACE(_TIMESPEC.size)
"""Room for a stamp in what ``recvmsg_into`` brings beside the bytes."""
_APART_NS, _READINGS = 10_000, 5
"""Clocks that are read within so little time of each other are read at once; how often that is
tried."""


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
    """The kernel stamps with the wall clock, whose distance from ours is read anew each time: it is
    set, now and then.

    Of several readings the one counts between which the least time has passed: a thread may be held
    up there.
    """
    readings = []
    for _ in range(_READINGS):
        before_ns, wall_ns, after_ns = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        readings.append((after_ns - before_ns, wall_ns - after_ns))
        if after_ns - before_ns <= _APART_NS:
            break
    return min(readings)[1]


STAGE_BYTES = 1 << 16
"""Bodies up to this size are read together with their header, and copied."""

_MAPPED_BYTES, _MAPPED_ONCE_BYTES = 1 << 20, 32 << 20
"""Buffers from this size on are memory that the kernel gives as it is written to; the second size
is that of buffers for a single message. A ``bytearray`` is filled with zeros first, and no other
thread runs meanwhile: where four workers sent 85 MB at once, the server did not read from all of
them for 0.15 s, and its link was idle for most of it. But one of up to 32 MB is memory that was in
use before, as a rule: into a new map, messages of 2 and 8 MB take 1.3 to 3 times as long."""


class FrameReader:
    """The receiving half of a connection; blocking sockets and others.

    Bodies lie in buffers that are used again: those of two messages of a bucket may be under way.
    ``most_bytes``: of a body; may be changed between frames. ``ahead_ns``: of this host's clock,
    against that of frames.
    """

    def __init__(
        self,
        connected: socket.socket,
        run: int,
        clock: Callable[[int], float],
        most_bytes: int,
        ahead_ns: int = 0,
    ) -> None:
        self._ahead_ns = ahead_ns
        self.most_bytes = most_bytes
        self.reuses = True
        """False: every body has a buffer of its own."""
        self._socket, self._run, self._clock = connected, run, clock
        self._stage = bytearray(HEADER_BYTES + 1024)
        self._staged = 0
        """Bytes at the beginning of the stage that no frame has taken yet."""
        self._expected = 0
        self._buffers: dict[tuple[int, int], memoryview] = {}
        self._header: FrameHeader | None = None
        self._body = memoryview(b"")
        self._filled = 0
        self._first_s = 0.0
        self._ancillary: Ancillary = []

    @property
    def staged(self) -> bool:
        """Return whether something is at hand already that a poll of the socket knows nothing
        of."""
        return self._staged > 0 and self._header is None

    def read(self) -> Message | None:
        """One call into the kernel at most; the frame that it completed, or None while there is
        more to come.

        Raises EOFError at the end of the stream, BlockingIOError where nothing is there, WireError
        for bytes that are not a frame of this run or end inside one, OSError when the peer is lost.
        """
        if self._header is None:
            if self._staged < HEADER_BYTES:
                self._fill_stage()
            if self._staged < HEADER_BYTES:
                return None
            self._begin()
        else:
            self._filled += self._receive(self._body[self._filled :], socket.MSG_WAITALL)
        return self._complete() if self._filled == len(self._body) else None

    def _fill_stage(self) -> None:
        """At most to the end of a frame as long as the last one."""
        ahead = self._expected if self._expected <= STAGE_BYTES else 0
        wanted = HEADER_BYTES + ahead
        if len(self._stage) < wanted:
            self._stage = self._stage.ljust(wanted, b"\0")
        self._staged += self._receive(memoryview(self._stage)[self._staged : wanted], 0)

    def _begin(self) -> None:
        """The header is there, and perhaps some of the body, and perhaps of what comes next."""
        self._first_s = self._clock(time.monotonic_ns())
        stage = memoryview(self._stage)
        header = FrameHeader.unpack(stage[:HEADER_BYTES], self.most_bytes)
        _, _, run, step, bucket, length, _ = header
        if run != self._run:
            raise WireError(f"frame of run {run:x} in run {self._run:x}")
        self._header = header
        self._body = self._buffer(step, bucket, length)[:length]
        end = min(self._staged, HEADER_BYTES + length)
        self._filled = end - HEADER_BYTES
        self._body[: self._filled] = stage[HEADER_BYTES:end]
        if left := self._staged - end:
            self._stage[:left] = self._stage[end : self._staged]
        self._staged = left

    def _complete(self) -> Message:
        assert self._header is not None
        kind, sender, _, step, bucket, self._expected, sent_ns = self._header
        self._header, clock = None, self._clock
        sent_s, arrived_s = clock(sent_ns + self._ahead_ns), clock(stamp(self._ancillary))
        times = sent_s, self._first_s, arrived_s, clock(time.monotonic_ns())
        return Message(kind, step, bucket, sender, self._body, *times)

    def _receive(self, into: memoryview, flags: int) -> int:
        count, self._ancillary, _, _ = self._socket.recvmsg_into([into], STAMP_SPACE, flags)
        if count == 0:
            if self._header is None and self._staged == 0:
                raise EOFError("the stream ended")
            raise WireError("the stream ended inside a frame")
        return count

    def _buffer(self, step: int, bucket: int, length: int) -> memoryview:
        """The buffer that the message two steps before used, if it is long enough and may be used
        again."""
        if not self.reuses:
            return _memory(length, _MAPPED_ONCE_BYTES)
        slot = (bucket, step % 2)
        buffer = self._buffers.get(slot)
        if buffer is None or len(buffer) < length:
            buffer = self._buffers[slot] = _memory(length, _MAPPED_BYTES)
        return buffer


def _memory(length: int, mapped_from: int) -> memoryview:
    """Memory to receive into."""
    return memoryview(bytearray(length) if length < mapped_from else mmap.mmap(-1, length))
