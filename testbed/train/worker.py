"""The worker: computes a gradient, compresses it, has it averaged with the others', applies the mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from testbed.control.base import Controller, controllers, watched
from testbed.control.seed import controller_seed
from testbed.exchange.kinds import BlocksSide, ExchangeKind, LeavingSide
from testbed.node import Node
from testbed.record.dealt_events import AwayRecord, LabelsRecord, RestRecord
from testbed.record.events import EpochRecord, StepRecord
from testbed.train.blocks import BlockComputation, BlocksCarrier
from testbed.train.carrier import Carrier, PayloadCarrier, VectorCarrier
from testbed.train.fits import Fits, WatchedCompressor
from testbed.train.job import Job
from testbed.train.observing import Observer
from testbed.train.participation import away_until, takes_part
from testbed.train.peers import exchange_kind, peers, worker_side
from testbed.train.step import Computing, Stepper, Tools
from testbed.train.stop import Stopping
from testbed.train.watch import Watch
from testbed.train.workshop import OwnWorkshop, WorkersComputation, Workshop


class Worker:
    """One worker in one run. ``prepare``, then ``run`` from t0 on. Steps and epochs count from 1."""

    def __init__(self, node: Node, job: Job, workshop: Workshop | None = None) -> None:
        self._node, self._job = node, job
        self._workshop = workshop or OwnWorkshop()
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
        self._exchange = worker_side(job)(self._node, peers(job, stop.limit))
        compressor = WatchedCompressor(job, self._replica)
        observer = Observer(self._node, job, controller, self._replica, compressor)
        tools = Tools(
            self._replica,
            *self._loading(kind, computation, controller, compressor, observer),
            observer,
            Fits(job, self._replica, compressor),
            self._exchange,
        )
        self._stepper = _stepper(kind, job, controller)(self._node, job, tools, self._finished)
        self._watch = None
        if job.rank == 0 and (
            job.servers > 1 or kind.server is None
        ):  # no server has all parameters
            self._watch = Watch(self._node, job, self._replica)
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
                if (until_s := away_until(self._job, self._node.now())) is not None:
                    step = self._be_away(step, until_s)
                    continue
                make = stepper.step if takes_part(self._job, step + 1) else stepper.rest
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
        kind: ExchangeKind,
        computation: WorkersComputation,
        controller: Controller,
        compressor: WatchedCompressor,
        observer: Observer,
    ) -> tuple[Computing, Carrier]:
        """What is computed for the exchange, and what carries it there."""
        if kind.carries == "blocks":
            side = cast(BlocksSide, self._exchange)
            of_blocks = BlockComputation(
                self._job, computation, self._replica.parameters.numel(), side
            )
            return of_blocks, BlocksCarrier(self._replica, of_blocks, side)
        if kind.carries == "vector":
            return computation, VectorCarrier(self._replica)
        return computation, PayloadCarrier(
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


def _stepper(kind: ExchangeKind, job: Job, controller: Controller) -> type[Stepper]:
    """Imported when it is wanted."""
    row = job.algorithm
    if kind.overlaps:
        from testbed.train.overlap import OverlappingStepper

        return OverlappingStepper
    if row.overlap:
        from testbed.train.layered import LayeredStepper

        return LayeredStepper
    if row.bucket_bytes or row.buckets == "layer" or "buckets" in watched(controller):
        from testbed.train.bucketed import BucketedStepper

        return BucketedStepper
    return Stepper


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
        """What leaving and returning took."""
        self.bytes_up += record.bytes_up
        self.bytes_down += record.bytes_down


def _dealt(node: str, labels: Mapping[int, int]) -> LabelsRecord:
    named = {str(label): count for label, count in labels.items()}
    return LabelsRecord(node, sum(labels.values()), named)
