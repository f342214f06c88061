"""One TCP connection that carries frames."""

from __future__ import annotations

import queue
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from testbed.errors import WireError
from testbed.exchange.frame import HEADER_BYTES, Header
from testbed.exchange.tcp_info import SocketCounters, read_counters
from testbed.node import Message

_SO_TIMESTAMPNS = 35
"""Asks for arrival times of what is received; Python has no name for it."""
_TIMESPEC = struct.Struct("@ll")
_STAMP_SPACE = socket.CMSG_SPACE(_TIMESPEC.size)

_Job = tuple[Message, threading.Event, list[OSError]]


class Connection:
    """Frames over one socket. One thread may receive; any thread may send."""

    def __init__(
        self, connected: socket.socket, run: int, clock: Callable[[int], float], silence_s: float
    ) -> None:
        self._socket, self._run, self._clock = connected, run, clock
        self._sending = threading.Lock()
        self._later: queue.SimpleQueue[_Job | None] | None = None
        self._header = bytearray(HEADER_BYTES)
        self._buffers: dict[tuple[int, int], bytearray] = {}
        _tune(connected, silence_s)

    def send(self, message: Message) -> None:
        """Hand a frame over to the kernel, all of it. Raises OSError when the peer is gone."""
        body = memoryview(message.body).cast("B")
        with self._sending:
            header = Header(
                message.kind, message.sender, self._run, message.step, message.bucket, len(body),
                time.monotonic_ns(),
            ).pack()  # fmt: skip
            _send_all(self._socket, header, body)

    def send_later(self, message: Message) -> Callable[[], None]:
        """Begin to send in this connection's own thread; call the result to wait for the end of it."""
        if self._later is None:
            self._later = queue.SimpleQueue()
            threading.Thread(target=self._write, args=(self._later,), daemon=True).start()
        finished, errors = threading.Event(), list[OSError]()
        self._later.put((message, finished, errors))

        def wait() -> None:
            finished.wait()
            if errors:
                raise errors[0]

        return wait

    def receive(self) -> Message | None:
        """The next frame, or None at the end of the stream.

        Raises WireError for bytes that are not a frame of this run, OSError when the peer is lost.
        """
        if not (stamp := _receive_exactly(self._socket, memoryview(self._header))):
            return None
        first = self._clock(time.monotonic_ns())
        header = Header.unpack(self._header)
        if header.run != self._run:
            raise WireError(f"frame of run {header.run:x} in run {self._run:x}")
        body = memoryview(self._buffer(header))[: header.length]
        if header.length and not (stamp := _receive_exactly(self._socket, body)):
            raise WireError(f"the stream ended inside a frame of {header.length} B")
        last_ns = time.monotonic_ns()
        return Message(
            header.kind, header.step, header.bucket, header.sender, body, self._clock(header.sent_ns),
            first, self._clock(min(stamp, last_ns)), self._clock(last_ns),
        )  # fmt: skip

    def counters(self) -> SocketCounters:
        """What the kernel counted so far."""
        return read_counters(self._socket)

    def close(self) -> None:
        """End the stream in both directions."""
        if self._later is not None:
            self._later.put(None)
        with suppress(OSError):  # the peer may have been faster
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _buffer(self, header: Header) -> bytearray:
        """The buffer that the message two steps before used, if it is long enough."""
        slot = (header.bucket, header.step % 2)
        held = self._buffers.get(slot)
        if held is None or len(held) < header.length:
            held = self._buffers[slot] = bytearray(header.length)
        return held

    def _write(self, jobs: queue.SimpleQueue[_Job | None]) -> None:
        while (job := jobs.get()) is not None:
            message, finished, errors = job
            try:
                self.send(message)
            except OSError as error:
                errors.append(error)
            finished.set()


def _tune(connected: socket.socket, silence_s: float) -> None:
    """No waiting for more data to send; a peer that does not answer is an error after ``silence_s``."""
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, int(silence_s / 2)))
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, max(1, int(silence_s / 2)))
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(silence_s * 1000))


def _send_all(connected: socket.socket, header: bytes, body: memoryview) -> None:
    sent = connected.sendmsg([header, body])
    if sent < len(header):
        connected.sendall(header[sent:])
        sent = len(header)
    if sent < len(header) + len(body):
        connected.sendall(body[sent - len(header) :])


def _receive_exactly(connected: socket.socket, buffer: memoryview) -> int:
    """Fill ``buffer``; returns when its last byte came to the network stack, ns of the monotonic clock.

    0 when the stream had ended before its first byte.
    """
    filled, stamp = 0, 0
    while filled < len(buffer):
        count, ancillary, _, _ = connected.recvmsg_into(
            [buffer[filled:]], _STAMP_SPACE, socket.MSG_WAITALL
        )
        if count == 0:
            if filled:
                raise WireError(f"the stream ended after {filled} of {len(buffer)} bytes")
            return 0
        filled += count
        stamp = _stamp(ancillary)
    return stamp


def _stamp(ancillary: list[tuple[int, int, bytes]]) -> int:
    """The kernel's time of arrival, or now where it gives none."""
    now_ns = time.monotonic_ns()
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == _SO_TIMESTAMPNS:
            seconds, nanoseconds = _TIMESPEC.unpack_from(data)
            # The kernel stamps with the wall clock; the difference of the clocks is read at once.
            return int(now_ns - (time.time_ns() - (seconds * 1_000_000_000 + nanoseconds)))
    return now_ns
