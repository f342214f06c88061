"""Test accuracy while a run goes on: on the server, or, with several of them, on the first worker."""

from __future__ import annotations

from collections.abc import Iterator

from testbed.node import Node
from testbed.record.events import EvaluationRecord
from testbed.train.evaluate import Evaluation
from testbed.train.job import Job
from testbed.train.workshop import WorkersReplica


class Watch:
    """Evaluates a replica every ``train.evaluate_every`` steps and at the end; records what it finds."""

    def __init__(self, node: Node, job: Job, replica: WorkersReplica) -> None:
        self._node, self._every, self._replica = node, job.train.evaluate_every, replica
        self._evaluation = Evaluation(node, job, replica.parameters.device)

    def rehearse(self) -> None:
        """Pay first-time costs."""
        self._evaluation.rehearse()

    def applied(self, step: int, applied_s: float, *, last: bool) -> None:
        """The replica is what ``step`` has made of it."""
        if not last and step % self._every == 0:
            self._evaluation.begin(step, applied_s, self._replica.parameters)

    def accuracies(self, *, wait: bool) -> Iterator[float]:
        """Of evaluations that have ended. ``wait``: let the one that is under way end first."""
        while evaluated := self._evaluation.result(wait=wait):
            self._node.record(evaluated.to_json())
            yield evaluated.accuracy

    def end(self, step: int, applied_s: float) -> EvaluationRecord:
        """Evaluate on the whole test set, here and now."""
        list(self.accuracies(wait=True))
        final = self._evaluation.final(step, applied_s, self._replica.parameters)
        self._node.record(final.to_json())
        return final
