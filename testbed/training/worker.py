"""The worker: computes a gradient, compresses it, has it averaged with the others', applies the
mean. ``Stopping`` and ``RunEvaluator`` below, the last step and the test accuracy, are the server's
as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from testbed.control.base import controller_seed, controllers
from testbed.errors import InputError
from testbed.exchange.base import ExchangeSpec, WorkerSide
from testbed.exchange.coded.exchange import CodedExchange
from testbed.exchange.parameter_server import ElasticPsWorker
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
from testbed.training.compute import PrivateReplicaProvider
from testbed.training.controller_feedback import (
    ControllerAdapter,
    FitReporter,
    ObservableCompressor,
)
from testbed.training.data import Batches, on_device, open_task, subset
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
from testbed.training.models.architectures import measure_statistics, normalises_by_batch
from testbed.training.models.base import build
from testbed.training.replica import FlatModel
from testbed.training.shared_replica import AnyComputation, AnyReplica, ReplicaProvider
from testbed.training.step import SequentialStep, StepContext

if TYPE_CHECKING:
    from testbed.training.tasks.base import Samples


class Worker:
    """One worker in one run: ``prepare``, then ``run`` from t0 on."""

    # made by ``prepare``
    _replica: AnyReplica
    """The model, its parameters and gradients as flat vectors."""
    _batches: Batches
    """Samples of each step."""
    _exchange: WorkerSide
    """How gradients travel, and when the last step is."""
    _asynchronous: bool
    """True if updates are parameters: replicas then differ."""
    _stepper: SequentialStep
    """Makes one step after the other."""
    _evaluator: RunEvaluator | None
    """Measures test accuracy, in the first worker, where no server has all parameters."""

    def __init__(self, node: Node, job: Job, provider: ReplicaProvider | None = None) -> None:
        self._node, self._job = node, job
        self._provider = provider or PrivateReplicaProvider()
        self._bytes_up = self._bytes_down = self._steps = self._overruns = 0
        self._density = self._end_s = 0.0

    def prepare(self) -> None:
        """Load data, build the model, pay first-time costs, and greet the server. Raises InputError
        or MachineError when the job cannot be done here."""
        node, job, row = self._node, self._job, self._job.algorithm
        make_controller = controllers.get(row.controller, where=f"algorithm {row.name!r}")
        controller = make_controller(
            seed=controller_seed(job.seed, 0 if row.agree else job.rank), **row.options
        )
        replica, computation = self._provider.provide(job)
        self._replica = replica
        self._batches = computation.batches
        kind, stop = exchange_kind(job), Stopping(job.train.stop, self._batches.steps_per_epoch)
        self._asynchronous = kind.asynchronous
        self._exchange = worker_class(job)(node, peers(job, stop.limit))
        compressor = ObservableCompressor(job, replica)
        observer = ControllerAdapter(node, job, controller, replica, compressor)
        codec: GradientCodec
        computing: AnyComputation | BlockComputation = computation
        if kind.unit == "blocks":
            side = cast(CodedExchange, self._exchange)
            computing = BlockComputation(job, computation, replica.flat.size, side)
            codec = BlockCodec(replica, computing, side)
        elif kind.unit == "vector":
            codec = DenseCodec(replica)
        else:
            codec = CompressedCodec(node, job, replica, controller, compressor, observer)
        fits = FitReporter(job, replica, compressor)
        context = StepContext(replica, computing, codec, observer, fits, self._exchange)
        self._stepper = _step_class(kind, job)(node, job, context, self._finished)
        self._evaluator = None
        if job.rank == 0 and (job.servers > 1 or kind.server is None):
            self._evaluator = RunEvaluator(node, job, replica)
            self._evaluator.warm_up()
        self._exchange.connect()

    def run(self) -> dict[str, Any]:
        """Train until the server says which step is the last; returns a summary of the run. Raises
        NodeLost, WireError, or GradientError when training diverges."""
        job, stepper = self._job, self._stepper
        self._node.sleep_until(0.0)
        step = 0
        if (labels := self._batches.labels(job.rank)) is not None:
            named = {str(label): count for label, count in labels.items()}
            self._node.record(LabelsRecord(job.node, sum(labels.values()), named).to_json())
        try:
            while self._exchange.last_step != step:
                if (until_s := absent_until(job, self._node.now())) is not None:
                    step = self._be_away(step, until_s)
                    continue
                make = stepper.step if participates(job, step + 1) else stepper.skip_step
                step = make(step + 1, self._batches.epoch(step + 1))
        finally:
            stepper.end()
        self._exchange.close()
        if self._evaluator is not None:
            self._evaluator.end(step, self._end_s)
        return {
            "role": "worker",
            "node": job.node,
            "steps": step,
            "made": self._steps,
            "end_s": self._end_s,
            "parameters": None if self._asynchronous else self._replica.fingerprint(),
            "mean_k": self._density / max(1, self._steps),
            "overruns": self._overruns,
            "bytes_up": self._bytes_up,
            "bytes_down": self._bytes_down,
            "bytes_sent": self._exchange.bytes_sent,
            "bytes_received": self._exchange.bytes_received,
        }

    def _be_away(self, step: int, until_s: float) -> int:
        """Leave after ``step``, return at ``until_s``; the step whose parameters are there then."""
        node, side = self._node, cast(ElasticPsWorker, self._exchange)
        sent, left_s = side.bytes_sent, node.now()
        side.leave(step + 1)
        node.sleep_until(until_s)
        asked_s, received = node.now(), side.bytes_received
        state = side.rejoin(step)
        self._replica.load_state(state.body)
        up, down = side.bytes_sent - sent, side.bytes_received - received
        times = left_s, asked_s, state.arrived_s, node.now()
        record = AwayRecord(self._job.node, step + 1, state.step, *times, down, up)
        node.record(record.to_json())
        self._bytes_up += up
        self._bytes_down += down
        return state.step

    def _finished(self, record: StepRecord | RestRecord) -> None:
        """Everything that a step leaves behind."""
        self._node.record(record.to_json())
        self._bytes_up += record.bytes_up
        self._bytes_down += record.bytes_down
        self._end_s, step = record.end_s, record.step
        if isinstance(record, StepRecord):
            self._steps += 1
            self._overruns += record.overran
            self._density += record.density
            step += record.skipped
        if not self._asynchronous:
            record_epoch(self._node, self._batches, self._replica, step)
        if self._evaluator is not None:
            list(self._evaluator.accuracies(wait=False))
            last = self._exchange.last_step == step
            self._evaluator.applied(step, record.end_s, last=last)


def record_epoch(node: Node, batches: Batches, replica: AnyReplica, step: int) -> None:
    """Record what ``step`` has made of the parameters, where it is the last of an epoch."""
    if batches.ends_epoch(step):
        epoch, parameters = batches.epoch(step), replica.fingerprint()
        node.record(EpochRecord(node.name, epoch, step, parameters).to_json())


def _step_class(kind: ExchangeSpec, job: Job) -> type[SequentialStep]:
    """Return the kind of step that the exchange and the algorithm ask for; those that overlap are
    imported only then."""
    if kind.overlaps:
        from testbed.training.overlap import DdpStep

        return DdpStep
    if job.algorithm.overlap:
        from testbed.training.overlap import OverlappedStep

        return OverlappedStep
    return SequentialStep


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

    def add_accuracy(self, accuracy: float) -> None:
        """Take in the accuracy of an evaluation."""
        self._reached |= self._accuracy is not None and accuracy >= self._accuracy

    def ends(self, step: int) -> bool:
        """Return whether ``step`` is the last."""
        return self._reached or step == self.limit


_CHUNK = 500
"""Samples that go through the model together; bounds the memory that an evaluation takes."""

DURING_RUN = 2_000
"""Samples of an evaluation while the run goes on; the last one takes all."""


class RunEvaluator:
    """Evaluates ``replica`` every ``train.evaluate_every`` steps and at the end, and records it.
    Statistics of batch normalisation are measured anew for each, on training samples.

    Evaluations during the run are of a snapshot, in an activity of their own, one at a time: so a
    round never waits for one, and workers' communication delay does not contain it.
    """

    def __init__(self, node: Node, job: Job, replica: AnyReplica) -> None:
        train, device = job.train, replica.parameters.device
        self._node, self._every, self.replica = node, train.evaluate_every, replica
        self._flat = FlatModel(build(train.model, train.task, train.width, job.seed), device)
        task = open_task(train)
        self._all = on_device(task.test_set(), device, "train.task")
        self._known: Sequence[Tensor] = ()
        if normalises_by_batch(self._flat.module):
            known, _ = on_device(subset(task.train_set(), DURING_RUN), device, "train.task")
            self._known = torch.split(known, _CHUNK)
        self._some = subset(self._all, DURING_RUN)
        self._task: NodeTask | None = None
        self._results: Queue[EvaluationRecord] = node.queue()

    def warm_up(self) -> None:
        """Pay first-time costs."""
        self._evaluate(self._some, step=0, applied_s=0.0, final=False)

    def applied(self, step: int, applied_s: float, *, last: bool) -> None:
        """The replica is what ``step`` has made of it: begin an evaluation where one is due, on at
        most 2,000 samples, the same ones every time. Waits for one that is still under way."""
        if last or step % self._every:
            return
        self._take_snapshot()

        def evaluate() -> EvaluationRecord:
            return self._evaluate(self._some, step, applied_s, final=False)

        self._task = self._node.spawn(lambda: self._results.put(self._node.background(evaluate)))

    def accuracies(self, *, wait: bool) -> Iterator[float]:
        """Yield the accuracies of evaluations that have ended. ``wait``: await one under way."""
        while True:
            if wait:
                self._finish()
            try:
                record = self._results.get(timeout=0.0)
            except TimeoutError:
                return
            self._node.record(record.to_json())
            yield record.accuracy

    def end(self, step: int, applied_s: float) -> EvaluationRecord:
        """Evaluate on the whole test set, here and now."""
        list(self.accuracies(wait=True))
        self._take_snapshot()
        record = self._evaluate(self._all, step, applied_s, final=True)
        self._node.record(record.to_json())
        return record

    def _take_snapshot(self) -> None:
        self._finish()
        self._flat.parameters.copy_(self.replica.parameters)

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
            measure_statistics(self._flat.module, self._known)
            for images, labels in zip(torch.split(x, _CHUNK), torch.split(y, _CHUNK), strict=True):
                logits = self._flat.forward(images)
                correct += int((logits.argmax(1) == labels).sum())
                loss += float(cross_entropy(logits, labels, reduction="sum"))
        return EvaluationRecord(
            node=self._node.name,
            step=step,
            time_s=applied_s,
            accuracy=correct / len(y),
            loss=loss / len(y),
            samples=len(y),
            final=final,
        )
