"""A step's whole way, walked before t0: nothing is compiled, imported or read for the first time after it."""

from __future__ import annotations

from random import Random

import torch
from torch import Tensor

from testbed.compress.kernels import warm
from testbed.compress.layers import read_message
from testbed.compress.payload import Scratch
from testbed.control.base import controllers
from testbed.train.job import Job
from testbed.train.replica import Replica
from testbed.train.reply import Reply

_MESSAGES = 2
"""A selector takes another way once it has learnt from a first message."""


def rehearse(job: Job, replica: Replica, gradient: Tensor | None = None) -> None:
    """Compress ``gradient`` as ``job``'s workers do, write the reply as its server does, and apply it.

    Workers and server do the same, so that each has done what it will do. ``gradient``: float32
    (size,) on the replica's device; random numbers stand for it where there is none. Compressor,
    controller, reply and randomness are made for it: those of the run stay as they are.
    """
    warm.all()
    if gradient is None:
        gradient = _any_gradient(replica)
    rng, density = Random(0), _first_density(job)
    compressor, scratch = replica.compressor(job), Scratch()
    for shard in replica.shards:
        reply = Reply(job.algorithm, shard.layout)
        aggregate = reply.aggregate()
        for _ in range(_MESSAGES):
            packed = compressor.compress(shard.name, gradient[shard.place], density, rng)
            aggregate.reset()
            aggregate.add(read_message(packed.payload, shard.layout, scratch))
            replica.rehearse(shard, reply.encode(aggregate.mean(1), rng))


def _first_density(job: Job) -> float:
    row = job.algorithm
    make = controllers.get(row.controller, where=f"algorithm {row.name!r}")
    return make(seed=job.seed, **row.options).density()


def _any_gradient(replica: Replica) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(replica.flat.size, generator=generator).to(replica.device)
