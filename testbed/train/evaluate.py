"""Accuracy on samples that were not learned from, measured beside the run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from testbed.node import Node, Queue, Task
from testbed.record.events import EvaluationRecord
from testbed.train.data import on_device, open_task, subset
from testbed.train.flat import FlatModel
from testbed.train.job import Job
from testbed.train.models import build

if TYPE_CHECKING:
    from testbed.train.tasks import Samples

_CHUNK = 500
"""Samples that go through the model together; bounds the memory that an evaluation takes."""

DURING_RUN = 2_000
"""Samples of an evaluation while the run goes on; the last one takes all."""


class Evaluation:
    """Evaluates snapshots of the parameters in an activity of its own, one at a time.

    So a round never waits for an evaluation: workers' communication delay must not contain it.
    """

    def __init__(self, node: Node, job: Job, device: torch.device) -> None:
        train = job.train
        self._node, self._job = node, job
        self._flat = FlatModel(build(train.model, train.task, train.width, job.seed), device)
        self._all = on_device(open_task(train).test_set(), device, "train.task")
        self._some = subset(self._all, DURING_RUN)
        self._task: Task | None = None
        self._results: Queue[EvaluationRecord] = node.queue()

    def rehearse(self) -> None:
        """Pay first-time costs."""
        self._evaluate(self._some, step=0, applied_s=0.0, final=False)

    def begin(self, step: int, applied_s: float, parameters: Tensor) -> None:
        """Evaluate ``parameters`` (float32 (size,), copied), the result of ``step``, on at most 2,000
        samples, the same ones every time. Waits for an evaluation that is still under way."""
        self._finish()
        self._flat.parameters.copy_(parameters)
        self._task = self._node.spawn(
            lambda: self._results.put(
                self._node.background(
                    lambda: self._evaluate(self._some, step, applied_s, final=False)
                )
            )
        )

    def result(self, *, wait: bool) -> EvaluationRecord | None:
        """An evaluation that has ended and was not asked for yet, if there is one.

        ``wait``: let the one that is under way end first.
        """
        if wait:
            self._finish()
        try:
            return self._results.get(timeout=0.0)
        except TimeoutError:
            return None

    def final(self, step: int, applied_s: float, parameters: Tensor) -> EvaluationRecord:
        """Evaluate on the whole test set, here and now."""
        self._finish()
        self._flat.parameters.copy_(parameters)
        return self._evaluate(self._all, step, applied_s, final=True)

    def _finish(self) -> None:
        if self._task is not None:
            self._task.join()
            self._task = None

    def _evaluate(
        self, samples: Samples, step: int, applied_s: float, *, final: bool
    ) -> EvaluationRecord:
        x, y = samples
        correct, loss = 0, 0.0
        with torch.inference_mode():
            for images, labels in zip(torch.split(x, _CHUNK), torch.split(y, _CHUNK), strict=True):
                logits = self._flat.forward(images)
                correct += int((logits.argmax(1) == labels).sum())
                loss += float(cross_entropy(logits, labels, reduction="sum"))
        return EvaluationRecord(
            node=self._job.node,
            step=step,
            time_s=applied_s,
            accuracy=correct / len(y),
            loss=loss / len(y),
            samples=len(y),
            final=final,
        )
