"""Rounds of gradients by each exchange that is compared: the project's own, gloo's point-to-point
messages, torch RPC, and iperf3 as the most that links carry.

A receive buffer that is shorter than its message ends the process, so the length travels ahead, in
a message of its own.

Its transports are forced onto the network: left alone, processes of one host pass tensors through
memory.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from datetime import timedelta
from queue import SimpleQueue
from threading import Lock
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import rpc
from torch.futures import Future

from testbed import exchange
from testbed.bench.exchange.cases import (
    SERVER,
    BenchPart,
    BenchTask,
    ExchangeCell,
    ExchangeSample,
    Vector,
    add,
    gradient,
)
from testbed.bench.exchange.nodes import node_name
from testbed.bench.links.lab import Lab, await_listening, end_process, iperf3, received_bits
from testbed.errors import ExperimentError, InputError
from testbed.exchange.base import ExchangeSpec, Membership, ServerSide, exchanges
from testbed.exchange.coded.exchange import CodedExchange
from testbed.fabric.host_node import DataNetwork, HostClock, HostNode
from testbed.node import Buffer
from testbed.transport import ENDPOINTS, EndpointKind, endpoint_for
from testbed.transport.epoll_endpoint import EpollEndpoint
from testbed.transport.frame import MAX_BODY
from testbed.transport.multicast.endpoint import Multicaster
from testbed.transport.threaded_endpoint import ThreadedEndpoint

del exchange

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


def make_gloo(task: BenchTask) -> BenchPart:
    """A node's part."""
    os.environ["GLOO_SOCKET_IFNAME"] = task.device
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://{task.addresses[SERVER]}:{task.port}",
        rank=task.own,
        world_size=task.nodes + 1,
        timeout=timedelta(seconds=task.timeout_s),
    )
    return _GlooServer(task) if task.own == SERVER else _GlooWorker(task)


class _GlooPart(BenchPart):
    def close(self) -> None:
        """Leave the group."""
        dist.barrier()
        dist.destroy_process_group()


class _GlooWorker(_GlooPart):
    def __init__(self, task: BenchTask) -> None:
        self._own, self._length = torch.from_numpy(gradient(task)), torch.tensor([task.bytes, 0])
        self._update = torch.empty_like(self._own)

    def round(self, step: int) -> None:
        """Push and pull."""
        self._length[1] = step
        _wait([dist.isend(self._length, SERVER), dist.isend(self._own, SERVER)])
        _wait([dist.irecv(self._length, SERVER)])
        _wait([dist.irecv(self._update, SERVER)])


class _GlooServer(_GlooPart):
    def __init__(self, task: BenchTask) -> None:
        self._workers = task.workers
        self._lengths = [torch.zeros(2, dtype=torch.int64) for _ in task.workers]
        self._came = [torch.empty(task.bytes // 4) for _ in task.workers]
        self._total = torch.empty(task.bytes // 4)

    def round(self, step: int) -> None:
        """All lengths, then all gradients; their sum to everybody."""
        _wait(self._all(dist.irecv, self._lengths))
        _wait(self._all(dist.irecv, self._came))
        add([vector.numpy() for vector in self._came], self._total.numpy())
        length = torch.tensor([4 * len(self._total), step])
        _wait(dist.isend(each, peer) for peer in self._workers for each in (length, self._total))

    def _all(self, what: Any, tensors: list[torch.Tensor]) -> list[dist.Work | None]:
        return [what(tensor, peer) for peer, tensor in zip(self._workers, tensors, strict=True)]


def _wait(works: Iterable[dist.Work | None]) -> None:
    for work in list(works):
        assert work is not None
        work.wait()


_SERVER_NAME = "server"


def make_rpc(task: BenchTask) -> BenchPart:
    """A node's part."""
    os.environ["GLOO_SOCKET_IFNAME"] = os.environ["TP_SOCKET_IFNAME"] = task.device
    part: BenchPart
    if task.own == SERVER:
        part = _RpcServer.current = _RpcServer(task)
    else:
        part = _RpcWorker(task)
    rpc.init_rpc(  # type: ignore[no-untyped-call]
        _SERVER_NAME if task.own == SERVER else f"worker-{task.own}",
        rank=task.own,
        world_size=task.nodes + 1,
        rpc_backend_options=rpc.TensorPipeRpcBackendOptions(
            num_worker_threads=max(16, task.nodes),
            rpc_timeout=task.timeout_s,
            init_method=f"tcp://{task.addresses[SERVER]}:{task.port}",
            _transports=["uv"],
            _channels=["basic"],
        ),
    )
    return part


class _RpcPart(BenchPart):
    def close(self) -> None:
        """Leave, with all others."""
        rpc.shutdown()


class _RpcWorker(_RpcPart):
    def __init__(self, task: BenchTask) -> None:
        self._number, self._own = task.own, torch.from_numpy(gradient(task))

    def round(self, step: int) -> None:  # noqa: ARG002
        """Push and pull."""
        rpc.rpc_sync(_SERVER_NAME, push, args=(self._number, self._own))


class _RpcServer(_RpcPart):
    current: _RpcServer

    def __init__(self, task: BenchTask) -> None:
        self._nodes, self._timeout_s = task.nodes, task.timeout_s
        self._came: dict[int, tuple[torch.Tensor, Future[torch.Tensor]]] = {}
        self._lock, self._done = Lock(), SimpleQueue[None]()

    def push(self, number: int, own: torch.Tensor) -> Future[torch.Tensor]:
        """Called by a worker, in one of the library's threads."""
        answer: Future[torch.Tensor] = Future()
        with self._lock:
            self._came[number] = own, answer
            complete = dict(self._came) if len(self._came) == self._nodes else None
            if complete:
                self._came.clear()
        if complete:
            vectors = [complete[each][0].numpy() for each in sorted(complete)]
            total = torch.empty_like(own)
            add(vectors, total.numpy())
            for _, waiting in complete.values():
                waiting.set_result(total)
            self._done.put(None)
        return answer

    def round(self, step: int) -> None:  # noqa: ARG002
        """Wait until all have called."""
        self._done.get(timeout=self._timeout_s)


@rpc.functions.async_execution  # type: ignore[untyped-decorator]
def push(number: int, own: torch.Tensor) -> Future[torch.Tensor]:
    """Push a worker's gradient: workers call this at the server."""
    return _RpcServer.current.push(number, own)


_FIRST_PORT = 5400
_PATIENCE_S, _OMITTED_S = 30.0, 1


def measure(lab: Lab, cell: ExchangeCell, seconds: int) -> ExchangeSample:
    """Rounds as they would be if each phase went at the speed of the flows. Raises
    ExperimentError."""
    began_s = _children_s()
    with ExitStack() as stack:
        for number in cell.numbers[1:]:
            stack.callback(end_process, _serve(lab, number))
        up = _all(lab, cell, seconds, ())
        down = _all(lab, cell, seconds, ("--reverse",))
    cpu_s = _children_s() - began_s
    carried = (up + down) / 8 * (seconds + _OMITTED_S)
    round_s = 8 * cell.nodes * cell.bytes * (1 / up + 1 / down)
    return ExchangeSample([round_s], cpu_s / (carried / 1e9))


def _all(lab: Lab, cell: ExchangeCell, seconds: int, options: tuple[str, ...]) -> float:
    """Payload of all flows together, bit/s, counted where it arrives."""
    running = [_ask(lab, number, seconds, options) for number in cell.numbers[1:]]
    try:
        return sum(_received(process, seconds) for process in running)
    finally:
        for process in running:
            end_process(process)


def _serve(lab: Lab, number: int) -> subprocess.Popen[str]:
    """One server for each node, for both directions."""
    where = ["--bind", _address(lab, SERVER), "--port", str(_FIRST_PORT + number)]
    server = iperf3(lab.netns(node_name(SERVER)), ["--server", "--forceflush", *where])
    await_listening(server)
    return server


def _ask(lab: Lab, number: int, seconds: int, options: tuple[str, ...]) -> subprocess.Popen[str]:
    where = ["--client", _address(lab, SERVER), "--port", str(_FIRST_PORT + number)]
    lasting = ["--time", str(seconds), "--omit", str(_OMITTED_S), "--json"]
    return iperf3(lab.netns(node_name(number)), [*where, *lasting, *options])


def _received(process: subprocess.Popen[str], seconds: int) -> float:
    bits = received_bits(process, seconds + _PATIENCE_S)
    if not bits:
        raise ExperimentError("iperf3 carried nothing")
    return bits


def _children_s() -> float:
    """Processor seconds of all processes that have been started from here and have ended."""
    times = os.times()
    return times.children_user + times.children_system


def _address(lab: Lab, number: int) -> str:
    return lab.places[node_name(number)].data_address
