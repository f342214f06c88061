"""A worker's step in which gradients travel in buckets while others are still computed, as
DistributedDataParallel does it.

A bucket is submitted as soon as its gradients are there. Where computation is held to a pace, it is
there at its share of that: shares are those of this node's own computation, measured before t0. So
the pace's forward and backward passes are as long against each other, and layer against layer, as
they are here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from testbed.compress.layout import Layout
from testbed.errors import MachineError
from testbed.exchange.base import Ticket, Update, merge_timings
from testbed.exchange.gloo import BucketOptions
from testbed.node import Node
from testbed.registry import read
from testbed.training.job import Job
from testbed.training.replica import Replica
from testbed.training.step import (
    ComputeResult,
    ExchangeOutcome,
    Finished,
    SequentialStep,
    StepContext,
)

if TYPE_CHECKING:
    from torch import Tensor


_WIDTH = 4
"""Bytes of a float32."""


@dataclass(frozen=True, slots=True)
class BackwardBucket:
    """Parameters that follow one another: their numbers in the layout, and their elements of the
    flat vector."""

    parts: range
    place: slice


def buckets(layout: Layout, first_bytes: int, most_bytes: int) -> list[BackwardBucket]:
    """The parameters from the last to the first, which is about the order in which gradients are
    there.

    A bucket is full when it has ``most_bytes`` (the first one: ``first_bytes``) or more, so that a
    parameter is never parted: as PyTorch's ``_compute_bucket_assignment_by_size`` does it.
    """
    found: list[BackwardBucket] = []
    end = len(layout.parts)
    for number in reversed(range(end)):
        part = layout.parts[number]
        last = layout.parts[end - 1]
        place = slice(part.offset, last.offset + last.size)
        limit = most_bytes if found else first_bytes
        if number == 0 or _WIDTH * (place.stop - place.start) >= limit:
            found.append(BackwardBucket(range(number, end), place))
            end = number
    return found


class Backward:
    """Tells of buckets that are complete, one after the other, from within the backward pass."""

    def __init__(self, parameters: Sequence[Tensor], formed: Sequence[BackwardBucket]) -> None:
        """``parameters``: of the whole model, in the order of its layout."""
        self._formed = formed
        self._missing: list[int] = []
        self._next = 0
        self._tell: Callable[[int], None] = _nobody
        for number, bucket in enumerate(formed):
            for part in bucket.parts:
                tensor: Any = parameters[part]  # the method is not typed
                tensor.register_post_accumulate_grad_hook(self._hook(number))

    def begin(self, tell: Callable[[int], None]) -> None:
        """``tell`` is called with every bucket's number, once, in their order, until the next
        ``begin``."""
        self._missing = [len(bucket.parts) for bucket in self._formed]
        self._next, self._tell = 0, tell

    def _hook(self, number: int) -> Callable[[Tensor], None]:
        def ready(_: Tensor) -> None:
            if self._missing:
                self._missing[number] -= 1
                self._tell_all()

        return ready

    def _tell_all(self) -> None:
        while self._next < len(self._missing) and self._missing[self._next] == 0:
            self._next += 1
            self._tell(self._next - 1)


def shares(
    backward: Backward,
    many: int,
    compute: Callable[[], object],
    now: Callable[[], float],
    times: int,
) -> list[float]:
    """Measure at what share of a computation each of ``many`` buckets is complete, by bucket.

    The median of ``times`` computations.

    Never less than that of a bucket before it, and at most 1.
    """
    seen: list[list[float]] = [[] for _ in range(many)]
    for _ in range(times):
        ready_s: dict[int, float] = {}
        backward.begin(lambda number, into=ready_s: into.setdefault(number, now()))  # type: ignore[misc]
        start_s = now()
        compute()
        end_s = now()
        for number in range(many):
            at_s = ready_s.get(number, end_s)
            seen[number].append((at_s - start_s) / max(end_s - start_s, 1e-9))
    backward.begin(_nobody)
    found: list[float] = []
    for one in seen:
        found.append(min(1.0, max([median(one), *found[-1:]])))
    return found


def _nobody(number: int) -> None:
    """Nobody is told."""


_REHEARSALS = 5


class OverlappingStepper(SequentialStep):
    """Makes a worker's steps. Raises MachineError for a replica that is not the worker's own."""

    def __init__(self, node: Node, job: Job, tools: StepContext, finished: Finished) -> None:
        super().__init__(node, job, tools, finished)
        replica = tools.replica
        if not isinstance(replica, Replica):
            raise MachineError("workers that share a model cannot tell when a gradient is there")
        options = read("exchange_options", BucketOptions, job.algorithm.exchange_options)
        self._buckets = buckets(
            replica.flat.layout, options.first_bucket_bytes, options.bucket_bytes
        )
        self._backward = Backward(list(replica.flat.module.parameters()), self._buckets)
        self._shares = self._rehearsed()
        self._tickets: list[Ticket] = []
        self._computed_s = 0.0
        self._mean = np.empty(replica.flat.size, np.float32)

    def _rehearsed(self) -> list[float]:
        """When buckets are there. A first computation, which pays first-time costs, has been
        made."""
        computation, gradients = self._tools.computation, self._tools.replica.flat.gradients
        found = shares(
            self._backward,
            len(self._buckets),
            lambda: computation.gradients(step=1),
            self._node.now,
            _REHEARSALS,
        )
        gradients.zero_()
        return found

    def _compute(self, step: int) -> ComputeResult:
        node, start_s = self._node, self._node.now()
        self._tickets = []
        self._backward.begin(self._launcher(step, start_s))
        result = node.background(lambda: self._tools.computation.gradients(step))
        busy_s = node.now() - start_s
        for number in range(len(self._tickets), len(self._buckets)):
            node.sleep_until(self._due_s(step, number, start_s))
            self._launch(step, number)
        overran = self._pace.hold(step, start_s)
        self._computed_s = node.now()
        return ComputeResult(
            result, start_s, busy_s, self._computed_s, overran, self._pace.asked_s(step)
        )

    def _launcher(self, step: int, start_s: float) -> Callable[[int], None]:
        """Submits a bucket from within the backward pass, unless its time has not come yet."""

        def ready(number: int) -> None:
            due = self._node.now() >= self._due_s(step, number, start_s)
            if due and number == len(self._tickets):
                self._launch(step, number)

        return ready

    def _due_s(self, step: int, number: int, start_s: float) -> float:
        pace_s = self._pace.asked_s(step)
        return start_s if pace_s is None else start_s + pace_s * self._shares[number]

    def _launch(self, step: int, number: int) -> None:
        gradient = self._tools.replica.flat.gradients[self._buckets[number].place]
        body = gradient.cpu().numpy().data.cast("B")
        self._tickets.append(self._tools.exchange.submit(step, number, body))

    def _exchange(self, step: int) -> tuple[ExchangeOutcome, list[Update]]:
        """Finish the exchange: the part of it that is left when the computation has ended."""
        carrier, cpu_s = self._tools.carrier, self._node.cpu()
        carrier.pack()
        freight, compress_cpu_s = carrier.freight(), self._node.cpu() - cpu_s
        for bucket, ticket in zip(self._buckets, self._tickets, strict=True):
            self._mean[bucket.place] = np.frombuffer(ticket.wait().payload, np.float32)
        travel = merge_timings([ticket.travel for ticket in self._tickets])
        left = travel.after(self._computed_s)
        overlap_s = min(travel.last_s, self._computed_s) - travel.start_s
        update = Update("gradient", step, self._mean.data.cast("B"))
        return ExchangeOutcome(left, freight, compress_cpu_s, max(0.0, overlap_s)), [update]
