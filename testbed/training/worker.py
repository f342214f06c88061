"""The worker: computes a gradient, compresses it, has it averaged with the others', applies the
mean; and when a run ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from testbed.control.base import Controller, controller_seed, controllers, watched
from testbed.errors import InputError
from testbed.exchange.base import BlocksSide, ExchangeSpec, LeavingSide
from testbed.node import Node, NodeTask, Queue
from testbed.records.events import (
    AwayRecord,
    EpochRecord,
    EvaluationRecord,
    LabelsRecord,
    RestRecord,
    StepRecord,
)
from testbed.scenario.model import Stop
from testbed.training.compute import (
    PrivateReplicaProvider,
    ReplicaProvider,
    ReplicaView,
    WorkersComputation,
)
from testbed.training.controller_feedback import (
    ControllerAdapter,
    FitReporter,
    ObservableCompressor,
)
from testbed.training.data import on_device, open_task, subset
from testbed.training.gradient_codec import (
    BlockCodec,
    BlockComputation,
    CompressedCodec,
    DenseCodec,
    GradientCodec,
)
from testbed.training.job import Job
from testbed.training.membership import (
    absent_until,
    exchange_kind,
    participates,
    peers,
    worker_class,
)
from testbed.training.models.base import build
from testbed.training.replica import FlatModel
from testbed.training.step import Computing, SequentialStep, StepContext

if TYPE_CHECKING:
    from testbed.training.tasks.base import Samples


class Stopping:
    """Decides which step is the last: by number of steps or epochs, or the one after an evaluation
    has reached the accuracy (while that is measured, workers compute the next step already)."""

    def __init__(self, stop: Stop, steps_per_epoch: int) -> None:
        limits = [stop.steps, stop.epochs and stop.epochs * steps_per_epoch]
        self.limit = min((limit for limit in limits if limit), default=None)
        self._accuracy, self._reached = stop.accuracy, False
        if self.limit is None and stop.accuracy is None:
            raise InputError(
                "the run would never end", where="train.stop", hint="Give steps, epochs or accuracy"
            )

    def saw(self, accuracy: float) -> None:
        """Take in the accuracy of an evaluation."""
        self._reached |= self._accuracy is not None and accuracy >= self._accuracy

    def ends(self, step: int) -> bool:
        """Return whether ``step`` is the last."""
        return self._reached or step == self.limit


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
        self._task: NodeTask | None = None
        self._results: Queue[EvaluationRecord] = node.queue()

    def rehearse(self) -> None:
        """Pay first-time costs."""
        self._evaluate(self._some, step=0, applied_s=0.0, final=False)

    def begin(self, step: int, applied_s: float, parameters: Tensor) -> None:
        """Evaluate ``parameters`` (float32 (size,), copied), the result of ``step``, on at most
        2,000 samples, the same ones every time. Waits for an evaluation that is still under way."""
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


class RunEvaluator:
    """Evaluates a replica every ``train.evaluate_every`` steps and at the end; records what it
    finds."""

    def __init__(self, node: Node, job: Job, replica: ReplicaView) -> None:
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
        """Yield the accuracies of evaluations that have ended.

        ``wait``: let the one that is under way end first.
        """
        while evaluated := self._evaluation.result(wait=wait):
            self._node.record(evaluated.to_json())
            yield evaluated.accuracy

    def end(self, step: int, applied_s: float) -> EvaluationRecord:
        """Evaluate on the whole test set, here and now."""
        list(self.accuracies(wait=True))
        final = self._evaluation.final(step, applied_s, self._replica.parameters)
        self._node.record(final.to_json())
        return final


class Worker:
    """One worker in one run. ``prepare``, then ``run`` from t0 on. Steps and epochs count from
    1."""

    def __init__(self, node: Node, job: Job, workshop: ReplicaProvider | None = None) -> None:
        self._node, self._job = node, job
        self._workshop = workshop or PrivateReplicaProvider()
        self._totals = _Totals()

    def prepare(self) -> None:
        """Load data, build the model, pay first-time costs, and greet the server.

        Raises InputError or MachineError when the job cannot be done here.
        """
        job, row = self._job, self._job.algorithm
        make_controller = controllers.get(row.controller, where=f"algorithm {row.name!r}")
        controller = make_controller(
            seed=controller_seed(job.seed, 0 if row.agree else job.rank), **row.options
        )
        self._replica, computation = self._workshop.equip(job)
        self._batches = computation.batches
        kind, stop = exchange_kind(job), Stopping(job.train.stop, self._batches.steps_per_epoch)
        self._asynchronous = kind.asynchronous
        self._exchange = worker_class(job)(self._node, peers(job, stop.limit))
        compressor = ObservableCompressor(job, self._replica)
        observer = ControllerAdapter(self._node, job, controller, self._replica, compressor)
        tools = StepContext(
            self._replica,
            *self._loading(kind, computation, controller, compressor, observer),
            observer,
            FitReporter(job, self._replica, compressor),
            self._exchange,
        )
        self._stepper = _stepper(kind, job, controller)(self._node, job, tools, self._finished)
        self._watch = None
        if job.rank == 0 and (
            job.servers > 1 or kind.server is None
        ):  # no server has all parameters
            self._watch = RunEvaluator(self._node, job, self._replica)
            self._watch.rehearse()
        self._exchange.greet()

    def run(self) -> dict[str, Any]:
        """Train until the server says which step is the last; returns a summary of the run.

        Raises NodeLost, WireError, or GradientError when training diverges.
        """
        self._node.sleep_until(0.0)
        step, totals, stepper = 0, self._totals, self._stepper
        if (labels := self._batches.labels(self._job.rank)) is not None:
            self._node.record(_dealt(self._job.node, labels).to_json())
        try:
            while self._exchange.last_step != step:
                if (until_s := absent_until(self._job, self._node.now())) is not None:
                    step = self._be_away(step, until_s)
                    continue
                make = stepper.step if participates(self._job, step + 1) else stepper.rest
                step = make(step + 1, self._batches.epoch(step + 1))
        finally:
            self._stepper.end()
        self._exchange.close()
        if self._watch is not None:
            self._watch.end(step, totals.end_s)
        return self._summary(step, totals)

    def _be_away(self, step: int, until_s: float) -> int:
        """Leave after ``step``, return at ``until_s``; the step whose parameters are there then."""
        node, side = self._node, cast(LeavingSide, self._exchange)
        sent, left_s = side.bytes_sent, node.now()
        side.leave(step + 1)
        node.sleep_until(until_s)
        asked_s, before = node.now(), side.bytes_received
        state = side.come_back(step)
        self._replica.load(state.body)
        up, down = side.bytes_sent - sent, side.bytes_received - before
        times = left_s, asked_s, state.arrived_s, node.now()
        record = AwayRecord(self._job.node, step + 1, state.step, *times, down, up)
        node.record(record.to_json())
        self._totals.away(record)
        return state.step

    def _finished(self, record: StepRecord | RestRecord) -> None:
        """Everything that a step leaves behind."""
        self._node.record(record.to_json())
        self._totals.add(record)
        step = record.step + (record.skipped if isinstance(record, StepRecord) else 0)
        if self._batches.ends_epoch(step) and not self._asynchronous:
            self._node.record(self._epoch_record(step).to_json())
        if self._watch is not None:
            list(self._watch.accuracies(wait=False))
            self._watch.applied(step, record.end_s, last=self._exchange.last_step == step)

    def _loading(
        self,
        kind: ExchangeSpec,
        computation: WorkersComputation,
        controller: Controller,
        compressor: ObservableCompressor,
        observer: ControllerAdapter,
    ) -> tuple[Computing, GradientCodec]:
        """Return the computation for the exchange, and the codec that carries its result there."""
        if kind.carries == "blocks":
            side = cast(BlocksSide, self._exchange)
            of_blocks = BlockComputation(
                self._job, computation, self._replica.parameters.numel(), side
            )
            return of_blocks, BlockCodec(self._replica, of_blocks, side)
        if kind.carries == "vector":
            return computation, DenseCodec(self._replica)
        return computation, CompressedCodec(
            self._node, self._job, self._replica, controller, compressor, observer
        )

    def _epoch_record(self, step: int) -> EpochRecord:
        epoch = self._batches.epoch(step)
        return EpochRecord(self._job.node, epoch, step, self._replica.fingerprint())

    def _summary(self, step: int, totals: _Totals) -> dict[str, Any]:
        return {
            "role": "worker",
            "node": self._job.node,
            "steps": step,
            "made": totals.steps,
            "end_s": totals.end_s,
            "parameters": None if self._asynchronous else self._replica.fingerprint(),
            "mean_k": totals.density / max(1, totals.steps),
            "overruns": totals.overruns,
            "bytes_up": totals.bytes_up,
            "bytes_down": totals.bytes_down,
            "bytes_sent": self._exchange.bytes_sent,
            "bytes_received": self._exchange.bytes_received,
        }


def _stepper(kind: ExchangeSpec, job: Job, controller: Controller) -> type[SequentialStep]:
    """Imported when it is wanted."""
    row = job.algorithm
    if kind.overlaps:
        from testbed.training.ddp_overlap import OverlappingStepper

        return OverlappingStepper
    if row.overlap:
        from testbed.training.overlap import OverlappedStep

        return OverlappedStep
    if row.bucket_bytes or row.buckets == "layer" or "buckets" in watched(controller):
        from testbed.training.step import BucketedStep

        return BucketedStep
    return SequentialStep


class _Totals:
    """Sums over a run's steps."""

    def __init__(self) -> None:
        self.steps = self.bytes_up = self.bytes_down = self.overruns = 0
        self.density = self.end_s = 0.0

    def add(self, record: StepRecord | RestRecord) -> None:
        self.bytes_up += record.bytes_up
        self.bytes_down += record.bytes_down
        self.end_s = record.end_s
        if isinstance(record, StepRecord):
            self.steps += 1
            self.overruns += record.overran
            self.density += record.density

    def away(self, record: AwayRecord) -> None:
        """Add the bytes that leaving and returning took."""
        self.bytes_up += record.bytes_up
        self.bytes_down += record.bytes_down


def _dealt(node: str, labels: Mapping[int, int]) -> LabelsRecord:
    named = {str(label): count for label, count in labels.items()}
    return LabelsRecord(node, sum(labels.values()), named)
