"""A worker's computation: forward and backward pass over its part of a mini-batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from testbed.train.data import on_device, open_task
from testbed.train.device import synchronise
from testbed.train.flat import FlatModel
from testbed.train.job import Job
from testbed.train.label_split import batches_of

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
        """Set each of ``rows`` to the sum of the gradients of samples ``places`` of all workers' batches of ``step``."""
        chosen = self.batches.whole(step).to(self._device)
        parts = [chosen[place] for place in places]
        return sum_blocks(self._flat, (self._x, self._y), parts, rows, self.batches.batch)


def sum_blocks(
    flat: FlatModel, data: tuple[Tensor, Tensor], chosen: Sequence[Tensor], rows: Floats, batch: int
) -> Computed:
    """For each block of samples ``chosen``, the sum of their gradients in its row; bit by bit the same on every worker.

    ``data``: all samples and labels. Loss and accuracy are means over all blocks, ``batch`` samples are one worker's share.
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
