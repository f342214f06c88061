"""A worker's step in which gradients travel while others are still computed.

A bucket is submitted as soon as its gradients are there. Where computation is held to a pace, it is there at its share of
that: shares are those of this node's own computation, measured before t0. So the pace's forward and backward passes
are as long against each other, and layer against layer, as they are here.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from testbed.errors import MachineError
from testbed.exchange.base import Ticket, Update, together
from testbed.exchange.gloo import BucketOptions
from testbed.node import Node
from testbed.options import read
from testbed.train.backward import Backward, buckets, shares
from testbed.train.job import Job
from testbed.train.replica import Replica
from testbed.train.step import Compute, Finished, Stepper, Tools, Trip

_REHEARSALS = 5


class OverlappingStepper(Stepper):
    """Makes a worker's steps. Raises MachineError for a replica that is not the worker's own."""

    def __init__(self, node: Node, job: Job, tools: Tools, finished: Finished) -> None:
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
        """When buckets are there. A first computation, which pays first-time costs, has been made."""
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

    def _compute(self, step: int) -> Compute:
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
        return Compute(result, start_s, busy_s, self._computed_s, overran, self._pace.asked_s(step))

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

    def _exchange(self, step: int) -> tuple[Trip, list[Update]]:
        """What is left of it when the computation has ended."""
        carrier, cpu_s = self._tools.carrier, self._node.cpu()
        carrier.pack()
        freight, compress_cpu_s = carrier.freight(), self._node.cpu() - cpu_s
        for bucket, ticket in zip(self._buckets, self._tickets, strict=True):
            self._mean[bucket.place] = np.frombuffer(ticket.wait().payload, np.float32)
        travel = together([ticket.travel for ticket in self._tickets])
        left = travel.after(self._computed_s)
        overlap_s = min(travel.last_s, self._computed_s) - travel.start_s
        update = Update("gradient", step, self._mean.data.cast("B"))
        return Trip(left, freight, compress_cpu_s, max(0.0, overlap_s)), [update]
