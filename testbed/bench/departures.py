"""When each packet of a link that always has one to send leaves it, against an exact queue.

A process in a node sends datagrams that fill frames, as fast as its socket's buffer is emptied: some always wait, none is dropped. Packets
are timed by the kernel where they arrive, at the other end of the node's cable:
``python -m testbed.bench.departures ADDRESS WAITING --parent PID`` is that process.
"""

from __future__ import annotations

import argparse
import os
import socket
import struct
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Thread

from testbed.bench.figures import Step, queue_bytes
from testbed.bench.lab import Lab
from testbed.errors import ExperimentError
from testbed.fabric.enter import command_in
from testbed.links.bins import served_at
from testbed.links.namespaces import inside
from testbed.process import die_with, environment, module_command
from testbed.scenario.shape import FRAME_BYTES

PORT = 5201
_PAYLOAD = bytes(FRAME_BYTES - 14 - 20 - 8)
_FRAME_MEMORY = 2304
"""Bytes of a socket's buffer that a full frame takes."""
_MOST_WAITING = 48
_RECEIVE_BYTES = 1 << 26
_SO_RCVBUFFORCE, _TIMED, _ALL = 33, 35, 3
"""SO_RCVBUFFORCE and SO_TIMESTAMPNS, which Python's ``socket`` does not name, and ETH_P_ALL."""
_PACKET, _STATISTICS = 263, 6

Departure = tuple[float, int]
"""Seconds after t0, and bytes of the frame."""


class Departures:
    """Frames that come out of a node's cable until ``end``. Times are of the real-time clock, ns."""

    def __init__(self, lab: Lab, node: str) -> None:
        self.came: list[tuple[int, int]] = []
        self._ended = False
        port = lab.places[node].cable.port
        with inside(port.netns):
            self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _RECEIVE_BYTES)
        self._socket.setsockopt(socket.SOL_SOCKET, _TIMED, 1)
        self._socket.bind((port.name, _ALL))
        self._socket.settimeout(0.1)
        self._thread = Thread(target=self._receive, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Look at no more. Raises ExperimentError where frames came that were not seen."""
        self._ended = True
        self._thread.join()
        with self._socket:
            seen, missed = struct.unpack("II", self._socket.getsockopt(_PACKET, _STATISTICS, 8))
        if missed:
            raise ExperimentError(f"{missed} of {seen} frames came faster than they were timed")

    def after(self, t0_ns: int) -> list[Departure]:
        """Full frames from ``t0_ns`` of the monotonic clock on."""
        offset_ns = time.time_ns() - time.monotonic_ns()
        since = (((at - offset_ns - t0_ns) / 1e9, size) for at, size in self.came)
        return [(at_s, size) for at_s, size in since if at_s >= 0 and size == FRAME_BYTES]

    def _receive(self) -> None:
        buffer, room = bytearray(64), socket.CMSG_SPACE(16)
        while not self._ended:
            try:
                size, said, _, (_, _, kind, *_) = self._socket.recvmsg_into(
                    [buffer], room, socket.MSG_TRUNC
                )
            except TimeoutError:
                continue
            if kind != socket.PACKET_OUTGOING:
                seconds, nanoseconds = struct.unpack("qq", said[0][2])
                self.came.append((seconds * 10**9 + nanoseconds, size))


@contextmanager
def filled(lab: Lab, node: str, history: Sequence[Step]) -> Iterator[None]:
    """Keep some frames waiting at a node's link for the length of a ``with`` block, fewer than its queue takes."""
    waiting = min(_MOST_WAITING, queue_bytes(history) * 3 // 4 // FRAME_BYTES)
    parent = os.getpid()
    arguments = (lab.networks.switch_address, str(waiting), "--parent", str(parent))
    command = command_in(lab.netns(node), parent, module_command(__name__, *arguments))
    process = subprocess.Popen(command, env=environment())
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def errors_s(
    history: Sequence[Step], departures: Sequence[Departure], until_s: float
) -> list[float]:
    """How much later than from an exact queue each packet has left. Pure.

    The queue starts a packet when the rates have carried all before it, from the first departure on: nothing is forgiven, so what is lost once
    delays all that follow. Packets that it would have sent by ``until_s`` and that have not left by then are as late as they can be said to be.
    """
    errors, ideal_s = [], departures[0][0] if departures else 0.0
    for at_s, size in departures:
        errors.append(at_s - ideal_s)
        ideal_s = served_at(history, ideal_s, 8 * size)
    while ideal_s < until_s:
        errors.append(until_s - ideal_s)
        ideal_s = served_at(history, ideal_s, 8 * FRAME_BYTES)
    return errors


def main(arguments: Sequence[str] | None = None) -> None:
    """Send until ended."""
    parser = argparse.ArgumentParser(prog="testbed.bench.departures")
    parser.add_argument("address")
    parser.add_argument("waiting", type=int, help="frames")
    parser.add_argument("--parent", type=int, required=True, help="process to die with")
    options = parser.parse_args(arguments)
    die_with(options.parent)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        # the kernel takes it twice, for what it needs itself
        size = options.waiting * _FRAME_MEMORY // 2
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)
        sender.connect((options.address, PORT))
        while True:
            try:
                sender.send(_PAYLOAD)
            except ConnectionRefusedError:  # nobody listens there, which is told now and then
                continue


if __name__ == "__main__":
    main()
