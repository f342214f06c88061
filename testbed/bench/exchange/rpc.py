"""Rounds of torch.distributed.rpc: workers call the server, which answers all of them when the last one has called.

Its transports are forced onto the network: left alone, processes of one host pass tensors through memory.
"""

from __future__ import annotations

import os
from queue import SimpleQueue
from threading import Lock

import torch
from torch.distributed import rpc
from torch.futures import Future

from testbed.bench.exchange.part import SERVER, Part, Task, add, gradient

_SERVER_NAME = "server"


def make(task: Task) -> Part:
    """A node's part."""
    os.environ["GLOO_SOCKET_IFNAME"] = os.environ["TP_SOCKET_IFNAME"] = task.device
    part: Part
    if task.own == SERVER:
        part = _Server.current = _Server(task)
    else:
        part = _Worker(task)
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


class _Worker:
    def __init__(self, task: Task) -> None:
        self._number, self._own = task.own, torch.from_numpy(gradient(task))

    def round(self, step: int) -> None:  # noqa: ARG002
        """Push and pull."""
        rpc.rpc_sync(_SERVER_NAME, push, args=(self._number, self._own))

    def close(self) -> None:
        """Leave, with all others."""
        rpc.shutdown()


class _Server:
    current: _Server

    def __init__(self, task: Task) -> None:
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

    def close(self) -> None:
        """Leave, with all others."""
        rpc.shutdown()


@rpc.functions.async_execution  # type: ignore[untyped-decorator]
def push(number: int, own: torch.Tensor) -> Future[torch.Tensor]:
    """What workers call at the server."""
    return _Server.current.push(number, own)
