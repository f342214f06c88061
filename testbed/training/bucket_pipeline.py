"""Pipeline beside a worker's computation: buckets are packed, sent and taken in.

Packing goes in the order in which buckets are ready; of those that are packed the most urgent is
sent first; what has come is decoded at once. Each is an activity of its own, and the computation
waits for none of them but for its parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import count
from typing import cast

from testbed.exchange.base import BucketsSide, Ticket
from testbed.node import Buffer, Node, Queue
from testbed.training.gradient_codec import CompressedCodec, EncodedSummary, send_priority
from testbed.training.job import Job
from testbed.training.step import BucketTimings, StepContext

Failed = Callable[[BaseException], None]


class PriorityExecutor:
    """``failed`` is told what a piece of work raises; nothing is done after it."""

    def __init__(self, node: Node, failed: Failed) -> None:
        self._waiting: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()
        self._tokens: Queue[bool] = node.queue()
        """One for each piece of work; False: to have a look whether it is over."""
        self._over = False
        self._failed = failed
        node.spawn(self._run)

    def put(self, work: Callable[[], None], urgency: int = 0) -> None:
        """Have ``work`` done: before all that wait with a greater ``urgency``, after those with the
        same."""
        heappush(self._waiting, (urgency, next(self._order), work))
        self._tokens.put(True)

    def end(self) -> None:
        """Nothing more is begun. Never blocks: what is under way may wait for somebody who is
        lost."""
        self._over = True
        self._tokens.put(False)

    def _run(self) -> None:
        try:
            while self._tokens.get() and not self._over:
                _, _, work = heappop(self._waiting)
                work()
        except BaseException as error:
            self._failed(error)


class BucketPipeline:
    """Packs, sends and takes in one worker's buckets.

    ``ways``: timings of the step that was begun last, by bucket.
    """

    def __init__(self, node: Node, job: Job, tools: StepContext) -> None:
        self._node, self._job, self._fits = node, job, tools.fits
        self._carrier = cast(CompressedCodec, tools.carrier)
        self._carrier.itemise()
        self._exchange = cast(BucketsSide, tools.exchange)
        self._shards = tools.replica.shards
        self._told: Queue[int | EncodedSummary | BaseException] = node.queue()
        self._sent: Queue[bool] = node.queue()
        """One for each bucket; False: there will be no more."""
        self._packing = PriorityExecutor(node, self._told.put)
        self._sending = PriorityExecutor(node, self._told.put)
        self._under_way: dict[int, Ticket] = {}
        self._decoded: set[int] = set()
        self._fresh: list[int] = []
        """Those of them that nobody has been told of, as they came."""
        self._freight: EncodedSummary | None = None
        self.ways: dict[int, BucketTimings] = {}
        self._step = 0
        node.spawn(self._take_in)

    def begin(self, step: int) -> None:
        """Buckets of ``step`` come now; all of the step before have been taken in."""
        self._step, self.ways, self._decoded, self._freight = step, {}, set(), None
        self._fresh = []
        self._carrier.open()

    def ready(self, place: int) -> None:
        """The gradients of a bucket are there, and stay as they are until ``freight`` has
        returned."""
        self.ways[place] = BucketTimings(self._shards[place], self._node.now())
        self._packing.put(lambda: self._pack(place))

    def until(self, place: int) -> Iterator[int]:
        """Buckets whose updates are decoded, each once: others while that of ``place`` is not, then
        that.

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

    def freight(self) -> EncodedSummary:
        """Until all is packed."""
        while self._freight is None:
            self._hear()
        return self._freight

    def end(self) -> None:
        """There is no step any more. Never blocks: what is under way may be so for as long as
        somebody lost is waited for."""
        self._packing.end()
        self._sending.end()
        self._sent.put(False)

    def _hear(self) -> None:
        told = self._told.get()
        if isinstance(told, BaseException):
            raise told
        if isinstance(told, EncodedSummary):
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
        self._sending.put(lambda: self._send(place, body), send_priority(self._job, place))
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
