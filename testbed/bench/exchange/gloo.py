"""Rounds of torch.distributed's gloo: point-to-point ``isend`` and ``irecv``, as a parameter server has to use them.

A receive buffer that is shorter than its message ends the process, so the length travels ahead, in a message of its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from testbed.bench.exchange.part import SERVER, Part, Task, add, gradient


def make(task: Task) -> Part:
    """A node's part."""
    os.environ["GLOO_SOCKET_IFNAME"] = task.device
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://{task.addresses[SERVER]}:{task.port}",
        rank=task.own,
        world_size=task.nodes + 1,
        timeout=timedelta(seconds=task.timeout_s),
    )
    return _Server(task) if task.own == SERVER else _Worker(task)


class _Worker:
    def __init__(self, task: Task) -> None:
        self._own, self._length = torch.from_numpy(gradient(task)), torch.tensor([task.bytes, 0])
        self._update = torch.empty_like(self._own)

    def round(self, step: int) -> None:
        """Push and pull."""
        self._length[1] = step
        _wait([dist.isend(self._length, SERVER), dist.isend(self._own, SERVER)])
        _wait([dist.irecv(self._length, SERVER)])
        _wait([dist.irecv(self._update, SERVER)])

    def close(self) -> None:
        """Leave the group."""
        dist.barrier()
        dist.destroy_process_group()


class _Server:
    def __init__(self, task: Task) -> None:
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

    def close(self) -> None:
        """Leave the group."""
        dist.barrier()
        dist.destroy_process_group()

    def _all(self, what: Any, tensors: list[torch.Tensor]) -> list[dist.Work | None]:
        return [what(tensor, peer) for peer, tensor in zip(self._workers, tensors, strict=True)]


def _wait(works: Iterable[dist.Work | None]) -> None:
    for work in list(works):
        assert work is not None
        work.wait()
