"""A worker's step in which what is compressed by itself has records of its own. Phases follow one another."""

from __future__ import annotations

from typing import cast

from testbed.exchange.base import Update, together
from testbed.node import Buffer, Node
from testbed.train.carrier import PayloadCarrier
from testbed.train.job import Job
from testbed.train.step import Applied, Buckets, Compute, Finished, Stepper, Tools, Trip
from testbed.train.way import Way, told


class BucketedStepper(Stepper):
    """All buckets are packed when the computation has ended, then sent, then waited for."""

    def __init__(self, node: Node, job: Job, tools: Tools, finished: Finished) -> None:
        super().__init__(node, job, tools, finished)
        cast(PayloadCarrier, tools.carrier).itemise()

    def _exchange(self, step: int) -> tuple[Trip, list[Update]]:
        tools, cpu_s = self._tools, self._node.cpu()
        carrier = cast(PayloadCarrier, tools.carrier)
        bodies = self._packed(carrier)
        compress_cpu_s = self._node.cpu() - cpu_s
        for place, (way, body) in enumerate(zip(self._ways, bodies, strict=True)):
            way.tickets.append(tools.exchange.submit(step, place, body))
        freight = carrier.freight()
        updates = [way.tickets[0].wait() for way in self._ways]
        travel = together([way.travel for way in self._ways])
        return Trip(travel, freight, compress_cpu_s), updates

    def _packed(self, carrier: PayloadCarrier) -> list[Buffer]:
        """All bodies; with ``_ways`` of them all."""
        node, ready_s = self._node, self._node.now()
        carrier.open()
        self._ways, bodies = list[Way](), list[Buffer]()
        for place, shard in enumerate(self._tools.replica.shards):
            self._ways.append(Way(shard, ready_s, pack_s=node.now()))
            bodies.append(carrier.pack_shard(place))
            self._ways[place].packed_s = node.now()
            self._ways[place].items.append(carrier.packed(place))
        return bodies

    def _told(self, step: int, compute: Compute, applied: Applied) -> Buckets:
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
