"""A worker's computation: forward and backward pass over its part of a mini-batch, a whole step
rehearsed before t0, and where its replica comes from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from testbed.compress.base import BufferPool
from testbed.compress.compressor import Compressor
from testbed.compress.kernels import compilation
from testbed.compress.layout import Layout, Shard
from testbed.compress.payload import read_message
from testbed.control.base import controllers
from testbed.node import Buffer
from testbed.training.averaging import UpdateEncoder
from testbed.training.data import Batches, batches_of, on_device, open_task
from testbed.training.job import Job
from testbed.training.replica import FlatModel, Replica, synchronise

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Computed:
    """Mean cross-entropy and accuracy (0-1) of the mini-batch, before the step."""

    loss: float
    accuracy: float
    share: float = 1.0
    """Samples that were computed, in batches of one worker: a pace is for one."""


class Computation:
    """Gradients of ``flat``'s model on the training set of ``job``'s task."""

    def __init__(self, job: Job, flat: FlatModel) -> None:
        self._flat, self._rank, self._device = flat, job.rank, flat.parameters.device
        samples = open_task(job.train).train_set()
        self._x, self._y = on_device(samples, self._device, "train.task")
        self.batches = batches_of(job, samples[1])

    def gradients(self, step: int) -> Computed:
        """Set ``flat.gradients`` to the mean gradient over this worker's batch of ``step``."""
        chosen = self.batches.indices(step, self._rank).to(self._device)
        x, y = self._x[chosen], self._y[chosen]
        self._flat.gradients.zero_()
        logits = self._flat.forward(x)
        loss = cross_entropy(logits, y)
        loss.backward()  # type: ignore[no-untyped-call]
        correct = (logits.argmax(1) == y).sum()
        synchronise(self._device)
        return Computed(float(loss.detach()), int(correct) / len(y))

    def blocks(self, step: int, places: Sequence[slice], rows: Floats) -> Computed:
        """Set each of ``rows`` to the sum of the gradients of samples ``places`` of all workers'
        batches of ``step``."""
        chosen = self.batches.whole(step).to(self._device)
        parts = [chosen[place] for place in places]
        return sum_blocks(self._flat, (self._x, self._y), parts, rows, self.batches.batch)


def sum_blocks(
    flat: FlatModel, data: tuple[Tensor, Tensor], chosen: Sequence[Tensor], rows: Floats, batch: int
) -> Computed:
    """For each block of samples ``chosen``, the sum of their gradients in its row; bit by bit the
    same on every worker.

    ``data``: all samples and labels. Loss and accuracy are means over all blocks, ``batch`` samples
    are one worker's share.
    """
    (x, y), loss_sum, correct, samples = data, 0.0, 0, 0
    for indices, row in zip(chosen, rows, strict=True):
        flat.gradients.zero_()
        logits, labels = flat.forward(x[indices]), y[indices]
        loss = cross_entropy(logits, labels, reduction="sum")
        loss.backward()  # type: ignore[no-untyped-call]
        row[:] = flat.gradients.cpu().numpy()
        loss_sum += float(loss.detach())
        correct += int((logits.argmax(1) == labels).sum())
        samples += len(labels)
    return Computed(loss_sum / samples, correct / samples, samples / batch)


_MESSAGES = 2
"""A selector takes another way once it has learnt from a first message."""


def warm_up(job: Job, replica: Replica, gradient: Tensor | None = None) -> None:
    """Compress ``gradient`` as ``job``'s workers do, write the reply as its server does, and apply
    it.

    Workers and server do the same, so that each has done what it will do. ``gradient``: float32
    (size,) on the replica's device; random numbers stand for it where there is none. Compressor,
    controller, reply and randomness are made for it: those of the run stay as they are.
    """
    compilation.all()
    if gradient is None:
        gradient = _any_gradient(replica)
    rng, density = Random(0), _first_density(job)
    compressor, scratch = replica.compressor(job), BufferPool()
    for shard in replica.shards:
        reply = UpdateEncoder(job.algorithm, shard.layout)
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


class FlatVectors(Protocol):
    """A model as vectors; see ``testbed.training.replica.FlatModel``."""

    size: int
    layout: Layout
    gradients: Tensor


class ReplicaView(Protocol):
    """A copy of the model, as a worker sees it; see ``testbed.training.replica.Replica``."""

    shards: list[Shard]
    """Parts that travel by themselves: all of the model, or a part for each server."""

    @property
    def flat(self) -> FlatVectors:
        """Its vectors."""
        ...

    @property
    def parameters(self) -> Tensor:
        """All of them, float32 (size,)."""
        ...

    def compressor(self, job: Job) -> Compressor:
        """A new one for this model."""
        ...

    def decode(self, shard: Shard, payload: Buffer) -> None:
        """Take in a shard's update."""
        ...

    def take(self, mean: Buffer) -> None:
        """Take in the whole mean gradient, float32 (size,) as bytes."""
        ...

    def adopt(self) -> None:
        """Take what was decoded for parameters."""
        ...

    def load(self, state: Buffer) -> None:
        """Be as the replica whose ``state`` it is."""
        ...

    def apply(self, epoch: int) -> None:
        """Make the step."""
        ...

    def apply_shard(self, shard: Shard, epoch: int) -> None:
        """Make the step for what was decoded of ``shard``; ``all_applied`` follows when it was made
        for all."""
        ...

    def all_applied(self, epoch: int) -> None:
        """The step is made when this returns."""
        ...

    def fingerprint(self) -> str:
        """Hash of the parameters."""
        ...


class WorkersComputation(Protocol):
    """Forward and backward pass; see ``testbed.training.compute.Computation``."""

    batches: Batches

    def gradients(self, step: int) -> Computed:
        """Set the replica's gradients to those of this worker's batch of ``step``."""
        ...

    def blocks(self, step: int, places: Sequence[slice], rows: Floats) -> Computed:
        """Set ``rows`` to sums of gradients over parts of all workers' batches of ``step``."""
        ...


class ReplicaProvider(Protocol):
    """Equips workers."""

    def equip(self, job: Job) -> tuple[ReplicaView, WorkersComputation]:
        """Return the replica and the computation of the worker of ``job``.

        First-time costs are paid when this returns.
        """
        ...


class PrivateReplicaProvider:
    """Everything of its own, as on a host of its own."""

    def equip(self, job: Job) -> tuple[Replica, Computation]:
        """One step's work is done on the side: memories, generators and parameters stay as they
        are."""
        replica = Replica(job)
        computation = Computation(job, replica.flat)
        gradients = replica.flat.gradients
        computation.gradients(step=1)
        warm_up(job, replica, gradients)
        gradients.zero_()
        return replica, computation
