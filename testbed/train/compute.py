"""A worker's computation: forward and backward pass over its part of a mini-batch."""

from __future__ import annotations

from dataclasses import dataclass

from torch.nn.functional import cross_entropy

from testbed.train.batches import Batches
from testbed.train.data import on_device, open_task
from testbed.train.device import synchronise
from testbed.train.flat import FlatModel
from testbed.train.job import Job


@dataclass(frozen=True, slots=True)
class Computed:
    """Mean cross-entropy and accuracy (0-1) of the mini-batch, before the step."""

    loss: float
    accuracy: float


class Computation:
    """Gradients of ``flat``'s model on the training set of ``job``'s task."""

    def __init__(self, job: Job, flat: FlatModel) -> None:
        self._flat, self._rank, self._device = flat, job.rank, flat.parameters.device
        samples = open_task(job.train).train_set()
        self._x, self._y = on_device(samples, self._device, "train.task")
        self.batches = Batches(len(self._y), job.train.batch, job.workers, job.seed)

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
