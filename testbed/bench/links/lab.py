"""Links under test: namespaces on one switch, iperf3 and busy processors as load, and a TCP stream
whose arrivals are timed.

All of it ends by itself, and dies with the thread that started it: nothing outlives a benchmark.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import ceil
from threading import Thread
from typing import Self

from testbed.bench.results import Setup
from testbed.errors import ExperimentError, MachineError
from testbed.fabric.base import Networks, RunContext, new_id
from testbed.fabric.netns import NetnsFabric
from testbed.fabric.node_launcher import command_in
from testbed.links.agent.client import AgentClient
from testbed.links.network.devices import TcpSettings, shape_route
from testbed.links.network.namespaces import inside
from testbed.process import environment
from testbed.runner.signals import machine, shielded
from testbed.scenario.link_model import Directions
from testbed.scenario.link_state import FRAME_BYTES, SEGMENT_BYTES
from testbed.topology import NodePlacement, NodeSpec

OURS, PLAIN = "ours", "plain"
"""The node whose link the agent shapes, and the one that it never touches."""
CONGESTION = "cubic"
"""The same for all alternatives, whatever the host's default is."""


class Wires(NetnsFabric):
    """A run's namespaces and cables; nobody lives in them."""

    def lay(self, names: Sequence[str]) -> tuple[Networks, dict[str, NodePlacement]]:
        """Make a node for every name. Raises MachineError."""
        networks = self.create([NodeSpec(name, name, "host", n, n) for n, name in enumerate(names)])
        assert self._plan is not None
        return networks, self._places(self._plan)


@dataclass(frozen=True, slots=True)
class Lab:
    """Nodes by name, and the agent that shapes their links."""

    agent: AgentClient
    networks: Networks
    places: Mapping[str, NodePlacement]

    @property
    def switch(self) -> str:
        """Path of the namespace where the switch's own address is."""
        assert self.networks.switch_netns is not None
        return self.networks.switch_netns

    def netns(self, node: str) -> str:
        """Path of a node's namespace."""
        path = self.places[node].nic.netns
        assert path is not None
        return path


@contextmanager
def lab(names: Sequence[str], setup: Setup) -> Iterator[Lab]:
    """Nodes for the length of a ``with`` block; other runs on a small machine wait meanwhile.

    Raises MachineError where they cannot be made.
    """
    with machine(setup.say):
        context = RunContext(new_id(), setup.directory, secrets.token_hex(16), quiet=True)
        fabric = Wires(context)
        try:
            networks, places = fabric.lay(names)
            for placement in places.values():
                shape_route(placement.nic.netns, placement.nic.index, TcpSettings(CONGESTION, None))
            yield Lab(fabric.agent, networks, places)
        finally:
            with shielded():
                fabric.destroy()


class Watcher(Thread, ABC):
    """A thread that does its work until ``end``, for a ``with`` block; errors of the system that
    ended it earlier are raised there."""

    ended = False
    _failure: OSError | None = None

    @abstractmethod
    def watch(self) -> None:
        """Work until ``ended``."""

    def run(self) -> None:
        """The thread's work."""
        try:
            self.watch()
        except OSError as error:
            self._failure = error

    def finish(self) -> None:
        """Await the end of its work. Raises OSError where that ended too early."""
        self.join()
        if self._failure is not None:
            raise self._failure

    def end(self) -> None:
        """End its work."""
        self.ended = True
        self.finish()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


def sleep_until(time_ns: int) -> None:
    """Sleep until a time of the monotonic clock."""
    time.sleep(max(0, time_ns - time.monotonic_ns()) / 1e9)


LEAD_S, _LEAD_PER_NODE_S = 1.5, 0.15
OMITTED_S = 1
"""At the beginning of a flow, what is not counted."""
_TAIL_S = 0.5
_FIRST_PORT = 5300
_PATIENCE_S = 30.0
_LOOP = """
import sys, time
stop = time.monotonic() + float(sys.argv[1])
while time.monotonic() < stop:
    pass
"""
_WAYS: dict[Directions, list[str]] = {"up": [], "down": ["--reverse"], "both": ["--bidir"]}


def lead_s(nodes: int) -> float:
    """From starting flows of so many nodes to t0: processes start, connect and fill the queues."""
    return LEAD_S + _LEAD_PER_NODE_S * nodes


class BenchFlow:
    """One node's TCP flow to ``sink`` (``up``; by default the switch), from it, or both; it lasts
    ``seconds`` from ``begin`` on."""

    def __init__(
        self, lab: Lab, node: str, seconds: float, direction: Directions, sink: str | None = None
    ) -> None:
        self._lab, self._node, self._lasting = lab, node, ceil(seconds)
        port = str(_FIRST_PORT + lab.places[node].spec.peer)
        where, address = lab.switch, lab.networks.switch_address
        if sink is not None:
            where, address = lab.netns(sink), lab.places[sink].data_address
        server = ["--server", "--one-off", "--forceflush", "--bind", address, "--port", port]
        self._ask = [
            *("--client", address, "--port", port, "--json"),
            *("--time", str(self._lasting), "--omit", str(OMITTED_S), *_WAYS[direction]),
        ]
        self._server = _iperf3(where, server, subprocess.STDOUT)
        self._client: subprocess.Popen[str] | None = None

    def begin(self) -> None:
        """Start to send, once the other side listens. Raises ExperimentError where it does not."""
        _await_listening(self._server)
        self._client = _iperf3(self._lab.netns(self._node), self._ask)

    def wire_bits(self) -> float | None:
        """Wait for its end; what the receiver got (with ``both`` on the way up), bit/s at the link
        layer.

        Payload counted where it arrived, with the headers of full segments added: independent of
        all counters on the way. None where iperf3 does not say. Raises ExperimentError where it
        failed.
        """
        bits = self.payload_bits()
        return None if bits is None else bits * FRAME_BYTES / SEGMENT_BYTES

    def payload_bits(self) -> float | None:
        """The same without headers."""
        assert self._client is not None
        try:
            out, _ = self._client.communicate(timeout=self._lasting + _PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise ExperimentError(f"iperf3 on {self._node} did not end") from None
        said = json.loads(out or "{}")
        if "error" in said:
            raise ExperimentError(f"iperf3 on {self._node}: {said['error']}")
        bits = said.get("end", {}).get("sum_received", {}).get("bits_per_second")
        return None if bits is None else float(bits)

    def end(self) -> None:
        """End both sides, whatever they are doing."""
        for process in filter(None, (self._client, self._server)):
            if process.poll() is None:
                process.terminate()
            process.communicate()


@contextmanager
def bulk(
    lab: Lab, nodes: Sequence[str], seconds: float, direction: Directions = "up"
) -> Iterator[list[BenchFlow]]:
    """A flow for each of these nodes, for ``seconds`` after ``lead_s``, ended with the ``with``
    block."""
    lasting = lead_s(len(nodes)) + seconds + _TAIL_S
    with flowing(lab, nodes, lasting, direction) as flows:
        yield flows


@contextmanager
def flowing(
    lab: Lab, nodes: Sequence[str], seconds: float, direction: Directions, sink: str | None = None
) -> Iterator[list[BenchFlow]]:
    """A flow for each of these nodes, begun now, ended with the ``with`` block."""
    with ExitStack() as stack:
        flows = []
        for node in nodes:
            flows.append(BenchFlow(lab, node, seconds, direction, sink))
            stack.callback(flows[-1].end)
        for flow in flows:
            flow.begin()
        yield flows


@contextmanager
def busy(loops: int, seconds: float) -> Iterator[None]:
    """So many processes that only compute, for at most ``seconds``, ended with the ``with``
    block."""
    command = ["setpriv", "--pdeathsig=KILL", sys.executable, "-I", "-c", _LOOP, f"{seconds:.3f}"]
    processes = [subprocess.Popen(command) for _ in range(loops)]
    try:
        yield
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()


def _iperf3(
    netns: str, arguments: Sequence[str], complaints: int = subprocess.DEVNULL
) -> subprocess.Popen[str]:
    """Start iperf3 in a namespace; what a client has to complain about is in its JSON. Raises
    MachineError where it is not installed."""
    program = shutil.which("iperf3")
    if program is None:
        raise MachineError("iperf3 is not installed", fix="Run `testbed setup`, or install iperf3.")
    return subprocess.Popen(
        command_in(netns, os.getpid(), [program, *arguments]),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=complaints,
        text=True,
        env=environment(),
    )


def _await_listening(server: subprocess.Popen[str]) -> None:
    """Wait until a server listens. Raises ExperimentError with its words where it ends instead."""
    assert server.stdout is not None
    said = []
    for line in server.stdout:
        said.append(line.strip())
        if "listening" in line:
            return
    server.communicate()
    raise ExperimentError(f"iperf3 did not begin to listen: {' '.join(said)}")


_PORT, _CHUNK = 5200, bytes(1 << 15)


class BenchStream:
    """From a node to its switch until ``close``; ``arrived`` holds ``(monotonic ns, payload
    bytes)``."""

    def __init__(self, lab: Lab, node: str) -> None:
        self.arrived: list[tuple[int, int]] = []
        self._ended = False
        address = (lab.networks.switch_address, _PORT)
        with inside(lab.switch):
            listener = socket.create_server(address)
        with listener:
            with inside(lab.netns(node)):
                self._sender = socket.create_connection(address, timeout=10)
            self._receiver, _ = listener.accept()
        for each in (self._sender, self._receiver):
            each.settimeout(0.1)
        self._threads = [Thread(target=work, daemon=True) for work in (self._send, self._receive)]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Break it off."""
        self._ended = True
        for thread in self._threads:
            thread.join()
        # What still waits is thrown away: nothing of it may be left in the link for the next one.
        self._sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self._sender.close()
        self._receiver.close()

    def _send(self) -> None:
        while not self._ended:
            try:
                self._sender.send(_CHUNK)
            except TimeoutError:
                continue
            except OSError:
                return

    def _receive(self) -> None:
        while not self._ended:
            try:
                count = len(self._receiver.recv(1 << 18))
            except TimeoutError:
                continue
            except OSError:
                return
            self.arrived.append((time.monotonic_ns(), count))
