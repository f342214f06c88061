"""A node's part in cross traffic: iperf3 servers for flows it sinks and clients for those it
sends, started at an instant (``process.launch_command``).

Every program is a child of a thread of its own, which waits for it: it dies with that thread, and
so with the node.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from testbed.errors import ExperimentError, MachineError
from testbed.fabric.host_node import HostClock, HostTask
from testbed.process import environment, launch_command, within
from testbed.scenario.node_timeline import Burst, Flow

PROGRAM = "iperf3"
DATAGRAM_BYTES = 1400
"""Payload of a UDP packet."""
_DATAGRAM_HEADERS = 42
"""Ethernet 14, IPv4 20, UDP 8."""
_LONGEST_S = 86_400
"""The longest test that iperf3 accepts, in whole seconds; a signal ends it earlier."""
_CONNECT_MS = 3_000
_ENDED = "interrupt"
"""How iperf3's message begins when a signal has ended it."""


@dataclass(frozen=True, slots=True)
class FlowEnds:
    """One flow as its two nodes need it. The rate of a UDP flow is meant at the link layer."""

    flow: Flow
    source_address: str
    sink_address: str
    port: int

    def to_json(self) -> dict[str, Any]:
        """As a plain object."""
        return asdict(self)

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> FlowEnds:
        """Read what ``to_json`` wrote."""
        return cls(**{**given, "flow": Flow(**given["flow"])})


@dataclass(frozen=True, slots=True)
class IperfSent:
    """A client's report of one test. ``retransmits`` of TCP, ``packets`` of UDP."""

    bytes: int = 0
    retransmits: int = 0
    packets: int = 0
    cookie: str | None = None
    """Marks the test on both sides."""
    error: str | None = None
    """The error, if any; that it was ended on time is none."""


def server(ends: FlowEnds) -> list[str]:
    """The sink's command: it takes one test after the other."""
    where = ["-B", ends.sink_address, "-p", str(ends.port)]
    return [PROGRAM, "-s", *where, "-J", "--forceflush"]


def client(ends: FlowEnds) -> list[str]:
    """The source's command: a test without end."""
    flow = ends.flow
    where = ["-c", ends.sink_address, "-p", str(ends.port), "-B", ends.source_address]
    common = ["-J", "-i", "0", "-t", str(_LONGEST_S), "--connect-timeout", str(_CONNECT_MS)]
    if flow.kind == "udp":
        each = payload_bits((flow.rate_bits or 0) // flow.streams)
        how = ["-u", "-b", str(each), "-l", str(DATAGRAM_BYTES)]
    else:
        how = ["-C", flow.congestion] if flow.congestion else []
    return [PROGRAM, *where, *common, *how, "-P", str(flow.streams)]


def payload_bits(link_bits: int) -> int:
    """Payload rate of UDP that takes ``link_bits`` at the link layer; at least 1: 0 is no limit."""
    return max(1, link_bits * DATAGRAM_BYTES // (DATAGRAM_BYTES + _DATAGRAM_HEADERS))


def sent(output: str) -> IperfSent:
    """Read a client's output."""
    try:
        report = json.loads(output)
    except ValueError:
        return IperfSent(error=output.strip() or "it said nothing")
    error = report.get("error")
    if error is not None and error.startswith(_ENDED):
        error = None
    total = report.get("end", {}).get("sum_sent", {})
    return IperfSent(
        bytes=int(total.get("bytes", 0)),
        retransmits=int(total.get("retransmits", 0)),
        packets=int(total.get("packets", 0)),
        cookie=report.get("start", {}).get("cookie"),
        error=error,
    )


def received(report: dict[str, Any]) -> dict[str, Any] | None:
    """Return a server's report of one test: bytes, and of UDP packets, lost and jitter. None: there
    was no test.

    Not ``complete``: the client was killed, and what came in the last second is not counted.
    """
    total = report.get("end", {}).get("sum_received")
    parts = [total] if total else [part["sum"] for part in report.get("intervals", ())]
    if not parts:
        return None
    return {
        "cookie": report.get("start", {}).get("cookie"),
        "complete": bool(total),
        "bytes": sum(int(part.get("bytes", 0)) for part in parts),
        "packets": sum(int(part.get("packets", 0)) for part in parts),
        "lost": sum(int(part.get("lost_packets", 0)) for part in parts),
        "jitter_s": float(parts[-1].get("jitter_ms", 0.0)) / 1e3,
    }


def documents(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """The JSON objects that a server writes one after the other, each as soon as it is complete."""
    text: str | None = None
    for line in lines:
        if line.startswith("{"):  # what comes before is a remark, or broke off
            text = ""
        if text is None:
            continue
        text += line
        if line.startswith("}"):
            yield json.loads(text)
            text = None


Say = Callable[[dict[str, Any]], None]
EARLY_S = 1.0
"""How long before a burst its program is started."""
RETRY_S = 0.2
PATIENCE_S = 5.0
"""A burst that nothing has come of for so long is reported, while it is tried on."""
LISTEN_S = 20.0
"""How long a server may take to start."""
_END_S = 3.0
_TABLE, _LISTENS = Path("/proc/thread-self/net/tcp"), "0A"
_LOOK_S = 0.1


class Sink:
    """One flow's server. ``say`` gets a record for every test that has ended."""

    def __init__(self, ends: FlowEnds, say: Say) -> None:
        self._ends, self._say = ends, say
        self.tests = 0
        self._process: subprocess.Popen[str] | None = None
        self._ended = False
        self._task = HostTask(self._run)

    def await_listening(self) -> None:
        """Return once clients can connect, or it was ended. Raises ExperimentError."""
        if not within(LISTEN_S, 0.02, lambda: self._ended or _listening(self._ends.port)):
            raise ExperimentError(f"the iperf3 server of {self._ends.flow.name!r} does not listen")

    def end(self, tests: int, patience_s: float) -> None:
        """Wait until ``tests`` tests have ended, for so long at most, and stop."""
        within(patience_s, 0.02, lambda: self.tests >= tests)
        self._ended = True
        if self._process is not None:
            self._process.terminate()
        self._task.join()

    def _run(self) -> None:
        process = self._process = _start(server(self._ends))
        if self._ended:  # while it was being started
            process.terminate()
        assert process.stdout is not None
        with process.stdout:
            for report in documents(iter(process.stdout.readline, "")):
                if test := received(report):
                    self._say({"kind": "received", "flow": self._ends.flow.name, **test})
                    self.tests += 1
        code = process.wait()
        if not self._ended:
            self._say({"kind": "stopped", "flow": self._ends.flow.name, "code": code})


class TrafficSource:
    """One flow's client, from t0 on. ``say`` gets a record for each burst when it is over."""

    def __init__(self, ends: FlowEnds, clock: HostClock, say: Say) -> None:
        self._ends, self._clock, self._say = ends, clock, say
        self._ended = threading.Event()
        self._task = HostTask(self._run)

    def end(self) -> None:
        """End the burst in progress, and begin no more."""
        self._ended.set()

    def join(self) -> None:
        """Wait for the last record after ``end``; raises what went wrong."""
        self._task.join()

    def _run(self) -> None:
        """A node that was restarted joins in where the flow is now."""
        for burst in self._ends.flow.bursts():
            if burst.stop_s > self._clock.now():
                if self._ended.wait(max(0.0, burst.start_s - EARLY_S - self._clock.now())):
                    return
                self._burst(burst)

    def _burst(self, burst: Burst) -> None:
        """Send until the burst's end; a test that breaks off early is followed by another."""
        tests: list[IperfSent] = []
        start_s, reported = max(burst.start_s, self._clock.now()), False
        while not self._over(burst):
            tests.append(self._test(burst))
            if self._over(burst):
                break
            moved = any(test.bytes for test in tests)
            if not (moved or reported) and self._clock.now() > start_s + PATIENCE_S:
                reported = True
                self._report("stalled", burst, start_s, tests)
            self._ended.wait(RETRY_S)
        if tests:
            self._report("sent", burst, start_s, tests)

    def _test(self, burst: Burst) -> IperfSent:
        """One run of the client, ended by a signal when the burst is over."""
        at_ns = self._clock.t0_ns + int(burst.start_s * 1e9)
        process = _start(client(self._ends), at_ns)
        while process.poll() is None and not self._over(burst):
            left = min(_LOOK_S, burst.stop_s - self._clock.now())
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.001, left))
        ended = process.poll() is None
        if ended:
            process.send_signal(signal.SIGINT)
        try:
            output, _ = process.communicate(timeout=_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
        # Ended before it had begun: a burst may be shorter than a busy machine takes to start a
        # program.
        return IperfSent() if ended and not output else sent(output)

    def _over(self, burst: Burst) -> bool:
        return self._ended.is_set() or self._clock.now() >= burst.stop_s

    def _report(self, kind: str, burst: Burst, start_s: float, tests: list[IperfSent]) -> None:
        errors = [test.error for test in tests if test.error is not None]
        self._say(
            {
                "kind": kind,
                "flow": self._ends.flow.name,
                "due_s": burst.start_s,
                "start_s": start_s,
                "stop_s": min(burst.stop_s, self._clock.now()),
                "bytes": sum(test.bytes for test in tests),
                "retransmits": sum(test.retransmits for test in tests),
                "packets": sum(test.packets for test in tests),
                "tests": [test.cookie for test in tests if test.cookie is not None and test.bytes],
                "error": errors[-1] if errors else None,
            }
        )


class NodeTraffic:
    """All flows of a node. Raises MachineError where iperf3 is wanted and missing."""

    def __init__(self, message: Mapping[str, Any], clock: HostClock, say: Say) -> None:
        self._clock, self._say = clock, say
        self._sending = [FlowEnds.from_json(ends) for ends in message["sources"]]
        sinking = [FlowEnds.from_json(ends) for ends in message["sinks"]]
        if (sinking or self._sending) and shutil.which(PROGRAM) is None:
            raise missing()
        self._sinks = {ends.flow.name: Sink(ends, say) for ends in sinking}
        self._sources: list[TrafficSource] = []

    def await_sinks(self) -> None:
        """Return once every flow to this node would be received. Raises ExperimentError."""
        for sink in self._sinks.values():
            sink.await_listening()

    def start(self) -> None:
        """The clock has been set: from now on every flow keeps to its times."""
        self._sources = [TrafficSource(ends, self._clock, self._say) for ends in self._sending]

    def end_sources(self) -> None:
        """Send no more; the last records have been handed over when this returns."""
        sources, self._sources = self._sources, []
        for source in sources:
            source.end()
        for source in sources:
            source.join()

    def end_sinks(self, tests: Mapping[str, int]) -> None:
        """Stop the servers, each once it has seen as many tests as were sent to it, or after a
        while for all: those of a node that was restarted did not see the earlier ones."""
        give_up = time.monotonic() + _END_S
        sinks, self._sinks = self._sinks, {}
        for name, sink in sinks.items():
            sink.end(tests.get(name, 0), max(0.0, give_up - time.monotonic()))


def missing() -> MachineError:
    """Return the error where there is no iperf3."""
    return MachineError(
        "cross traffic needs iperf3, which is not installed",
        fix="Install it: `apt-get install iperf3`, or run `testbed setup`",
    )


def _listening(port: int) -> bool:
    """Return whether someone listens at a port here; trying it would count as a test."""
    rows = (line.split() for line in _TABLE.read_text().splitlines()[1:])
    return any(row[3] == _LISTENS and int(row[1].rpartition(":")[2], 16) == port for row in rows)


def _start(command: Sequence[str], at_ns: int = 0) -> subprocess.Popen[str]:
    return subprocess.Popen(
        launch_command(command, at_ns),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
