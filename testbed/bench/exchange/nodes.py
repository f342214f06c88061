"""Processes of a benchmark's nodes, each in a namespace of its own and without privileges:
``python -m testbed.bench.exchange.nodes``. Tasks and answers are lines of JSON.

Told a task, it connects; told ``warm``, it makes a few rounds and says how long one took; told ``go
N``, it makes N and says how long each took, and the processor's time; told ``count``, what its
interface has carried meanwhile. Here are the parts of the project's own exchanges; PyTorch's are in
``pytorch.py``, so that only they load PyTorch.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np

from testbed.bench.exchange.cases import (
    SERVER,
    BenchPart,
    BenchTask,
    Vector,
    add,
    entry,
    gradient,
)
from testbed.bench.links.lab import Lab
from testbed.errors import ExperimentError, InputError
from testbed.exchange.base import ExchangeSpec, Membership, ServerSide, exchanges
from testbed.exchange.coded.exchange import CodedExchange
from testbed.fabric.host_node import DataNetwork, HostClock, HostNode
from testbed.fabric.node_launcher import command_in
from testbed.links.agent.protocol import read
from testbed.node import Buffer
from testbed.process import environment, module_command
from testbed.runner.signals import seldom_collected
from testbed.transport import ENDPOINTS, EndpointKind, endpoint_for
from testbed.transport.epoll_endpoint import EpollEndpoint
from testbed.transport.frame import MAX_BODY
from testbed.transport.multicast.endpoint import Multicaster
from testbed.transport.threaded_endpoint import ThreadedEndpoint

_Answer = tuple[int, dict[str, Any] | None]
_END_S = 60.0


def node_name(number: int) -> str:
    """As nodes are called in the lab."""
    return "server" if number == SERVER else f"worker-{number - 1}"


class BenchProcesses:
    """Processes by number. The thread that makes them has to live as long as they shall."""

    def __init__(self, lab: Lab, numbers: Iterable[int], log: Path) -> None:
        self._answers: queue.SimpleQueue[_Answer] = queue.SimpleQueue()
        self._early: list[tuple[int, dict[str, Any]]] = []
        """Answers to what some have been told, and others not yet."""
        self._processes = {number: _start(lab, number, log) for number in numbers}
        for number, process in self._processes.items():
            Thread(target=self._read, args=(number, process), daemon=True).start()

    @property
    def alive(self) -> bool:
        """Return whether all processes are alive."""
        return bool(self._processes) and all(p.poll() is None for p in self._processes.values())

    def tell(self, lines: Mapping[int, str]) -> None:
        """A line to each. Raises ExperimentError for one that is gone."""
        for number, line in lines.items():
            stdin = self._processes[number].stdin
            assert stdin is not None
            try:
                stdin.write(line + "\n")
                stdin.flush()
            except OSError as error:
                raise ExperimentError(f"{node_name(number)} is gone: {error}") from error

    def answers(self, numbers: Iterable[int], timeout_s: float) -> dict[int, dict[str, Any]]:
        """One from each of ``numbers``. Raises ExperimentError for a complaint, a death, or
        silence."""
        missing, got = set(numbers), dict[int, dict[str, Any]]()
        give_up = time.monotonic() + timeout_s
        early, self._early = self._early, []
        while missing:
            number, said = early.pop(0) if early else self._next(give_up, missing)
            if number in missing:
                got[number] = said
                missing.discard(number)
            else:
                self._early.append((number, said))
        self._early += early
        return got

    def _next(self, give_up: float, missing: Iterable[int]) -> tuple[int, dict[str, Any]]:
        try:
            number, said = self._answers.get(timeout=max(0.0, give_up - time.monotonic()))
        except queue.Empty:
            names = ", ".join(node_name(each) for each in sorted(missing))
            raise ExperimentError(f"nothing came in time from {names}") from None
        if said is None:
            raise ExperimentError(f"{node_name(number)} ended")
        if "error" in said:
            raise ExperimentError(f"{node_name(number)}: {said['error']}")
        return number, said

    def end(self) -> None:
        """Whatever they are doing."""
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait(_END_S)
        self._processes = {}

    def _read(self, number: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._answers.put((number, json.loads(line)))
        self._answers.put((number, None))


@contextmanager
def bench_processes(lab: Lab, numbers: Iterable[int], log: Path) -> Iterator[BenchProcesses]:
    """Processes for the length of a ``with`` block; ``log`` is the folder of what they complain
    about."""
    processes = BenchProcesses(lab, numbers, log)
    try:
        yield processes
    finally:
        processes.end()


def _start(lab: Lab, number: int, log: Path) -> subprocess.Popen[str]:
    command = module_command("testbed.bench.exchange.nodes")
    log.mkdir(exist_ok=True)
    with (log / f"{node_name(number)}.log").open("ab") as complaints:
        return subprocess.Popen(
            command_in(lab.netns(node_name(number)), os.getpid(), command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
            text=True,
            env=environment(OMP_NUM_THREADS="1"),
        )


AnyEndpoint = ThreadedEndpoint | EpollEndpoint
_CONNECT_S = 60.0
_SAMPLES = 1 << 16
"""Samples of a mini-batch that is cut into blocks: any number that leaves something for each."""


def make(
    task: BenchTask,
    kind: str,
    endpoint_kind: EndpointKind | None = None,
    options: Mapping[str, Any] | None = None,
) -> BenchPart:
    """A node's part in rounds of the exchange ``kind`` with ``options``. ``endpoint_kind``: None
    for the one that a run would take."""
    exchange = exchanges.get(kind)
    endpoint_kind = (
        "threads" if exchange.multicasts else endpoint_kind or endpoint_for(task.nodes, task.bytes)
    )
    endpoint = _connected(task, exchange, endpoint_kind)
    if task.own == SERVER:
        if exchange.server is None:
            raise InputError(f"the exchange {kind!r} has no server")
        return _Server(task, endpoint, exchange)
    return _Worker(task, endpoint, exchange, options or {})


class _OurPart(BenchPart):
    """A node and its endpoint."""

    def __init__(self, task: BenchTask, endpoint: AnyEndpoint) -> None:
        self._node, self._endpoint = _node(task, endpoint), endpoint
        self._total = np.empty(task.bytes // 4, dtype=np.float32)

    def close(self) -> None:
        """Close what the node has open."""
        self._endpoint.close()
        self._node.close()


class _Worker(_OurPart):
    def __init__(
        self,
        task: BenchTask,
        endpoint: AnyEndpoint,
        exchange: ExchangeSpec,
        options: Mapping[str, Any],
    ) -> None:
        super().__init__(task, endpoint)
        self._side = exchange.worker(self._node, _peers(task, exchange, options))
        self._body: Buffer = gradient(task).data.cast("B")
        if isinstance(self._side, CodedExchange):
            blocks = len(self._side.samples(_SAMPLES))
            self._body = bytes(blocks * task.bytes)  # zeros: whoever has a block has the same
        self._side.connect()

    def round(self, step: int) -> None:
        """Submit the gradient, and wait; what others sent as it was is added here."""
        update = self._side.submit(step, 0, self._body).wait()
        if update.parts:
            add([_vector(part.body) for part in update.parts], self._total)

    def close(self) -> None:
        """Say goodbye."""
        self._side.close()
        super().close()


class _Server(_OurPart):
    def __init__(self, task: BenchTask, endpoint: AnyEndpoint, exchange: ExchangeSpec) -> None:
        super().__init__(task, endpoint)
        assert exchange.server is not None
        self._side: ServerSide = exchange.server(self._node, _peers(task, exchange))
        self._side.await_workers()

    def round(self, step: int) -> None:
        """Gather, add, broadcast."""
        messages = self._side.gather(step, 0)
        add([_vector(message.body) for message in messages], self._total)
        self._side.broadcast(step, 0, self._total.data.cast("B"))

    def close(self) -> None:
        """Wait for the workers' goodbyes."""
        self._side.await_goodbyes(0)
        super().close()


def _connected(task: BenchTask, exchange: ExchangeSpec, endpoint_kind: EndpointKind) -> AnyEndpoint:
    """As nodes of a run connect: workers to the server, or to those before them where there is
    none."""
    clock = HostClock()
    endpoint = ENDPOINTS[endpoint_kind](
        task.own,
        task.run,
        names=_names(task),
        clock=clock.seconds,
        silence_s=task.timeout_s,
        greeting_s=_CONNECT_S,
        lockstep=exchange.lockstep,
    )
    if exchange.multicasts and isinstance(endpoint, ThreadedEndpoint):
        endpoint.multicaster = Multicaster(
            task.own,
            task.run,
            names=_names(task),
            clock=clock.seconds,
            silence_s=task.timeout_s,
            addresses={peer: task.addresses[peer] for peer in task.workers},
            port=task.port,
            most_bytes=MAX_BODY,
            deliver=endpoint.deliver,
        )
    alone = exchange.server is None
    if alone or task.own == SERVER:
        endpoint.listen(task.addresses[task.own], task.port)
    if task.own != SERVER:
        for peer in range(1, task.own) if alone else [SERVER]:
            endpoint.connect(peer, task.addresses[peer], task.port, _CONNECT_S)
    return endpoint


def _node(task: BenchTask, endpoint: AnyEndpoint) -> HostNode:
    network = DataNetwork(task.own, _names(task), task.addresses)
    return HostNode(network.names[task.own], 0, endpoint, HostClock(), lambda _: None, network)


def _peers(
    task: BenchTask, exchange: ExchangeSpec, options: Mapping[str, Any] | None = None
) -> Membership:
    servers = [] if exchange.server is None else [SERVER]
    return Membership(
        task.own, servers, task.workers, _names(task), task.timeout_s, options=options or {}
    )


def _names(task: BenchTask) -> dict[int, str]:
    return {SERVER: "server", **{number: f"worker-{number - 1}" for number in task.workers}}


def _vector(body: Buffer) -> Vector:
    return np.frombuffer(body, dtype=np.float32)


_DEVICES = Path("/proc/self/net/dev")
_RECEIVED, _SENT = 0, 8


def main() -> None:
    """Until nobody tells it anything any more."""
    while line := sys.stdin.readline():
        try:
            _carry_out(read(BenchTask, json.loads(line)))
        except Exception as error:  # whoever measures decides
            sys.stderr.write(traceback.format_exc())
            _say(error=f"{type(error).__name__}: {error}")


def _carry_out(task: BenchTask) -> None:
    part = entry(task.exchange).part(task)
    try:
        _say(connected=True)
        _await_word("warm")
        began = time.monotonic()
        _rounds(part, range(1, task.warm_up + 1))
        _say(round_s=(time.monotonic() - began) / task.warm_up)
        count = int(_await_word("go"))
        before, busy_s = carried(task.device), time.process_time()
        with seldom_collected():
            seconds = _rounds(part, range(task.warm_up + 1, task.warm_up + count + 1))
        _say(seconds=seconds, cpu_s=time.process_time() - busy_s)
        _await_word("count")
        received, sent = (now - was for now, was in zip(carried(task.device), before, strict=True))
        _say(received=received, sent=sent)
    finally:
        part.close()
    _say(closed=True)


def _rounds(part: BenchPart, steps: range) -> list[float]:
    """How long each took, s."""
    seconds, before = [], time.monotonic_ns()
    for step in steps:
        part.round(step)
        now = time.monotonic_ns()
        seconds.append((now - before) / 1e9)
        before = now
    return seconds


def carried(device: str) -> tuple[int, int]:
    """Bytes that a device of this namespace has received and sent."""
    for line in _DEVICES.read_text().splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == device:
            fields = [int(field) for field in counters.split()]
            return fields[_RECEIVED], fields[_SENT]
    raise LookupError(f"there is no device {device!r} here")


def _await_word(word: str) -> str:
    """Return the text after ``word``, which is due. Raises ValueError for another, EOFError when
    nobody is there."""
    line = sys.stdin.readline()
    if not line:
        raise EOFError("nobody says anything any more")
    said, _, rest = line.strip().partition(" ")
    if said != word:
        raise ValueError(f"{word!r} was due, and {line!r} came")
    return rest


def _say(**fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
