"""What goes on beside a worker's computation: buckets are packed and sent as they are ready, and taken in as they come.

Packing goes in the order in which buckets are ready; of those that are packed the most urgent is sent first; what has
come is decoded at once. Each is an activity of its own, and the computation waits for none of them but for its parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from testbed.exchange.base import Ticket
from testbed.exchange.kinds import BucketsSide
from testbed.node import Buffer, Node, Queue
from testbed.train.bucket_order import urgency
from testbed.train.carrier import Freight, PayloadCarrier
from testbed.train.job import Job
from testbed.train.lane import Lane
from testbed.train.step import Tools
from testbed.train.way import Way


class Beside:
    """Of one worker. ``ways``: of the step that was begun last, by bucket."""

    def __init__(self, node: Node, job: Job, tools: Tools) -> None:
        self._node, self._job, self._fits = node, job, tools.fits
        self._carrier = cast(PayloadCarrier, tools.carrier)
        self._carrier.itemise()
        self._exchange = cast(BucketsSide, tools.exchange)
        self._shards = tools.replica.shards
        self._told: Queue[int | Freight | BaseException] = node.queue()
        self._sent: Queue[bool] = node.queue()
        """One for each bucket; False: there will be no more."""
        self._packing = Lane(node, self._told.put)
        self._sending = Lane(node, self._told.put)
        self._under_way: dict[int, Ticket] = {}
        self._decoded: set[int] = set()
        self._fresh: list[int] = []
        """Those of them that nobody has been told of, as they came."""
        self._freight: Freight | None = None
        self.ways: dict[int, Way] = {}
        self._step = 0
        node.spawn(self._take_in)

    def begin(self, step: int) -> None:
        """Buckets of ``step`` come now; all of the step before have been taken in."""
        self._step, self.ways, self._decoded, self._freight = step, {}, set(), None
        self._fresh = []
        self._carrier.open()

    def ready(self, place: int) -> None:
        """The gradients of a bucket are there, and stay as they are until ``freight`` has returned."""
        self.ways[place] = Way(self._shards[place], self._node.now())
        self._packing.put(lambda: self._pack(place))

    def until(self, place: int) -> Iterator[int]:
        """Buckets whose updates are decoded, each once: others while that of ``place`` is not, then that.

        Raises what packing, sending or taking in have raised.
        """
        while place not in self._decoded:
            if self._fresh:
                yield self._fresh.pop(0)
            else:
                self._hear()
        if place in self._fresh:
            self._fresh.remove(place)
            yield place

    def freight(self) -> Freight:
        """Until all is packed."""
        while self._freight is None:
            self._hear()
        return self._freight

    def end(self) -> None:
        """There is no step any more. Never blocks: what is under way may be so for as long as somebody lost is waited for."""
        self._packing.end()
        self._sending.end()
        self._sent.put(False)

    def _hear(self) -> None:
        told = self._told.get()
        if isinstance(told, BaseException):
            raise told
        if isinstance(told, Freight):
            self._freight = told
        else:
            self._decoded.add(told)
            self._fresh.append(told)

    def _pack(self, place: int) -> None:
        way, node = self.ways[place], self._node
        if self._fits.due(self._step):
            # here: in the background it would come after all of the computation
            for fitted in self._fits.of(self._step, way.shard):
                node.record(fitted.to_json())
        way.pack_s, cpu_s = node.now(), node.cpu()
        body = self._carrier.pack_shard(place)
        way.packed_s, way.compress_cpu_s = node.now(), node.cpu() - cpu_s
        way.items.append(self._carrier.packed(place))
        self._sending.put(lambda: self._send(place, body), urgency(self._job, place))
        if len(self.ways) == len(self._shards) and all(way.items for way in self.ways.values()):
            self._told.put(self._carrier.freight())

    def _send(self, place: int, body: Buffer) -> None:
        ticket = self._exchange.submit(self._step, place, body)
        self.ways[place].tickets.append(ticket)
        self._under_way[place] = ticket
        self._sent.put(True)

    def _take_in(self) -> None:
        """One bucket comes back for each that was sent, in whatever order."""
        try:
            while self._sent.get():
                place = self._exchange.arrived(self._step, self._under_way)
                update = self._under_way.pop(place).wait()
                self._carrier.unpack_shard(place, update)
                self.ways[place].decoded_s = self._node.now()
                self._told.put(place)
        except BaseException as error:
            self._told.put(error)
