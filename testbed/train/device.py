"""Where a node computes, and how vectors get there."""

from __future__ import annotations

import os

import torch
from torch import Tensor

from testbed.errors import MachineError


def settle(device: str, threads: int) -> torch.device:
    """Make this process compute deterministically with ``threads`` threads; return the device.

    Raises MachineError when the device is not there. Settings of torch are the process's: all nodes
    that share one (under simulation) ask for the same.
    """
    if device == "cuda":
        # cuBLAS is deterministic only with a fixed workspace, chosen before its first use
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        if not torch.cuda.is_available():
            raise MachineError(
                "device 'cuda' was asked for, and PyTorch sees no CUDA device",
                fix="Use `device: cpu`, or install a CUDA build of PyTorch and give the node a GPU",
            )
    torch.set_num_threads(threads)
    # ``use_deterministic_algorithms`` does the same for us, and imports the whole compiler for several seconds
    torch.set_deterministic_debug_mode("error")
    # costs time, and nothing reads it
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False
    return torch.device(device)


def synchronise(device: torch.device) -> None:
    """Wait until ``device`` has done all it was given, so that a clock read after it tells the truth."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


_ALL = slice(None)


class Landing:
    """Where a received vector is decoded: page-locked host memory in front of an accelerator.

    ``host``: float32 (size,), to be written; ``deliver`` gives its contents on the device. On the CPU
    both are the same tensor.
    """

    def __init__(self, size: int, device: torch.device) -> None:
        remote = device.type != "cpu"
        self.host = torch.zeros(size, pin_memory=remote)
        self._there = torch.empty(size, device=device) if remote else self.host

    def deliver(self, place: slice = _ALL) -> Tensor:
        """The vector, or that part of it, on the device; valid until ``host`` is written again."""
        if self._there is not self.host:
            self._there[place].copy_(self.host[place], non_blocking=True)
        return self._there[place]
