"""Processes that train together, as several tests need them."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from ranks_server import forking

PATIENCE_S = 200
"""How long a scenario may take. Only a hang takes so long: no test's outcome depends on it."""


class RankError(Exception):
    """What a rank raised, with its traceback."""


class Ranks:
    """A process group of ``size`` processes; each does what it is told, together with the others."""

    def __init__(self, directory: Path, size: int = 2, backend: str = "gloo") -> None:
        context = forking()
        store = str(directory / "store")
        self._pipes, self._processes = [], []
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, size, backend, store, theirs))
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def do(self, scenario: Callable[..., Any], *args: Any, **options: Any) -> list[Any]:
        """What ``scenario`` returns on each rank. Raises RankError when it raises on any."""
        for pipe in self._pipes:
            pipe.send((scenario, args, options))
        answers = [self._answer(rank) for rank in range(len(self._pipes))]
        for rank, (done, answer) in enumerate(answers):
            if not done:
                raise RankError(f"rank {rank}: {answer}")
        return [answer for _, answer in answers]

    def close(self) -> None:
        """End the processes."""
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            if process.is_alive():
                pipe.send(None)
            process.join(10)
            if process.is_alive():
                process.kill()
                process.join()
            process.close()
            pipe.close()

    def _answer(self, rank: int) -> tuple[bool, Any]:
        if not self._pipes[rank].poll(PATIENCE_S):
            for process in self._processes:
                process.kill()
                process.join()
            raise RankError(f"rank {rank} hangs")
        answer: tuple[bool, Any] = self._pipes[rank].recv()
        return answer


def _serve(rank: int, size: int, backend: str, path: str, pipe: Connection) -> None:
    """A process's life."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group(
        backend,
        store=dist.FileStore(path, size),
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=PATIENCE_S / 2),
    )
    while (work := pipe.recv()) is not None:
        scenario, args, options = work
        try:
            pipe.send((True, scenario(*args, **options)))
        except Exception:
            pipe.send((False, traceback.format_exc()))
    dist.destroy_process_group()
    pipe.close()
