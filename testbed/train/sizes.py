"""How large messages would be: for runs that ask about networks alone, in which nothing is trained."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from testbed.errors import InputError

if TYPE_CHECKING:
    from torch import Generator

    from testbed.compress.compressor import Compressor
    from testbed.compress.shards import Shard
    from testbed.scenario.model import Train
    from testbed.train.job import Job

_MESSAGES = 2
"""A selector takes another way once it has learnt from a first message."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What stands for gradients and means: payload bytes ``up`` and ``down``, and elements.

    ``size``: of the model; ``sent``: of a gradient's message; ``union``: of the mean that is sent. ``density``: asked for.
    """

    up: int
    down: int
    size: int
    sent: int
    union: int
    density: float


def check_sizes(train: Train, controller: str, where: str) -> None:
    """Raises InputError for what only a real gradient can decide: when to stop, and how much to send."""
    if train.gradients == "real":
        return
    if train.stop.steps is None or train.stop.accuracy is not None or train.stop.epochs is not None:
        raise InputError(
            "without gradients there are neither epochs nor accuracies to stop at",
            where=where,
            hint="Give `train.stop.steps`, and nothing else there",
        )
    if train.gradients == "none" and controller != "fixed":
        raise InputError(
            f"the controller {controller!r} needs gradients, and `train.gradients` is none",
            where=where,
            hint="Use algorithms of a fixed density, such as topk-0.01, or `gradients: recorded`",
        )


def sizes(job: Job) -> tuple[Sizes, ...]:
    """Sizes of the messages of ``job``'s algorithm to each server, for gradients of random numbers.

    The workers' choices are taken to be independent of each other: of n elements of which each sends a share k,
    n · (1 − (1 − k)^workers) are in the mean.
    """
    import torch

    from testbed.train.peers import exchange_kind
    from testbed.train.replica import Replica

    replica = Replica(job)
    if exchange_kind(job).carries == "vector":
        size = replica.flat.size
        return (Sizes(4 * size, 4 * size, size, size, size, 1.0),)
    compressor, generator = replica.compressor(job), torch.Generator().manual_seed(0)
    return tuple(_of(job, compressor, shard, generator) for shard in replica.shards)


def _of(job: Job, compressor: Compressor, shard: Shard, generator: Generator) -> Sizes:
    import torch

    from testbed.compress.base import Sparse
    from testbed.train.reply import Reply

    rng, size = Random(0), shard.layout.size
    density = float(job.algorithm.options.get("density", 1.0))
    for _ in range(_MESSAGES):
        gradient = torch.randn(size, generator=generator)
        packed = compressor.compress(shard.name, gradient, density, rng)
    up, sent = len(packed.payload), packed.count
    reply = Reply(job.algorithm, shard.layout)
    aggregate, indices = reply.aggregate(), None
    if sent < size:
        union = round(size * (1 - (1 - sent / size) ** job.workers))
        indices = torch.randperm(size, generator=generator)[:union].sort().values
    values = torch.randn(size if indices is None else len(indices), generator=generator)
    aggregate.add(Sparse(size, indices, values))
    mean = aggregate.mean(1)
    return Sizes(up, len(reply.encode(mean, rng)), size, sent, mean.count, density)
