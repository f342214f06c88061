"""One step of a worker, phase by phase: compute, compress, exchange, apply; and its records.

The phases follow one another without a gap: computation ends where compression begins, compression
where sending begins, decompression begins when the reply's last byte has come. So they add up to
the step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, cast

from testbed.compress.layout import Shard
from testbed.control.base import Observation
from testbed.exchange.base import (
    Ticket,
    TransferTiming,
    Update,
    WorkerSide,
    merge_timings,
)
from testbed.exchange.parameter_server import PsWorkerExchange
from testbed.node import Node
from testbed.records.events import BucketRecord, RestRecord, StepRecord
from testbed.training.compute import Computed
from testbed.training.controller_feedback import ControllerAdapter, EncodedSummary, FitReporter
from testbed.training.gradient_codec import (
    BlockComputation,
    BucketMessage,
    CompressedCodec,
    GradientCodec,
)
from testbed.training.job import Job, transfer_fields
from testbed.training.pacing import Pace, step_times
from testbed.training.shared_replica import AnyComputation, AnyReplica

Finished = Callable[[StepRecord | RestRecord], None]
"""Called for every step when all of it is done, and the parameters are as it leaves them."""

Buckets = dict[str, dict[str, float]]
"""``Observation.buckets``."""


@dataclass(frozen=True, slots=True)
class StepContext:
    """The parts that a worker's step is made with."""

    replica: AnyReplica
    computation: AnyComputation | BlockComputation
    codec: GradientCodec
    observer: ControllerAdapter
    fits: FitReporter
    exchange: WorkerSide


@dataclass(frozen=True, slots=True)
class ComputeResult:
    """``start_s`` to ``end_s``, of which ``busy_s`` was work."""

    computed: Computed
    start_s: float
    busy_s: float
    end_s: float
    overran: bool
    pace_s: float | None = None
    """Seconds that the pace asked for."""


@dataclass(frozen=True, slots=True)
class ExchangeOutcome:
    """A gradient's transfer to the others and the mean's back."""

    timing: TransferTiming
    summary: EncodedSummary
    compress_cpu_s: float
    overlap_s: float = 0.0
    """Seconds of the exchange before the computation ended; ``timing`` is of the time after it."""
    tickets: Sequence[Ticket] = ()
    """One for each bucket, by number."""


@dataclass(frozen=True, slots=True)
class ApplyResult:
    """When the reply was decoded and when it was applied."""

    decoded_s: float
    end_s: float
    apply_cpu_s: float
    skipped: int
    """Later steps that were taken in as well."""


@dataclass(slots=True)
class BucketTimings:
    """Times as in ``BucketRecord``; ``encoded`` once it is packed, ``ticket`` once it is sent."""

    shard: Shard
    ready_s: float
    encoded: BucketMessage = field(init=False)
    ticket: Ticket = field(init=False)
    decoded_s: float = 0.0
    applying_s: float = 0.0
    applied_s: float = 0.0

    def record(self, node: str, step: int) -> BucketRecord:
        """All of it."""
        packed, parts = self.encoded.packed, self._parts()
        requested = sum(part[0] * part[3] for part in parts.values()) / max(1, packed.size)
        return BucketRecord(
            node=node,
            step=step,
            bucket=self.shard.number,
            ready_s=self.ready_s,
            pack_s=self.encoded.begin_s,
            packed_s=self.encoded.end_s,
            **asdict(self.ticket.travel),
            decoded_s=self.decoded_s,
            applying_s=self.applying_s,
            applied_s=self.applied_s,
            density=requested,
            size=packed.size,
            sent_count=packed.count,
            parts=parts,
        )

    def _parts(self) -> dict[str, list[float]]:
        parts, densities = self.shard.layout.parts, self.encoded.densities
        by_part = densities if isinstance(densities, list) else [densities]
        if len(by_part) < len(parts):  # one vector
            by_part = by_part * len(parts)
        return {
            part.name: [part.size, share.count, share.bytes, density]
            for part, share, density in zip(parts, self.encoded.packed.parts, by_part, strict=True)
        }


class SequentialStep:
    """Makes a worker's steps, each with its record; of each bucket too, where messages are
    itemised. Everything is packed when the computation has ended, then sent, then waited for."""

    def __init__(self, node: Node, job: Job, context: StepContext, finished: Finished) -> None:
        self._node, self._job, self._context = node, job, context
        self._finished = finished
        self._times = step_times(job)
        self._pace = Pace(node, self._times)

    def step(self, step: int, epoch: int) -> int:
        """Compute, exchange, apply; then the controller learns how it went, and ``finished`` is
        called. Returns the last step that was made: a later one where some were skipped."""
        compute = self._compute(step)
        outcome, updates = self._exchange(step)
        applied = self._apply(updates, epoch)
        step_s, timing = applied.end_s - compute.start_s, outcome.timing
        buckets = self._bucket_records(step, compute, outcome, applied)
        observed = self._context.observer.observe(
            step, epoch, compute.computed, outcome.summary, timing, step_s, buckets
        )
        record = self._record(
            step,
            epoch,
            compute.computed,
            outcome.summary,
            observed,
            **transfer_fields(timing, compute.end_s),
            start_s=compute.start_s,
            compute_s=compute.end_s - compute.start_s,
            busy_s=compute.busy_s,
            decompress_s=applied.decoded_s - timing.last_s,
            apply_s=applied.end_s - applied.decoded_s,
            end_s=applied.end_s,
            overran=compute.overran,
            compress_cpu_s=outcome.compress_cpu_s,
            apply_cpu_s=applied.apply_cpu_s,
            overlap_s=outcome.overlap_s,
            skipped=applied.skipped,
            pace_s=compute.pace_s,
        )
        self._finished(record)
        return step + applied.skipped

    def skip_step(self, step: int, epoch: int) -> int:
        """As ``step`` where this worker does not take part: it takes in what comes of the others'
        gradients. Its memory, controller and randomness know nothing of such a step."""
        context, start_s = self._context, self._node.now()
        side = cast(PsWorkerExchange, context.exchange)
        tickets = [side.expect(step, shard.number) for shard in context.replica.shards]
        updates = [ticket.wait() for ticket in tickets]
        timing = merge_timings([ticket.travel for ticket in tickets])
        applied = self._apply(updates, epoch)
        self._finished(
            RestRecord(
                node=self._job.node,
                step=step,
                epoch=epoch,
                start_s=start_s,
                first_s=timing.first_s,
                arrived_s=timing.arrived_s,
                last_s=timing.last_s,
                end_s=applied.end_s,
                bytes_down=timing.bytes_down,
            )
        )
        return step

    def end(self) -> None:
        """There is no step any more, whatever the reason: what goes on beside is given up."""

    def _compute(self, step: int) -> ComputeResult:
        start_s = self._node.now()
        computed = self._node.background(lambda: self._context.computation.gradients(step))
        busy_s = self._node.now() - start_s
        if self._context.fits.due(step):
            for fitted in self._node.background(lambda: list(self._context.fits.report(step))):
                self._node.record(fitted.to_json())
        overran = self._pace.hold(step, start_s, computed.share)
        pace_s = self._pace.requested_s(step, computed.share)
        return ComputeResult(computed, start_s, busy_s, self._node.now(), overran, pace_s)

    def _exchange(self, step: int) -> tuple[ExchangeOutcome, list[Update]]:
        """Everything is packed before the first bucket is sent: phases follow one another."""
        context, cpu_s = self._context, self._node.cpu()
        bodies = context.codec.encode()
        compress_cpu_s = self._node.cpu() - cpu_s
        tickets = [context.exchange.submit(step, bucket, body) for bucket, body in bodies]
        summary = context.codec.summary()  # costs nothing here: the replies have not come yet
        updates = [ticket.wait() for ticket in tickets]
        timing = merge_timings([ticket.travel for ticket in tickets])
        return ExchangeOutcome(timing, summary, compress_cpu_s, tickets=tickets), updates

    def _apply(self, updates: Sequence[Update], epoch: int) -> ApplyResult:
        node, context = self._node, self._context
        context.codec.decode(updates)
        decoded_s, cpu_s = node.now(), node.cpu()
        if updates[0].kind == "parameters":
            context.replica.load_parameters()
        else:
            context.replica.apply(epoch)
        for later in updates[0].later_updates:
            context.codec.decode([later])
            context.replica.apply(context.computation.batches.epoch(later.version))
        skipped = len(updates[0].later_updates)
        return ApplyResult(decoded_s, node.now(), node.cpu() - cpu_s, skipped)

    def _bucket_records(
        self, step: int, compute: ComputeResult, outcome: ExchangeOutcome, applied: ApplyResult
    ) -> Buckets:
        codec = self._context.codec
        if not (isinstance(codec, CompressedCodec) and codec.itemised):
            return {}
        buckets = []
        for number, shard in enumerate(self._context.replica.shards):
            bucket = BucketTimings(shard, compute.end_s)
            bucket.encoded, bucket.ticket = codec.encoded[number], outcome.tickets[number]
            bucket.decoded_s = bucket.applying_s = applied.decoded_s
            bucket.applied_s = applied.end_s
            buckets.append(bucket)
        return self._record_buckets(step, buckets, compute.start_s, compute.end_s)

    def _record_buckets(
        self, step: int, buckets: Sequence[BucketTimings], start_s: float, computed_s: float
    ) -> Buckets:
        """Record each; return ``Observation.buckets`` of a step that began at ``start_s`` and whose
        computation ended at ``computed_s``."""
        records = [bucket.record(self._job.node, step) for bucket in buckets]
        for record in records:
            self._node.record(record.to_json())
        observed = Buckets()
        if not self._context.observer.sees_buckets:
            return observed
        layered, dilation = self._job.algorithm.buckets == "layer", self._job.dilation
        for bucket, record in zip(buckets, records, strict=True):
            transfer = {
                "bucket": float(record.bucket),
                "start_s": (record.start_s - start_s) / dilation,
                "left_s": max(0.0, computed_s - record.ready_s) / dilation,
                "delay_s": (record.last_s - record.start_s) / dilation,
                "send_s": (record.sent_s - record.start_s) / dilation,
                "bytes_up": float(record.bytes_up),
                "bytes_down": float(record.bytes_down),
            }
            compress_s = (record.packed_s - record.pack_s) / dilation
            size, sent = float(record.size), float(record.sent_count)
            vectors = {bucket.shard.name: (size, sent, compress_s)}
            if layered:
                vectors = {
                    name: (size, sent, compress_s * size / max(1, record.size))
                    for name, (size, sent, _, _) in record.parts.items()
                }
            for name, (size, sent, own_s) in vectors.items():
                about = {"elements": float(size), "sent": float(sent), "compress_s": own_s}
                observed[name] = {**about, **transfer}
        return observed

    def _record(
        self,
        step: int,
        epoch: int,
        computed: Computed,
        summary: EncodedSummary,
        observed: Observation | None,
        **fields: Any,
    ) -> StepRecord:
        """A step's record. ``observed``: by the controller; ``fields``: what follows from its
        times."""
        return StepRecord(
            node=self._job.node,
            step=step,
            epoch=epoch,
            density=summary.density,
            sent_count=summary.sent.count,
            size=self._context.replica.flat.size,
            loss=computed.loss,
            accuracy=computed.accuracy,
            payload_crc=summary.crc,
            selection=None if summary.selection is None else asdict(summary.selection),
            controller=None if observed is None else observed.to_json(),
            **fields,
        )
