"""Load for links under test: iperf3 between a node and its switch, and processors kept busy.

All of it ends by itself, and dies with the thread that started it: nothing outlives a benchmark.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from math import ceil
from typing import Any, Literal

from testbed.bench.lab import Lab
from testbed.errors import ExperimentError, MachineError
from testbed.fabric.enter import command_in
from testbed.process import environment, module_command
from testbed.scenario.shape import FRAME_BYTES, SEGMENT_BYTES

Way = Literal["up", "down", "both"]
LEAD_S, _LEAD_PER_NODE_S = 1.5, 0.15
_TAIL_S = 0.5
_FIRST_PORT = 5300
_PATIENCE_S = 20.0
_WAYS: dict[Way, list[str]] = {"up": [], "down": ["--reverse"], "both": ["--bidir"]}


def lead_s(nodes: int) -> float:
    """From starting flows of so many nodes to t0: processes start, connect and fill the queues."""
    return LEAD_S + _LEAD_PER_NODE_S * nodes


class Flow:
    """One node's TCP flow to the switch (``up``), from it, or both; it lasts ``seconds`` from ``begin`` on."""

    def __init__(self, lab: Lab, node: str, seconds: float, way: Way) -> None:
        self._lab, self._node, self._lasting = lab, node, ceil(seconds)
        port = str(_FIRST_PORT + lab.places[node].spec.peer)
        here = ["--bind", lab.networks.switch_address, "--port", port]
        server = ["--server", "--one-off", "--forceflush", *here]
        self._ask = [
            *("--client", lab.networks.switch_address, "--port", port, "--json"),
            *("--time", str(self._lasting), "--omit", "1", *_WAYS[way]),
        ]
        self._server = _start(lab.switch, server, subprocess.STDOUT)
        self._client: subprocess.Popen[str] | None = None

    def begin(self) -> None:
        """Start to send, once the other side listens. Raises ExperimentError where it does not."""
        _await_line(self._server, "listening")
        # What it has to complain about is in its JSON.
        self._client = _start(self._lab.netns(self._node), self._ask, subprocess.DEVNULL)

    def wire_bits(self) -> float | None:
        """Wait for its end; what the receiver got (with ``both`` on the way up), bit/s at the link layer.

        Payload counted where it arrived, with the headers of full segments added: independent of all
        counters on the way. None where iperf3 does not say. Raises ExperimentError where it failed.
        """
        assert self._client is not None
        try:
            out, _ = self._client.communicate(timeout=self._lasting + _PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise ExperimentError(f"iperf3 on {self._node} did not end") from None
        said = json.loads(out or "{}")
        if "error" in said:
            raise ExperimentError(f"iperf3 on {self._node}: {said['error']}")
        received: dict[str, Any] = said.get("end", {}).get("sum_received", {})
        bits = received.get("bits_per_second")
        return None if bits is None else float(bits) * FRAME_BYTES / SEGMENT_BYTES

    def end(self) -> None:
        """End both sides, whatever they are doing."""
        for process in filter(None, (self._client, self._server)):
            if process.poll() is None:
                process.terminate()
            process.communicate()


@contextmanager
def bulk(lab: Lab, nodes: Sequence[str], seconds: float, way: Way = "up") -> Iterator[list[Flow]]:
    """A flow for each of these nodes, for ``seconds`` after ``lead_s``, ended with the ``with`` block."""
    lasting = lead_s(len(nodes)) + seconds + _TAIL_S
    with ExitStack() as stack:
        flows = []
        for node in nodes:
            flows.append(Flow(lab, node, lasting, way))
            stack.callback(flows[-1].end)
        for flow in flows:
            flow.begin()
        yield flows


@contextmanager
def busy(loops: int, seconds: float) -> Iterator[None]:
    """So many processes that only compute, for at most ``seconds``, ended with the ``with`` block."""
    parent = str(os.getpid())
    command = module_command("testbed.bench.busy", f"{seconds:.3f}", "--parent", parent)
    processes = [subprocess.Popen(command, env=environment()) for _ in range(loops)]
    try:
        yield
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()


def _start(netns: str, arguments: Sequence[str], complaints: int) -> subprocess.Popen[str]:
    program = shutil.which("iperf3")
    if program is None:
        raise MachineError("iperf3 is not installed", fix="Run `make setup`, or install iperf3.")
    return subprocess.Popen(
        command_in(netns, os.getpid(), [program, *arguments]),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=complaints,
        text=True,
        env=environment(),
    )


def _await_line(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        said.append(line.strip())
        if word in line:
            return
    process.communicate()
    raise ExperimentError(f"iperf3 did not begin to listen: {' '.join(said)}")
