"""One step of a worker, phase by phase.

The phases follow one another without a gap: computation ends where compression begins, compression
where sending begins, decompression begins when the reply's last byte has come. So they add up to the step.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from zlib import crc32

from testbed.compress.base import Selection
from testbed.compress.compressor import Compressor, together
from testbed.control.base import Controller, Observation
from testbed.exchange import base
from testbed.exchange.base import Travel
from testbed.exchange.kinds import WorkerSide
from testbed.node import Buffer, Node
from testbed.record.events import StepRecord
from testbed.train.agreement import detached
from testbed.train.compute import Computed
from testbed.train.fits import Fits
from testbed.train.job import Job
from testbed.train.observing import Observer, Sent
from testbed.train.pace import Pace
from testbed.train.seen import way
from testbed.train.workshop import WorkersComputation, WorkersReplica


@dataclass(frozen=True, slots=True)
class Tools:
    """What a worker's step is made with."""

    replica: WorkersReplica
    computation: WorkersComputation
    controller: Controller
    compressor: Compressor
    fits: Fits
    exchange: WorkerSide


@dataclass(frozen=True, slots=True)
class _Compute:
    """``start_s`` to ``end_s``, of which ``busy_s`` was work."""

    result: Computed
    start_s: float
    busy_s: float
    end_s: float
    overran: bool


@dataclass(frozen=True, slots=True)
class _Trip:
    """A gradient's way to the server and the mean's way back."""

    travel: Travel
    density: float
    sent: Sent
    compress_cpu_s: float
    payload_crc: int
    how: Selection | None


@dataclass(frozen=True, slots=True)
class _Applied:
    """When the reply was decoded and when it was applied."""

    decoded_s: float
    end_s: float
    apply_cpu_s: float


class Stepper:
    """Makes a worker's steps, each with its record."""

    def __init__(self, node: Node, job: Job, tools: Tools) -> None:
        self._node, self._job, self._tools = node, job, tools
        self._observer = Observer(node, job, tools.controller, tools.replica, tools.compressor)
        self._pace = Pace(node, job.train.pace)

    def step(self, step: int, epoch: int) -> StepRecord:
        """Compute, exchange, apply; then the controller learns how it went."""
        compute = self._compute(step)
        trip, payloads = self._exchange(step)
        applied = self._apply(payloads, epoch)
        step_s = applied.end_s - compute.start_s
        seen = self._observer.observe(
            step, epoch, compute.result, trip.density, trip.travel, trip.sent, step_s
        )
        return self._record(step, epoch, seen, compute, trip, applied)

    def _compute(self, step: int) -> _Compute:
        start_s = self._node.now()
        result = self._node.background(lambda: self._tools.computation.gradients(step))
        busy_s = self._node.now() - start_s
        if self._tools.fits.due(step):
            for fitted in self._node.background(lambda: list(self._tools.fits.report(step))):
                self._node.record(fitted.to_json())
        overran = self._pace.hold(start_s)
        return _Compute(result, start_s, busy_s, self._node.now(), overran)

    def _exchange(self, step: int) -> tuple[_Trip, list[Buffer]]:
        """All shards are compressed before the first is sent: phases follow one another."""
        tools, node = self._tools, self._node
        density, densities = tools.controller.density(), self._observer.densities()
        cpu_s = node.cpu()
        gradients = tools.replica.flat.gradients
        shards = tools.replica.shards
        packed = [
            tools.compressor.compress(shard.name, gradients[shard.place], share, node.rng)
            for shard, share in zip(shards, densities, strict=True)
        ]
        compress_cpu_s = node.cpu() - cpu_s
        bodies: list[Buffer] = [one.payload for one in packed]
        if (note := self._observer.note()) is not None:
            bodies[0] = note.attached(bodies[0])
        tickets = [
            tools.exchange.submit(step, shard.number, body)
            for shard, body in zip(shards, bodies, strict=True)
        ]
        crc = 0  # here it costs nothing: the replies are not there yet
        for one in packed:
            crc = crc32(one.payload, crc)
        sent = self._observer.sent(packed)
        payloads = [ticket.wait().payload for ticket in tickets]
        if note is not None:
            payloads[0], told = detached(payloads[0])
            self._observer.agree(told)
        travel = base.together([ticket.travel for ticket in tickets])
        return _Trip(travel, density, sent, compress_cpu_s, crc, together(packed)), payloads

    def _apply(self, payloads: list[Buffer], epoch: int) -> _Applied:
        node, replica = self._node, self._tools.replica
        for shard, payload in zip(replica.shards, payloads, strict=True):
            replica.decode(shard, payload)
        decoded_s, cpu_s = node.now(), node.cpu()
        replica.apply(epoch)
        return _Applied(decoded_s, node.now(), node.cpu() - cpu_s)

    def _record(
        self, step: int, epoch: int, seen: Observation | None, compute: _Compute, trip: _Trip, applied: _Applied
    ) -> StepRecord:  # fmt: skip
        travel = trip.travel
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
            density=trip.density,
            sent_count=trip.sent.count,
            size=self._tools.replica.flat.size,
            loss=compute.result.loss,
            accuracy=compute.result.accuracy,
            overran=compute.overran,
            compress_cpu_s=trip.compress_cpu_s,
            apply_cpu_s=applied.apply_cpu_s,
            payload_crc=trip.payload_crc,
            selection=None if trip.how is None else asdict(trip.how),
            controller=None if seen is None else seen.to_json(),
        )
