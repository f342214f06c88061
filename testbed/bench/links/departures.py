"""Suites about packets: when each one of a saturated link leaves it, and of a radio link with
outages, against an exact queue.

A process in a node sends datagrams that fill frames, as fast as its socket's buffer is emptied:
some always wait, none is dropped. Packets are timed by the kernel where they arrive, at the other
end of the node's cable: ``python -m testbed.bench.links.departures ADDRESS WAITING --parent PID``
is that process.
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
from functools import partial
from math import inf
from typing import Any

from testbed.bench.links.alternatives import LinkMethod, Ours, TcHtb, TcTbf
from testbed.bench.links.lab import OURS, PLAIN, Lab, Watcher, lab, sleep_until
from testbed.bench.results import (
    Setup,
    Step,
    Suite,
    at_most,
    median,
    percentile,
    queue_bytes,
    radio,
)
from testbed.errors import ExperimentError
from testbed.fabric.node_launcher import command_in
from testbed.links.network.namespaces import inside
from testbed.links.replay.interval_errors import served_at
from testbed.process import die_with, environment, module_command
from testbed.scenario.link_state import FRAME_BYTES

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


class Departures(Watcher):
    """Frames that come out of a node's cable until ``end``. Times are of the real-time clock,
    ns."""

    def __init__(self, lab: Lab, node: str) -> None:
        super().__init__(daemon=True)
        self._frames: list[tuple[int, int]] = []
        port = lab.places[node].cable.port
        with inside(port.netns):
            self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _RECEIVE_BYTES)
        self._socket.setsockopt(socket.SOL_SOCKET, _TIMED, 1)
        self._socket.bind((port.name, _ALL))
        self._socket.settimeout(0.1)

    def end(self) -> None:
        """Look at no more. Raises ExperimentError where frames came that were not timed."""
        super().end()
        with self._socket:
            count, missed = struct.unpack("II", self._socket.getsockopt(_PACKET, _STATISTICS, 8))
        if missed:
            raise ExperimentError(f"{missed} of {count} frames came faster than they were timed")

    def after(self, t0_ns: int) -> list[Departure]:
        """Full frames from ``t0_ns`` of the monotonic clock on."""
        offset_ns = time.time_ns() - time.monotonic_ns()
        since = (((at - offset_ns - t0_ns) / 1e9, size) for at, size in self._frames)
        return [(at_s, size) for at_s, size in since if at_s >= 0 and size == FRAME_BYTES]

    def watch(self) -> None:
        """Time frames until ``ended``."""
        buffer, space = bytearray(64), socket.CMSG_SPACE(16)
        while not self.ended:
            try:
                size, ancillary, _, (_, _, kind, *_) = self._socket.recvmsg_into(
                    [buffer], space, socket.MSG_TRUNC
                )
            except TimeoutError:
                continue
            if kind != socket.PACKET_OUTGOING:
                seconds, nanoseconds = struct.unpack("qq", ancillary[0][2])
                self._frames.append((seconds * 10**9 + nanoseconds, size))


@contextmanager
def filled(lab: Lab, node: str, history: Sequence[Step]) -> Iterator[None]:
    """Keep some frames waiting at a node's link for the length of a ``with`` block, fewer than its
    queue takes."""
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

    The queue starts a packet when the rates have carried all before it, from the first departure
    on: nothing is forgiven, so what is lost once delays all that follow. Packets that it would have
    sent by ``until_s`` and that have not left by then are as late as they can be said to be; those
    that it would never send, since the history ends in an outage, as early as that.
    """
    errors, ideal_s = [], departures[0][0] if departures else 0.0
    for at_s, size in departures:
        errors.append(at_s - (until_s if ideal_s == inf else ideal_s))
        ideal_s = served_at(history, ideal_s, 8 * size)
    while ideal_s < until_s:
        errors.append(until_s - ideal_s)
        ideal_s = served_at(history, ideal_s, 8 * FRAME_BYTES)
    return errors


def main(arguments: Sequence[str] | None = None) -> None:
    """Send until ended."""
    parser = argparse.ArgumentParser(prog="testbed.bench.links.departures")
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


LEVELS = ((0, 0.12, 0.5, 1, 2, 4), (0, 1, 4, 10, 20), (0, 0.5, 5, 20, 35))
"""Mbit/s."""
MEDIAN_MS = 20.0
_LEAD_S = 1.0


def run(setup: Setup) -> Suite:
    """Ours against what is stepped by ``tc``, which is given 1 kbit/s for an outage."""
    seconds = setup.seconds(30.0, 5.0)
    methods: list[LinkMethod] = [Ours(), TcHtb(), TcHtb("tc-htb-1ms", 1e-3), TcTbf(FRAME_BYTES)]
    rows = []
    with lab([OURS, PLAIN], setup) as links:
        for levels in LEVELS:
            title = f"departures: up to {levels[-1]} Mbit/s, "
            by_method = setup.in_turns(title, methods, partial(_on_radio, links, levels, seconds))
            rows += [_row(levels[-1], method.name, runs) for method, runs in by_method.items()]
    ours = [row for row in rows if row["alternative"] == "narrows"]
    return Suite(
        "Rates of a radio link, 100 ms steps with outages: departure of each packet against an "
        "exact queue",
        rows,
        [
            at_most(f"median up to {row['highest_mbit']} Mbit/s, ms", row["median_ms"], MEDIAN_MS)
            for row in ours
        ],
        {"repeat": setup.repetitions, "seconds": seconds, "levels_mbit": LEVELS},
    )


def _on_radio(
    links: Lab, levels: tuple[float, ...], seconds: float, method: LinkMethod, repetition: int
) -> dict[str, float | None]:
    return _through(links, method, radio(levels, seconds, seed=repetition + 1), seconds)


def _through(
    links: Lab, method: LinkMethod, history: list[Step], seconds: float
) -> dict[str, float | None]:
    with (
        method.installed(links, history),
        filled(links, method.node, history),
        Departures(links, method.node) as departures,
    ):
        t0_ns = time.monotonic_ns() + int(_LEAD_S * 1e9)
        method.start(t0_ns)
        sleep_until(t0_ns + round(seconds * 1e9))
        method.stop()
    left = [each for each in departures.after(t0_ns) if each[0] <= seconds]
    late = errors_s(history, left, seconds)
    size = [abs(each) * 1e3 for each in late]
    return {
        "packets": len(left),
        "missing": len(late) - len(left),
        "median_ms": median(size),
        "p99_ms": percentile(size, 0.99),
        "last_ms": late[min(len(left), len(late) - 1)] * 1e3 if late else None,
    }


def _row(highest: float, name: str, runs: list[dict[str, float | None]]) -> dict[str, Any]:
    """Medians over the repetitions; of the error of the last packet that left, or the first that
    did not, its size. ``missing``: an exact queue had sent them by the end."""
    return {
        "highest_mbit": highest,
        "alternative": name,
        **{
            key: median(run[key] for run in runs)
            for key in ("packets", "missing", "median_ms", "p99_ms")
        },
        "last_ms": median(None if run["last_ms"] is None else abs(run["last_ms"]) for run in runs),
    }


if __name__ == "__main__":
    main()
