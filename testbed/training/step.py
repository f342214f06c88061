"""One step of a worker, phase by phase: compute, compress, exchange, apply; ``BucketedStep``
records each bucket.

The phases follow one another without a gap: computation ends where compression begins, compression
where sending begins, decompression begins when the reply's last byte has come. So they add up to
the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Protocol, cast

from testbed.compress.compressor import Packed
from testbed.compress.layout import Shard
from testbed.control.base import Observation
from testbed.exchange.base import (
    PartialSide,
    Ticket,
    TransferTiming,
    Update,
    WorkerSide,
    merge_timings,
)
from testbed.node import Buffer, Node
from testbed.records.events import BucketRecord, RestRecord, StepRecord
from testbed.training.compute import Computed, ReplicaView
from testbed.training.controller_feedback import ControllerAdapter, FitReporter
from testbed.training.data import Batches
from testbed.training.gradient_codec import CompressedCodec, EncodedSummary, GradientCodec
from testbed.training.job import Job, bucket_observations
from testbed.training.pacing import Pace, step_times

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
        """Compute the gradients of this worker's part of the mini-batch of ``step``, to where its
        codec takes them from."""
        ...


@dataclass(frozen=True, slots=True)
class StepContext:
    """The parts that a worker's step is made with."""

    replica: ReplicaView
    computation: Computing
    carrier: GradientCodec
    observer: ControllerAdapter
    fits: FitReporter
    exchange: WorkerSide


@dataclass(frozen=True, slots=True)
class ComputeResult:
    """``start_s`` to ``end_s``, of which ``busy_s`` was work."""

    result: Computed
    start_s: float
    busy_s: float
    end_s: float
    overran: bool
    pace_s: float | None = None
    """Seconds that the pace asked for."""


@dataclass(frozen=True, slots=True)
class ExchangeOutcome:
    """A gradient's way to the others and the mean's way back."""

    travel: TransferTiming
    freight: EncodedSummary
    compress_cpu_s: float
    overlap_s: float = 0.0
    """Seconds of the exchange before the computation ended; ``travel`` is of the time after it."""


@dataclass(frozen=True, slots=True)
class ApplyResult:
    """When the reply was decoded and when it was applied."""

    decoded_s: float
    end_s: float
    apply_cpu_s: float
    skipped: int
    """Later steps that were taken in as well."""


class SequentialStep:
    """Makes a worker's steps, each with its record."""

    def __init__(self, node: Node, job: Job, tools: StepContext, finished: Finished) -> None:
        self._node, self._job, self._tools = node, job, tools
        self._finished = finished
        self._times = step_times(job)
        self._pace = Pace(node, self._times)

    def step(self, step: int, epoch: int) -> int:
        """Compute, exchange, apply; then the controller learns how it went, and ``finished`` is
        told.

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
        """As ``step`` where this worker does not take part: it takes in what comes of the others'
        gradients.

        Its memory, its controller and its randomness know nothing of such a step.
        """
        tools, start_s = self._tools, self._node.now()
        side = cast(PartialSide, tools.exchange)
        tickets = [side.expect(step, shard.number) for shard in tools.replica.shards]
        updates = [ticket.wait() for ticket in tickets]
        travel = merge_timings([ticket.travel for ticket in tickets])
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

    def _compute(self, step: int) -> ComputeResult:
        start_s = self._node.now()
        result = self._node.background(lambda: self._tools.computation.gradients(step))
        busy_s = self._node.now() - start_s
        if self._tools.fits.due(step):
            for fitted in self._node.background(lambda: list(self._tools.fits.report(step))):
                self._node.record(fitted.to_json())
        overran = self._pace.hold(step, start_s, result.share)
        asked_s = self._pace.asked_s(step, result.share)
        return ComputeResult(result, start_s, busy_s, self._node.now(), overran, asked_s)

    def _exchange(self, step: int) -> tuple[ExchangeOutcome, list[Update]]:
        """Everything is packed before the first bucket is sent: phases follow one another."""
        tools, cpu_s = self._tools, self._node.cpu()
        parcels = tools.carrier.pack()
        compress_cpu_s = self._node.cpu() - cpu_s
        tickets = [tools.exchange.submit(step, bucket, body) for bucket, body in parcels]
        freight = tools.carrier.freight()  # here it costs nothing: the replies are not there yet
        updates = [ticket.wait() for ticket in tickets]
        travel = merge_timings([ticket.travel for ticket in tickets])
        return ExchangeOutcome(travel, freight, compress_cpu_s), updates

    def _apply(self, updates: Sequence[Update], epoch: int) -> ApplyResult:
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
        return ApplyResult(decoded_s, node.now(), node.cpu() - cpu_s, skipped)

    def _told(self, step: int, compute: ComputeResult, applied: ApplyResult) -> Buckets:  # noqa: ARG002
        """How what is compressed by itself travelled, where that is known."""
        return {}

    def _record(
        self,
        step: int,
        epoch: int,
        seen: Observation | None,
        compute: ComputeResult,
        trip: ExchangeOutcome,
        applied: ApplyResult,
    ) -> StepRecord:
        travel, freight = trip.travel, trip.freight
        return StepRecord(
            node=self._job.node,
            step=step,
            epoch=epoch,
            start_s=compute.start_s,
            compute_s=compute.end_s - compute.start_s,
            busy_s=compute.busy_s,
            **bucket_observations(travel, compute.end_s),
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


Densities = float | list[float]
"""Asked for: one for all of a bucket, or one for each of its parameters."""


class Tells(Protocol):
    """The part of a codec that describes the messages it has packed."""

    def packed(self, place: int) -> tuple[Packed, Densities]:
        """Return the packed message of one bucket, and the densities that were asked for."""
        ...


@dataclass(slots=True)
class BucketTimings:
    """Times as in ``BucketRecord``."""

    shard: Shard
    ready_s: float
    pack_s: float = 0.0
    packed_s: float = 0.0
    compress_cpu_s: float = 0.0
    decoded_s: float = 0.0
    applying_s: float = 0.0
    applied_s: float = 0.0
    tickets: list[Ticket] = field(default_factory=list)
    """The one that it has, once it is sent."""
    items: list[tuple[Packed, Densities]] = field(default_factory=list)
    """The packed message and its densities, once it is packed."""

    @property
    def travel(self) -> TransferTiming:
        """There when its ticket has been waited for."""
        return self.tickets[0].travel

    def record(self, node: str, step: int) -> BucketRecord:
        """All of it."""
        travel, (packed, densities) = self.travel, self.items[0]
        parts = self._parts(packed, densities)
        asked = sum(one[0] * one[3] for one in parts.values()) / max(1, packed.size)
        return BucketRecord(
            node=node,
            step=step,
            bucket=self.shard.number,
            ready_s=self.ready_s,
            pack_s=self.pack_s,
            packed_s=self.packed_s,
            start_s=travel.start_s,
            sent_s=travel.sent_s,
            first_s=travel.first_s,
            arrived_s=travel.arrived_s,
            last_s=travel.last_s,
            decoded_s=self.decoded_s,
            applying_s=self.applying_s,
            applied_s=self.applied_s,
            density=asked,
            size=packed.size,
            sent_count=packed.count,
            bytes_up=travel.bytes_up,
            bytes_down=travel.bytes_down,
            parts=parts,
        )

    def _parts(self, packed: Packed, densities: Densities) -> dict[str, list[float]]:
        parts = self.shard.layout.parts
        asked = densities if isinstance(densities, list) else [densities]
        if len(asked) < len(parts):  # one vector
            asked = asked * len(parts)
        return {
            part.name: [part.size, share.count, share.bytes, density]
            for part, share, density in zip(parts, packed.parts, asked, strict=True)
        }


def told(
    job: Job, ways: Iterable[tuple[BucketTimings, BucketRecord]], begun_s: float, computed_s: float
) -> dict[str, dict[str, float]]:
    """``Observation.buckets`` of a step that began at ``begun_s`` and whose computation ended at
    ``computed_s``."""
    found: dict[str, dict[str, float]] = {}
    layered, dilation = job.algorithm.buckets == "layer", job.dilation
    for way, one in ways:
        times = {
            "bucket": float(one.bucket),
            "start_s": (one.start_s - begun_s) / dilation,
            "left_s": max(0.0, computed_s - one.ready_s) / dilation,
            "delay_s": (one.last_s - one.start_s) / dilation,
            "send_s": (one.sent_s - one.start_s) / dilation,
            "bytes_up": float(one.bytes_up),
            "bytes_down": float(one.bytes_down),
        }
        compress_s = (one.packed_s - one.pack_s) / dilation
        if not layered:
            about = {"elements": float(one.size), "sent": float(one.sent_count)}
            found[way.shard.name] = {**about, "compress_s": compress_s, **times}
            continue
        for name, (size, sent, _, _) in one.parts.items():
            share = {"elements": float(size), "sent": float(sent)}
            found[name] = {**share, "compress_s": compress_s * size / max(1, one.size), **times}
    return found


class BucketedStep(SequentialStep):
    """All buckets are packed when the computation has ended, then sent, then waited for."""

    def __init__(self, node: Node, job: Job, tools: StepContext, finished: Finished) -> None:
        super().__init__(node, job, tools, finished)
        cast(CompressedCodec, tools.carrier).itemise()

    def _exchange(self, step: int) -> tuple[ExchangeOutcome, list[Update]]:
        tools, cpu_s = self._tools, self._node.cpu()
        carrier = cast(CompressedCodec, tools.carrier)
        bodies = self._packed(carrier)
        compress_cpu_s = self._node.cpu() - cpu_s
        for place, (way, body) in enumerate(zip(self._ways, bodies, strict=True)):
            way.tickets.append(tools.exchange.submit(step, place, body))
        freight = carrier.freight()
        updates = [way.tickets[0].wait() for way in self._ways]
        travel = merge_timings([way.travel for way in self._ways])
        return ExchangeOutcome(travel, freight, compress_cpu_s), updates

    def _packed(self, carrier: CompressedCodec) -> list[Buffer]:
        """All bodies; with ``_ways`` of them all."""
        node, ready_s = self._node, self._node.now()
        carrier.open()
        self._ways, bodies = list[BucketTimings](), list[Buffer]()
        for place, shard in enumerate(self._tools.replica.shards):
            self._ways.append(BucketTimings(shard, ready_s, pack_s=node.now()))
            bodies.append(carrier.pack_shard(place))
            self._ways[place].packed_s = node.now()
            self._ways[place].items.append(carrier.packed(place))
        return bodies

    def _told(self, step: int, compute: ComputeResult, applied: ApplyResult) -> Buckets:
        name, records = self._job.node, []
        for way in self._ways:
            way.decoded_s = way.applying_s = applied.decoded_s
            way.applied_s = applied.end_s
            records.append(way.record(name, step))
            self._node.record(records[-1].to_json())
        if not self._tools.observer.sees_buckets:
            return {}
        ways = zip(self._ways, records, strict=True)
        return told(self._job, ways, compute.start_s, compute.end_s)
