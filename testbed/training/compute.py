"""A worker's computation: forward and backward pass over its part of a mini-batch, a whole step
rehearsed before t0, and where its replica comes from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from testbed.compress.base import BufferPool
from testbed.compress.payload import read_message
from testbed.control.base import controllers
from testbed.training.averaging import UpdateEncoder
from testbed.training.data import Batches, batches_of, on_device, open_task
from testbed.training.job import Job
from testbed.training.replica import FlatModel, Replica

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
        self._data = on_device(samples, self._device, "train.task")
        self.batches = batches_of(job, samples[1])

    def gradients(self, step: int) -> Computed:
        """Set ``flat.gradients`` to the mean gradient over this worker's batch of ``step``."""
        chosen = self.batches.indices(step, self._rank)
        if self._device.type == "cuda":
            chosen = chosen.pin_memory().to(self._device, non_blocking=True)
        x, y = (samples[chosen] for samples in self._data)
        self._flat.gradients.zero_()
        logits = self._flat.forward(x)
        loss = cross_entropy(logits, y)
        loss.backward()
        correct = (logits.argmax(1) == y).sum()
        # the only wait: what was queued before, the backward pass too, has ended when they are here
        mean, right = torch.stack([loss.detach().double(), correct.double()]).tolist()
        return Computed(mean, right / len(y))

    def blocks(self, step: int, samples: Sequence[slice], rows: Floats) -> Computed:
        """Set ``rows`` to sums of gradients over blocks of ``samples`` of all workers' batches."""
        return sum_blocks(self._flat, self._data, self.batches, step, samples, rows)


def sum_blocks(
    flat: FlatModel,
    data: tuple[Tensor, Tensor],
    batches: Batches,
    step: int,
    blocks: Sequence[slice],
    rows: Floats,
) -> Computed:
    """Set ``rows`` to the sums of gradients over ``blocks`` of all workers' samples of ``step``:
    the same bits on every worker. ``data``: all samples and labels. Loss and accuracy are means."""
    (x, y), loss_sum, correct, samples = data, 0.0, 0, 0
    whole = batches.whole(step).to(x.device)
    for block, row in zip(blocks, rows, strict=True):
        indices = whole[block]
        flat.gradients.zero_()
        logits, labels = flat.forward(x[indices]), y[indices]
        loss = cross_entropy(logits, labels, reduction="sum")
        loss.backward()
        row[:] = flat.gradients.cpu().numpy()
        loss_sum += float(loss.detach())
        correct += int((logits.argmax(1) == labels).sum())
        samples += len(labels)
    return Computed(loss_sum / samples, correct / samples, samples / batches.batch)


_MESSAGES = 2
"""A selector takes another way once it has learnt from a first message."""


def warm_up(job: Job, replica: Replica, gradient: Tensor | None = None) -> None:
    """Compress ``gradient`` as a worker does, write the reply as a server does, and apply it.

    ``gradient``: float32 (size,) on the replica's device; random numbers stand for it where there
    is none. Compressor, controller, reply and randomness are made for it: those of the run stay as
    they are.
    """
    if gradient is None:
        generator = torch.Generator().manual_seed(0)
        gradient = torch.randn(replica.flat.size, generator=generator).to(replica.device)
    row, rng = job.algorithm, Random(0)
    make_controller = controllers.get(row.controller, where=f"algorithm {row.name!r}")
    density = make_controller(seed=job.seed, **row.options).density()
    compressor, scratch = replica.compressor(job), BufferPool()
    for shard in replica.shards:
        encoder = UpdateEncoder(job.algorithm, shard.layout, job.device)
        for _ in range(_MESSAGES):
            packed = compressor.compress(shard.name, gradient[shard.span], density, rng)
            message = read_message(packed.payload, shard.layout, scratch)
            replica.warm_up(shard, encoder.average([message], 1, rng)[0])


class PrivateReplicaProvider:
    """Everything of its own, as on a host of its own."""

    def provide(self, job: Job) -> tuple[Replica, Computation]:
        """Return the replica and the computation of the worker of ``job``.

        First-time costs have been paid: one step's work is done on the side, and memories,
        generators and parameters stay as they are.
        """
        replica = Replica(job)
        computation = Computation(job, replica.flat)
        gradients = replica.flat.gradients
        computation.gradients(step=1)
        warm_up(job, replica, gradients)
        gradients.zero_()
        return replica, computation
