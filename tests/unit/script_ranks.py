"""A training script in several processes, as torchrun starts it, forked from one process that has imported PyTorch."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

import torch
from ranks_server import forking
from torch.distributed import TCPStore

HOME = "127.0.0.1"
PATIENCE_S = 200
"""Only a hang takes so long."""


def outputs(script: Path, *arguments: str, folder: Path, size: int = 2) -> list[str]:
    """What each rank of ``script`` printed, all of which have exited with 0. ``folder`` keeps it.

    As under torchrun, the store is there before the ranks are, at a port that it bound itself.
    """
    store = TCPStore(HOME, 0, is_master=True, wait_for_workers=False)
    shared = {
        "MASTER_ADDR": HOME, "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True",
        "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size), "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip
    context = forking()
    files = [folder / f"rank-{rank}" for rank in range(size)]
    processes = [
        context.Process(
            target=_carry_out,
            args=(script, arguments, {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}, file),
        )
        for rank, file in enumerate(files)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(PATIENCE_S)
        process.kill()
        process.join()
    said = [file.read_text() for file in files]
    assert [process.exitcode for process in processes] == [0] * size, "\n".join(said)
    return said


def _carry_out(
    script: Path, arguments: tuple[str, ...], environment: dict[str, str], file: Path
) -> None:
    """A rank's life."""
    with file.open("wb") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    os.environ.update(environment)
    torch.set_num_threads(1)
    sys.path.insert(0, str(script.parent))
    sys.argv = [str(script), *arguments]
    runpy.run_path(str(script), run_name="__main__")
