"""What every TCP connection that carries frames has, whoever waits for it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from testbed.exchange.arrival import ask_for_stamps
from testbed.exchange.frame import HEADER_BYTES, MAX_BODY, Frame, framed
from testbed.exchange.inflow import Inflow
from testbed.exchange.tcp_info import Moved, SocketCounters, moved, read_counters, silent_s
from testbed.exchange.vigil import LOOKS
from testbed.node import Message

_PAUSE_S = 0.001
"""Until the kernel may take the rest of a header."""
_PROBE_S = 1
"""Between probes of an idle connection; kernels take whole seconds."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What all connections of a node have in common."""

    run: int
    """Number in every frame, 64 bit."""
    clock: Callable[[int], float]
    """Nanoseconds of the host's monotonic clock in the run's seconds."""
    silence_s: float
    """How long unanswered data is waited for."""
    most_bytes: int = MAX_BODY
    """Of a body, as far as peers of this run have a reason to send one."""
    lockstep: bool = True
    """Nobody has more than two messages of a bucket under way, so that buffers can be used again."""
    unsent_bytes: int | None = None
    """Of what has not left, so much may be handed over; None: whatever the kernel takes."""


class Stream:
    """One connection. Frames of several threads that send do not mix while they hold ``sending``."""

    def __init__(self, connected: socket.socket, terms: Terms, most_bytes: int) -> None:
        self.socket, self.sending = connected, threading.Lock()
        self.address: str | None = None
        """Of the other end, where that was the one to connect."""
        self._run = terms.run
        self._inflow = Inflow(connected, terms.run, terms.clock, most_bytes)
        self._inflow.reuses = terms.lockstep
        self.delivered = self.taken = 0
        """Messages handed to the endpoint, and those of them that the role has received."""
        self.excused = 0.0, 0.0
        """When its peer said last that it waits, and when whom it waits for was last heard of (monotonic clock)."""
        self.excuses_in = self.excuses_out = 0
        """Bytes of frames that say so."""
        self._moved, self._moved_s = Moved(0, 0, 0), 0.0
        _tune(connected, terms.silence_s)
        if terms.unsent_bytes is not None:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, terms.unsent_bytes)

    def trust(self, most_bytes: int) -> None:
        """It is a peer's: longer frames may come."""
        self._inflow.most_bytes = most_bytes

    def frame(self, message: Message) -> Frame:
        """Header and body as they go out now, to this peer or to several."""
        return framed(message, self._run, time.monotonic_ns())

    def counters(self) -> SocketCounters:
        """What the kernel counted so far."""
        return read_counters(self.socket)

    def silent_s(self) -> float:
        """Since when nothing has come, s; infinite for a closed connection."""
        try:
            return silent_s(self.socket)
        except OSError:
            return float("inf")

    def moved_s(self, now_s: float) -> float:
        """When bytes of messages were last seen to have come, or to have been taken in; ``now_s`` if now.

        What is short is taken in by the peer's kernel, whatever its process does: that is no sign of life.
        """
        with suppress(OSError):
            before, now = self._moved, moved(self.socket)
            long = before.waiting and now.waiting
            came = now.received - self.excuses_in > before.received
            if long and now.acknowledged > before.acknowledged:
                self._moved_s = now_s
            elif came:
                self._moved_s = max(self._moved_s, now_s - silent_s(self.socket))
            most = max(before.received, now.received - self.excuses_in)
            self._moved = Moved(most, now.acknowledged, now.waiting)
        return self._moved_s

    def heard(self, at_s: float) -> None:
        """Something of its peer's came another way."""
        self._moved_s = max(self._moved_s, at_s)

    def excuse(self, message: Message, now_s: float) -> None:
        """Its peer waits itself: ``step`` of the message is for how long without a sign of life, ms."""
        self.excuses_in += HEADER_BYTES
        self.excused = now_s, now_s - message.step / 1e3

    def say(self, message: Message) -> None:
        """Send a frame without a body if the kernel takes it at once and nobody is sending; else there is no need for it."""
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
            self.excuses_out += len(header)
        except OSError:
            return  # whoever reads from it finds out
        finally:
            self.sending.release()

    def shut(self) -> None:
        """End the stream in both directions; whoever waits for it is told."""
        with suppress(OSError):  # the peer may have been faster
            self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End it, and give the socket back."""
        self.shut()
        self.socket.close()


def _tune(connected: socket.socket, silence_s: float) -> None:
    """No waiting for more data to send; a peer that does not answer is an error after ``silence_s``, or soon after.

    The kernel counts from the last answer, which on an idle connection came up to a probe's distance before the
    peer fell silent: an outage that is shorter than ``silence_s`` must not end it.
    """
    ask_for_stamps(connected)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE_S)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_S)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, max(1, int(silence_s / _PROBE_S)))
    # whoever waits for one that is stuck in sending gives it LOOKS-th of the time more
    end_s = silence_s + min(_PROBE_S, silence_s / (2 * LOOKS))
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(end_s * 1000))
