"""Pipeline beside a worker's computation: buckets are packed, sent and taken in.

Packing goes in the order in which buckets are ready, on an accelerator in a queue of its own; of
those that are packed the most urgent is sent first; what has come is decoded at once. Each is an
activity of its own, and the computation waits for none of them but for its parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import count
from typing import cast

from testbed.exchange.base import Ticket
from testbed.exchange.parameter_server import PsWorkerExchange
from testbed.node import Buffer, Node, Queue
from testbed.training.controller_feedback import EncodedSummary
from testbed.training.gradient_codec import CompressedCodec, send_priority
from testbed.training.job import Job
from testbed.training.replica import on_stream, queue_after, side_stream
from testbed.training.step import BucketTimings, StepContext


class PriorityExecutor:
    """``failed`` is called with what a piece of work raises; nothing is done after it."""

    def __init__(self, node: Node, failed: Callable[[BaseException], None]) -> None:
        self._waiting: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()
        self._tokens: Queue[bool] = node.queue()
        """One for each piece of work; False: to have a look whether it is over."""
        self._over = False
        self._failed = failed
        node.spawn(self._run)

    def put(self, work: Callable[[], None], priority: int = 0) -> None:
        """Have ``work`` done: before all with a greater ``priority``, after its equals."""
        heappush(self._waiting, (priority, next(self._order), work))
        self._tokens.put(True)

    def end(self) -> None:
        """Nothing more is begun. Never blocks: what is under way may wait for somebody lost."""
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
    """Packs, sends and takes in one worker's buckets. ``timings``: by bucket, of the last step."""

    def __init__(self, node: Node, job: Job, context: StepContext) -> None:
        self._node, self._job, self._fits = node, job, context.fits
        self._codec = cast(CompressedCodec, context.codec)
        self._exchange = cast(PsWorkerExchange, context.exchange)
        self._shards = context.replica.shards
        self._codec.stream = side_stream(context.replica.parameters.device)
        self._events: Queue[int | EncodedSummary | BaseException] = node.queue()
        self._sent: Queue[bool] = node.queue()
        """One for each bucket; False: there will be no more."""
        self._packing = PriorityExecutor(node, self._events.put)
        self._sending = PriorityExecutor(node, self._events.put)
        self._under_way: dict[int, Ticket] = {}
        self._decoded: set[int] = set()
        self._fresh: list[int] = []
        """Those of them that ``wait_until`` has not yielded yet, as they came."""
        self._summary: EncodedSummary | None = None
        self.timings: dict[int, BucketTimings] = {}
        self._step = 0
        node.spawn(self._take_in)

    def begin(self, step: int) -> None:
        """Buckets of ``step`` come now; all of the step before have been taken in."""
        self._step, self.timings, self._decoded, self._summary = step, {}, set(), None
        self._fresh = []
        self._codec.begin_step()

    def submit_bucket(self, number: int) -> None:
        """A bucket's gradients are complete, and stay so until ``summary`` has returned."""
        self.timings[number] = BucketTimings(self._shards[number], self._node.now())
        self._packing.put(lambda: self._pack(number))

    def wait_until(self, number: int) -> Iterator[int]:
        """Yield buckets whose updates are decoded, each once, until that of ``number`` is among
        them. Raises what packing, sending or taking in have raised."""
        while number not in self._decoded:
            if self._fresh:
                yield self._fresh.pop(0)
            else:
                self._next_event()
        if number in self._fresh:
            self._fresh.remove(number)
            yield number

    def summary(self) -> EncodedSummary:
        """Wait until all is packed."""
        while self._summary is None:
            self._next_event()
        return self._summary

    def end(self) -> None:
        """There is no step any more. Never blocks: what is under way may wait for somebody lost."""
        self._packing.end()
        self._sending.end()
        self._sent.put(False)

    def _next_event(self) -> None:
        event = self._events.get()
        if isinstance(event, BaseException):
            raise event
        if isinstance(event, EncodedSummary):
            self._summary = event
        else:
            self._decoded.add(event)
            self._fresh.append(event)

    def _pack(self, number: int) -> None:
        timings, codec = self.timings[number], self._codec
        if self._fits.due(self._step):
            # here: in the background it would come after all of the computation
            with on_stream(codec.stream):
                report = list(self._fits.report(self._step, timings.shard))
            for fitted in report:
                self._node.record(fitted.to_json())
        body = codec.encode_bucket(number)
        timings.encoded = codec.encoded[number]
        self._sending.put(lambda: self._send(number, body), send_priority(self._job, number))
        if len(codec.encoded) == len(self._shards):
            queue_after(codec.stream)
            self._events.put(codec.summary())

    def _send(self, number: int, body: Buffer) -> None:
        ticket = self._exchange.submit(self._step, number, body)
        self.timings[number].ticket = self._under_way[number] = ticket
        self._sent.put(True)

    def _take_in(self) -> None:
        """One bucket comes back for each that was sent, in whatever order."""
        try:
            while self._sent.get():
                number = self._exchange.arrived(self._step, self._under_way)
                update = self._under_way.pop(number).wait()
                self._codec.decode_bucket(number, update)
                self.timings[number].decoded_s = self._node.now()
                self._events.put(number)
        except BaseException as error:
            self._events.put(error)
