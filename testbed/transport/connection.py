"""TCP connections that carry frames, for threads that wait or for a loop, and what the kernel
counts of them (``TCP_INFO``).
"""

from __future__ import annotations

import fcntl
import queue
import socket
import struct
import termios
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from math import ceil
from typing import NamedTuple

from testbed.node import Message
from testbed.scenario.link_state import SEGMENT_HEADER_BYTES, UNKNOWN_RTT_US
from testbed.transport.frame import HEADER_BYTES, MAX_BODY, Frame, framed
from testbed.transport.frame_reader import FrameReader, ask_for_stamps


@dataclass(frozen=True, slots=True)
class SocketCounters:
    """Totals of one socket since it was opened; retransmissions are contained in the first two."""

    bytes_sent: int
    segments_out: int
    bytes_received: int
    bytes_retransmitted: int
    retransmits: int
    segment_bytes: int
    """Most payload of a segment that is sent, now: the path's MTU without headers and options."""
    least_rtt_us: int | None
    """The least round-trip time of the last five minutes (``net.ipv4.tcp_min_rtt_wlen``); None: not
    measured."""

    @property
    def wire_bytes(self) -> int:
        """Bytes that the sender's link counts for this socket."""
        return self.bytes_sent + SEGMENT_HEADER_BYTES * self.segments_out

    def to_json(self) -> dict[str, int | None]:
        """As sent over the control network."""
        return {**asdict(self), "wire_bytes": self.wire_bytes}


_TCP_INFO = struct.Struct("=16xI32xI44xI16xQQI8xI48xQQ")


class TcpInfo(NamedTuple):
    """Fields of the kernel's ``struct tcp_info`` (include/uapi/linux/tcp.h, Linux 4.19 or
    newer)."""

    segment_bytes: int
    """Most payload of a segment that is sent (``tcpi_snd_mss``)."""
    last_received_ms: int
    """Since when no data has come, to a kernel's tick."""
    retransmits: int
    bytes_acknowledged: int
    bytes_received: int
    segments_out: int
    least_rtt_us: int
    bytes_sent: int
    bytes_retransmitted: int

    @classmethod
    def unpack(cls, info: bytes) -> TcpInfo:
        """Read them. Raises OSError for one of an older kernel."""
        if len(info) < _TCP_INFO.size:
            raise OSError(
                f"the kernel's tcp_info has {len(info)} bytes, {_TCP_INFO.size} are needed"
            )
        return cls(*_TCP_INFO.unpack_from(info))

    @classmethod
    def of(cls, connected: socket.socket) -> TcpInfo:
        """Ask the kernel for those of a connected TCP socket."""
        return cls.unpack(connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256))

    def counters(self) -> SocketCounters:
        """Return the totals among them."""
        return SocketCounters(
            self.bytes_sent,
            self.segments_out,
            self.bytes_received,
            self.bytes_retransmitted,
            self.retransmits,
            self.segment_bytes,
            None if self.least_rtt_us == UNKNOWN_RTT_US else self.least_rtt_us,
        )


LOOKS = 4
"""How often in a timeout a node looks who is silent, and tells others that it waits."""
_PAUSE_S = 0.001
"""Until the kernel may take the rest of a header."""
_MOST_PROBES = 127
"""The most unanswered probes that a kernel counts (``MAX_TCP_KEEPCNT``)."""


@dataclass(frozen=True, slots=True)
class ConnectionConfig:
    """Settings that all connections of a node have in common."""

    run: int
    """Number in every frame, 64 bit."""
    clock: Callable[[int], float]
    """Nanoseconds of the host's monotonic clock in the run's seconds."""
    silence_s: float
    """How long unanswered data is waited for."""
    most_bytes: int = MAX_BODY
    """Greatest length of a body, as far as peers of this run have a reason to send one."""
    lockstep: bool = True
    """Nobody has more than two messages of a bucket under way, so that buffers can be used
    again."""
    unsent_bytes: int | None = None
    """Most bytes that may be handed over and not have left; None: whatever the kernel takes."""
    ahead_ns: int = 0
    """Nanoseconds by which this host is ahead of the session's (monotonic), which frames tell."""

    def now_ns(self) -> int:
        """The session's monotonic clock."""
        return time.monotonic_ns() - self.ahead_ns


class FramedSocket:
    """One connection. Frames of several threads that send do not mix while they hold
    ``sending``."""

    def __init__(self, connected: socket.socket, config: ConnectionConfig, most_bytes: int) -> None:
        self.socket, self.sending = connected, threading.Lock()
        self.address: str | None = None
        """Address of the other end, where that was the one to connect."""
        self._config = config
        self._reader = FrameReader(connected, config.run, config.clock, most_bytes, config.ahead_ns)
        self._reader.reuses = config.lockstep
        self.delivered = self.taken = 0
        """Messages handed to the endpoint, and those of them that the role has received."""
        self.wait_notice = 0.0, 0.0
        """When its peer said last that it waits, and when whom it waits for was last heard of
        (monotonic clock)."""
        self.notice_bytes_in = self.notice_bytes_out = 0
        """Bytes of frames that say so."""
        self._received = self._acknowledged = self._unacknowledged = 0
        """Bytes of messages when they were last looked at."""
        self._progress_s = 0.0
        _tune(connected, config.silence_s)
        if config.unsent_bytes is not None:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, config.unsent_bytes)

    def allow_large_frames(self, most_bytes: int) -> None:
        """It is a peer's: longer frames may come."""
        self._reader.most_bytes = most_bytes

    def frame(self, message: Message) -> Frame:
        """Header and body as they go out now, to this peer or to several."""
        return framed(message, self._config.run, self._config.now_ns())

    def counters(self) -> SocketCounters:
        """Return the kernel's counts so far."""
        return TcpInfo.of(self.socket).counters()

    def silent_s(self) -> float:
        """Since when nothing has come, s; infinite for a closed connection."""
        try:
            return TcpInfo.of(self.socket).last_received_ms / 1e3
        except OSError:
            return float("inf")

    def last_progress_s(self, now_s: float) -> float:
        """When bytes of messages were last seen to have come, or to have been taken in; ``now_s``
        if now.

        What is short is taken in by the peer's kernel, whatever its process does: that is no sign
        of life.
        """
        with suppress(OSError):
            info = TcpInfo.of(self.socket)
            (left,) = struct.unpack("=i", fcntl.ioctl(self.socket, termios.TIOCOUTQ, bytes(4)))
            received = info.bytes_received - self.notice_bytes_in
            long = self._unacknowledged and left
            if long and info.bytes_acknowledged > self._acknowledged:
                self._progress_s = now_s
            elif received > self._received:
                self.note_activity(now_s - info.last_received_ms / 1e3)
            self._received = max(self._received, received)
            self._acknowledged, self._unacknowledged = info.bytes_acknowledged, left
        return self._progress_s

    def note_activity(self, at_s: float) -> None:
        """Something of its peer's has come, this way or another."""
        self._progress_s = max(self._progress_s, at_s)

    def on_wait_notice(self, message: Message, now_s: float) -> None:
        """Its peer waits itself: ``step`` of the message is for how long without a sign of life,
        ms."""
        self.notice_bytes_in += HEADER_BYTES
        self.wait_notice = now_s, now_s - message.step / 1e3

    def try_send_wait_notice(self, message: Message) -> None:
        """Send a frame without a body if the kernel takes it at once and nobody is sending; else
        there is no need for it."""
        if not self.sending.acquire(blocking=False):
            return
        try:
            header, _ = self.frame(message)
            left = memoryview(header)
            while left:
                try:
                    left = left[self.socket.send(left, socket.MSG_DONTWAIT) :]
                except BlockingIOError:
                    if len(left) == len(header):
                        return
                    time.sleep(_PAUSE_S)
            self.notice_bytes_out += len(header)
        except OSError:
            return  # whoever reads from it finds out
        finally:
            self.sending.release()

    def shutdown(self) -> None:
        """End the stream in both directions; whoever waits for it is told."""
        with suppress(OSError):  # the peer may have been faster
            self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End it, and give the socket back."""
        self.shutdown()
        self.socket.close()


def _tune(connected: socket.socket, silence_s: float) -> None:
    """No waiting for more data to send; a peer that does not answer is an error after
    ``silence_s``, or soon after.

    The kernel counts from the last answer, which on an idle connection came up to a probe's
    distance before the peer fell silent: an outage that is shorter than ``silence_s`` must not end
    it.
    """
    ask_for_stamps(connected)
    # whole seconds, as kernels take them: one, unless that would be too many probes
    probe_s = max(1, ceil(silence_s / _MOST_PROBES))
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, probe_s)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, probe_s)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, max(1, int(silence_s / probe_s)))
    # whoever waits for one that is stuck in sending gives it LOOKS-th of the time more
    end_s = silence_s + min(probe_s, silence_s / (2 * LOOKS))
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(end_s * 1000))


_Job = tuple[Message, threading.Event, list[OSError]]


class BlockingConnection(FramedSocket):
    """Frames over one blocking socket. One thread may receive; any thread may send."""

    def __init__(self, connected: socket.socket, config: ConnectionConfig, most_bytes: int) -> None:
        super().__init__(connected, config, most_bytes)
        self._later: queue.SimpleQueue[_Job | None] | None = None

    def send(self, message: Message) -> None:
        """Hand a frame over to the kernel, all of it. Raises OSError when the peer is gone."""
        with self.sending:
            header, body = self.frame(message)
            _send_all(self.socket, header, body)

    def send_later(self, message: Message) -> Callable[[], None]:
        """Begin to send in this connection's own thread; call the result to wait for the end of
        it."""
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
        try:
            while (message := self._reader.read()) is None:
                pass
        except EOFError:
            return None
        return message

    def close(self) -> None:
        """End the stream in both directions."""
        if self._later is not None:
            self._later.put(None)
        super().close()

    def _write(self, jobs: queue.SimpleQueue[_Job | None]) -> None:
        while (job := jobs.get()) is not None:
            message, finished, errors = job
            try:
                self.send(message)
            except OSError as error:
                errors.append(error)
            finished.set()


def _send_all(connected: socket.socket, header: bytes, body: memoryview) -> None:
    sent = connected.sendmsg([header, body])
    if sent < len(header):
        connected.sendall(header[sent:])
        sent = len(header)
    if sent < len(header) + len(body):
        connected.sendall(body[sent - len(header) :])


_JOINED_BYTES = 1 << 14
"""Bodies up to this size are copied behind their header."""


class NonBlockingConnection(FramedSocket):
    """Frames over one socket that never blocks. At most one frame is on its way out, and none is
    copied for it."""

    def __init__(self, connected: socket.socket, config: ConnectionConfig, most_bytes: int) -> None:
        connected.setblocking(False)
        super().__init__(connected, config, most_bytes)
        self.peer: int | None = None
        """Whose it is, once it has said so."""
        self.said_goodbye = self.ended = False
        self.events = 0
        """Events that the loop waits for on it; 0: it has been taken out of the loop."""
        self.failure: OSError | None = None
        """Why what was on its way out is not any more."""
        self._out: list[bytes | memoryview] = []

    @property
    def sends(self) -> bool:
        """Return whether some of a frame is still to be handed over."""
        return bool(self._out)

    @property
    def staged(self) -> bool:
        """Return whether more can be read though the socket may have nothing."""
        return self._reader.staged

    def read(self) -> Message | None:
        """The next frame as far as it is there; see ``FrameReader.read``, but None where nothing is
        there."""
        try:
            return self._reader.read()
        except BlockingIOError:
            return None

    def begin(self, frame: Frame) -> bool:
        """Hand over as much of a frame as the kernel takes; whether that is all of it.

        For the holder of ``sending``, until nothing is left. Raises OSError when the peer is gone.
        """
        self.failure = None
        header, body = frame
        sent, total = self._send([header, body]), len(header) + len(body)
        if sent == total:
            return True
        if sent < len(header):
            self._out = [header[sent:], body]
        else:
            self._out = [body[sent - len(header) :]]
        return False

    def flush(self) -> bool:
        """Hand over more of what is left; whether that is all of it. Raises OSError as
        ``begin``."""
        sent = self._send(self._out)
        while self._out and sent >= len(self._out[0]):
            sent -= len(self._out.pop(0))
        if self._out:
            self._out[0] = self._out[0][sent:]
        return not self._out

    def fail(self, error: OSError) -> None:
        """Drop what is on its way out: it will not arrive, because of ``error``."""
        self.failure, self._out = error, []

    def _send(self, parts: list[bytes | memoryview]) -> int:
        try:
            if len(parts) == 2 and len(parts[1]) <= _JOINED_BYTES:  # one piece is less work
                return self.socket.send(bytes(parts[0]) + parts[1])
            return self.socket.sendmsg(parts)
        except BlockingIOError:
            return 0
