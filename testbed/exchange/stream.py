"""What every TCP connection that carries frames has, whoever waits for it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from testbed.exchange.arrival import ask_for_stamps
from testbed.exchange.frame import MAX_BODY, Header
from testbed.exchange.inflow import Inflow
from testbed.exchange.tcp_info import SocketCounters, read_counters, silent_s
from testbed.node import Message


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


class Stream:
    """One connection. Frames of several threads that send do not mix while they hold ``sending``."""

    def __init__(self, connected: socket.socket, terms: Terms, most_bytes: int) -> None:
        self.socket, self.sending = connected, threading.Lock()
        self._run = terms.run
        self._inflow = Inflow(connected, terms.run, terms.clock, most_bytes)
        self._inflow.reuses = terms.lockstep
        self.delivered = self.taken = 0
        """Messages handed to the endpoint, and those of them that the role has received."""
        _tune(connected, terms.silence_s)

    def trust(self, most_bytes: int) -> None:
        """It is a peer's: longer frames may come."""
        self._inflow.most_bytes = most_bytes

    def frame(self, message: Message) -> tuple[bytes, memoryview]:
        """Header and body as they go out now."""
        body = memoryview(message.body).cast("B")
        header = Header(
            message.kind, message.sender, self._run, message.step, message.bucket, len(body),
            time.monotonic_ns(),
        )  # fmt: skip
        return header.pack(), body

    def counters(self) -> SocketCounters:
        """What the kernel counted so far."""
        return read_counters(self.socket)

    def silent_s(self) -> float:
        """Since when nothing has come, s; infinite for a closed connection."""
        try:
            return silent_s(self.socket)
        except OSError:
            return float("inf")

    def shut(self) -> None:
        """End the stream in both directions; whoever waits for it is told."""
        with suppress(OSError):  # the peer may have been faster
            self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End it, and give the socket back."""
        self.shut()
        self.socket.close()


def _tune(connected: socket.socket, silence_s: float) -> None:
    """No waiting for more data to send; a peer that does not answer is an error after ``silence_s``."""
    ask_for_stamps(connected)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, int(silence_s / 2)))
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, max(1, int(silence_s / 2)))
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(silence_s * 1000))
