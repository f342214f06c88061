"""Processes forked from one that has imported PyTorch and whatever ranks need: importing takes longer than their work."""

from __future__ import annotations

from multiprocessing import get_context
from multiprocessing.context import ForkServerContext

PRELOADED = [
    "torch._dynamo",  # the first step of an optimizer imports it
    "torch.distributed.fsdp",
    "torch.distributed.optim",
    "torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook",
    "torch.distributed.algorithms.model_averaging.averagers",
    "sklearn.datasets",
    "testbed.training.ddp.hook",
    "script_ranks",
    "ddp_refusals",
]
"""Also where a test needs less: the process that is forked from is the same for all tests of a worker."""


def forking() -> ForkServerContext:
    """Return the context of multiprocessing whose processes are forked so."""
    context = get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context
