"""Rounds of gradients by what PyTorch has: gloo's point-to-point messages, and torch RPC.

A receive buffer that is shorter than its message ends the process, so the length travels ahead, in
a message of its own.

Its transports are forced onto the network: left alone, processes of one host pass tensors through
memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import timedelta
from queue import SimpleQueue
from threading import Lock
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import rpc
from torch.futures import Future

from testbed.bench.exchange.cases import SERVER, BenchPart, BenchTask, add, gradient


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
    rpc.init_rpc(
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
