"""One step of a worker, phase by phase.

The phases follow one another without a gap: computation ends where compression begins, compression
where sending begins, decompression begins when the reply's last byte has come. So they add up to the step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Protocol, cast

from testbed.control.base import Observation
from testbed.exchange.base import Travel, Update, together
from testbed.exchange.kinds import PartialSide, WorkerSide
from testbed.node import Node
from testbed.record.dealt_events import RestRecord
from testbed.record.events import StepRecord
from testbed.train.batches import Batches
from testbed.train.carrier import Carrier, Freight
from testbed.train.compute import Computed
from testbed.train.fits import Fits
from testbed.train.job import Job
from testbed.train.observing import Observer
from testbed.train.pace import Pace
from testbed.train.seen import way
from testbed.train.step_times import step_times
from testbed.train.workshop import WorkersReplica

Finished = Callable[[StepRecord | RestRecord], None]
"""Told of every step when all of it is done, and the parameters are as it leaves them."""


Buckets = dict[str, dict[str, float]]
"""``Observation.buckets``."""


class Computing(Protocol):
    """Forward and backward pass."""

    @property
    def batches(self) -> Batches:
        """Which samples, and which epoch, a step has."""
        ...

    def gradients(self, step: int) -> Computed:
        """Of this worker's part of the mini-batch of ``step``, to where its carrier takes them from."""
        ...


@dataclass(frozen=True, slots=True)
class Tools:
    """What a worker's step is made with."""

    replica: WorkersReplica
    computation: Computing
    carrier: Carrier
    observer: Observer
    fits: Fits
    exchange: WorkerSide


@dataclass(frozen=True, slots=True)
class Compute:
    """``start_s`` to ``end_s``, of which ``busy_s`` was work."""

    result: Computed
    start_s: float
    busy_s: float
    end_s: float
    overran: bool
    pace_s: float | None = None
    """What it was held to."""


@dataclass(frozen=True, slots=True)
class Trip:
    """A gradient's way to the others and the mean's way back."""

    travel: Travel
    freight: Freight
    compress_cpu_s: float
    overlap_s: float = 0.0
    """What was before the computation ended; ``travel`` is of what was after it."""


@dataclass(frozen=True, slots=True)
class Applied:
    """When the reply was decoded and when it was applied."""

    decoded_s: float
    end_s: float
    apply_cpu_s: float
    skipped: int
    """Later steps that were taken in as well."""


class Stepper:
    """Makes a worker's steps, each with its record."""

    def __init__(self, node: Node, job: Job, tools: Tools, finished: Finished) -> None:
        self._node, self._job, self._tools = node, job, tools
        self._finished = finished
        self._times = step_times(job)
        self._pace = Pace(node, self._times)

    def step(self, step: int, epoch: int) -> int:
        """Compute, exchange, apply; then the controller learns how it went, and ``finished`` is told.

        Returns the number of the last step that was made: a later one where some were skipped.
        """
        compute = self._compute(step)
        trip, updates = self._exchange(step)
        applied = self._apply(updates, epoch)
        step_s = applied.end_s - compute.start_s
        freight, buckets = trip.freight, self._told(step, compute, applied)
        seen = self._tools.observer.observe(
            step, epoch, compute.result, freight.density, trip.travel, freight.sent, step_s, buckets
        )
        self._finished(self._record(step, epoch, seen, compute, trip, applied))
        return step + applied.skipped

    def rest(self, step: int, epoch: int) -> int:
        """As ``step`` where this worker does not take part: it takes in what comes of the others' gradients.

        Its memory, its controller and its randomness know nothing of such a step.
        """
        tools, start_s = self._tools, self._node.now()
        side = cast(PartialSide, tools.exchange)
        tickets = [side.expect(step, shard.number) for shard in tools.replica.shards]
        updates = [ticket.wait() for ticket in tickets]
        travel = together([ticket.travel for ticket in tickets])
        applied = self._apply(updates, epoch)
        self._finished(
            RestRecord(
                node=self._job.node,
                step=step,
                epoch=epoch,
                start_s=start_s,
                first_s=travel.first_s,
                arrived_s=travel.arrived_s,
                last_s=travel.last_s,
                end_s=applied.end_s,
                bytes_down=travel.bytes_down,
            )
        )
        return step

    def end(self) -> None:
        """There is no step any more, whatever the reason: what goes on beside is given up."""

    def _compute(self, step: int) -> Compute:
        start_s = self._node.now()
        result = self._node.background(lambda: self._tools.computation.gradients(step))
        busy_s = self._node.now() - start_s
        if self._tools.fits.due(step):
            for fitted in self._node.background(lambda: list(self._tools.fits.report(step))):
                self._node.record(fitted.to_json())
        overran = self._pace.hold(step, start_s, result.share)
        asked_s = self._pace.asked_s(step, result.share)
        return Compute(result, start_s, busy_s, self._node.now(), overran, asked_s)

    def _exchange(self, step: int) -> tuple[Trip, list[Update]]:
        """Everything is packed before the first bucket is sent: phases follow one another."""
        tools, cpu_s = self._tools, self._node.cpu()
        parcels = tools.carrier.pack()
        compress_cpu_s = self._node.cpu() - cpu_s
        tickets = [tools.exchange.submit(step, bucket, body) for bucket, body in parcels]
        freight = tools.carrier.freight()  # here it costs nothing: the replies are not there yet
        updates = [ticket.wait() for ticket in tickets]
        travel = together([ticket.travel for ticket in tickets])
        return Trip(travel, freight, compress_cpu_s), updates

    def _apply(self, updates: Sequence[Update], epoch: int) -> Applied:
        node, tools = self._node, self._tools
        tools.carrier.unpack(updates)
        decoded_s, cpu_s = node.now(), node.cpu()
        if updates[0].kind == "parameters":
            tools.replica.adopt()
        else:
            tools.replica.apply(epoch)
        for later in updates[0].more:
            tools.carrier.unpack([later])
            tools.replica.apply(tools.computation.batches.epoch(later.version))
        skipped = len(updates[0].more)
        return Applied(decoded_s, node.now(), node.cpu() - cpu_s, skipped)

    def _told(self, step: int, compute: Compute, applied: Applied) -> Buckets:  # noqa: ARG002
        """How what is compressed by itself travelled, where that is known."""
        return {}

    def _record(
        self, step: int, epoch: int, seen: Observation | None, compute: Compute, trip: Trip, applied: Applied
    ) -> StepRecord:  # fmt: skip
        travel, freight = trip.travel, trip.freight
        return StepRecord(
            node=self._job.node,
            step=step,
            epoch=epoch,
            start_s=compute.start_s,
            compute_s=compute.end_s - compute.start_s,
            busy_s=compute.busy_s,
            **way(travel, compute.end_s),
            decompress_s=applied.decoded_s - travel.last_s,
            apply_s=applied.end_s - applied.decoded_s,
            end_s=applied.end_s,
            density=freight.density,
            sent_count=freight.sent.count,
            size=self._tools.replica.flat.size,
            loss=compute.result.loss,
            accuracy=compute.result.accuracy,
            overran=compute.overran,
            compress_cpu_s=trip.compress_cpu_s,
            apply_cpu_s=applied.apply_cpu_s,
            overlap_s=trip.overlap_s,
            payload_crc=freight.crc,
            selection=None if freight.how is None else asdict(freight.how),
            controller=None if seen is None else seen.to_json(),
            skipped=applied.skipped,
            pace_s=compute.pace_s,
        )
