"""Rounds of a parameter server whose gradients travel in buckets, as overlapped steps send them: each is sent and answered
by an activity of its own, beside others that come and go."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Protocol

import numpy as np

from testbed.exchange.base import Ticket, Update
from testbed.exchange.parameter_server import PsServerExchange, PsWorkerExchange
from testbed.node import Message, Node, Queue
from testbed.training.bucket_pipeline import PriorityExecutor

BUCKETS = 3
SUFFIX = "-buckets"
"""Of an exchange's name in a plan."""

Say = Callable[..., None]


def mean_of(came: Collection[Message]) -> bytes:
    return np.mean([np.frombuffer(one.body, np.float32) for one in came], 0).tobytes()


class Halts(Protocol):
    """Where the plan has the process stop; see ``exchange_peer``."""

    def near(self, step: int) -> None: ...

    def at(self, step: int, phase: str) -> None: ...

    def during(self, step: int, phase: str) -> None: ...

    def after(self, step: int, phase: str) -> None: ...


class BucketedRounds:
    """Steps whose results are known beforehand: worker r sends values r + 1 + step + bucket / 4."""

    def __init__(self, plan: dict[str, Any], halts: Halts, node: Node, say: Say) -> None:
        self._plan, self._halts, self._node, self._say = plan, halts, node, say
        self._told: Queue[tuple[int, Any] | BaseException] = node.queue()
        """What went on beside: buckets that were sent or have come, and errors."""
        self._lane = PriorityExecutor(node, self._told.put)

    def work(self, side: PsWorkerExchange, rank: int) -> None:
        """A worker's part."""
        step, self._under_way = 0, dict[int, Ticket]()
        self._sent: Queue[int] = self._node.queue()
        self._node.spawn(lambda: self._take_in(side))
        while step != side.last_step:
            step += 1
            self._step = step
            self._halts.near(step)
            self._halts.at(step, "before")
            self._halts.during(step, "send")
            for bucket in range(BUCKETS):
                body = np.full(self._values(step), rank + 1 + step + bucket / 4, np.float32)
                self._lane.put(partial(self._submit, side, bucket, body.tobytes()))
                if bucket == 0:
                    self._halts.at(step, "between")
            self._halts.during(step, "receive")
            came = dict(self._hear() for _ in range(BUCKETS))
            self._halts.after(step, "receive")
            crc = 0
            for bucket in range(BUCKETS):
                self._check(step, bucket, came[bucket])
                crc = zlib.crc32(came[bucket], crc)
            self._halts.at(step, "aggregate")
            self._say("step", step=step, crc=crc)
        side.close()

    def serve(self, side: PsServerExchange) -> None:
        """A server's part."""
        last = self._plan["steps"]
        for step in range(1, last + 1):
            self._halts.near(step)
            self._halts.at(step, "before")
            self._halts.during(step, "receive")
            left = dict.fromkeys(range(BUCKETS))
            means: dict[int, bytes] = {}
            while left:
                bucket, came = side.gather_any(step, left)
                means[bucket] = mean_of(came)
                first = len(left) == BUCKETS
                if first:
                    self._halts.after(step, "receive")
                    self._halts.at(step, "aggregate")
                    self._halts.during(step, "send")
                self._answer(side, step, bucket, means[bucket], last=first and step == last)
                if first:
                    self._halts.at(step, "between")
                del left[bucket]
            for _ in range(BUCKETS):
                self._hear()
            crc = 0
            for bucket in range(BUCKETS):
                crc = zlib.crc32(means[bucket], crc)
            self._say("step", step=step, crc=crc)
        side.await_goodbyes(last)

    def _values(self, step: int) -> int:
        return int(self._plan["values"] if step == self._plan["long"] else 1 << 14) // BUCKETS

    def _submit(self, side: PsWorkerExchange, bucket: int, body: bytes) -> None:
        self._under_way[bucket] = side.submit(self._step, bucket, body)
        if bucket == BUCKETS - 1:
            self._halts.after(self._step, "send")
        self._sent.put(bucket)

    def _take_in(self, side: PsWorkerExchange) -> None:
        try:
            while True:
                self._sent.get()
                bucket = side.arrived(self._step, self._under_way)
                update: Update = self._under_way.pop(bucket).wait()
                self._told.put((bucket, update.payload))
        except BaseException as error:
            self._told.put(error)

    def _answer(
        self, side: PsServerExchange, step: int, bucket: int, mean: bytes, *, last: bool
    ) -> None:
        def send() -> None:
            side.broadcast(step, bucket, mean, last=last)
            self._halts.after(step, "send")
            self._told.put((bucket, None))

        self._lane.put(send)

    def _hear(self) -> tuple[int, Any]:
        told = self._told.get()
        if isinstance(told, BaseException):
            raise told
        return told

    def _check(self, step: int, bucket: int, payload: Any) -> None:
        mean = np.frombuffer(payload, np.float32)
        expected = np.mean([rank + 1 + step for rank in range(self._plan["workers"])]) + bucket / 4
        if mean.shape != (self._values(step),) or not np.allclose(mean, expected):
            raise AssertionError(f"step {step}: {mean[:4]} of {mean.shape}, not {expected}")
