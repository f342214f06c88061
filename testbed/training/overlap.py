"""A worker's steps whose buckets leave while earlier layers still compute: layer by layer, and as
DistributedDataParallel does it.

A step of ``OverlappedStep`` lasts from when its first layer has its parameters until the next
step's has. What it sends comes back during the next one's forward pass too, so its record is
complete only at the end of that.

In ``DdpStep`` a bucket is submitted as soon as its gradients are complete. Where computation is
held to a pace, that is at its share of it: shares are those of this node's own computation,
measured before t0. So the pace's forward and backward passes are as long against each other, and
layer against layer, as they are here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from testbed.compress.kernels.torch_ops import Staging
from testbed.compress.layout import Layer, Layout, Shard
from testbed.errors import MachineError
from testbed.exchange.base import Ticket, Update, merge_timings
from testbed.exchange.gloo import BucketOptions
from testbed.node import Node
from testbed.records.events import PassRecord, StepRecord
from testbed.registry import read
from testbed.scenario.profile import LayerTimes, Profile
from testbed.training.bucket_pipeline import BucketPipeline
from testbed.training.compute import Computed
from testbed.training.controller_feedback import EncodedSummary
from testbed.training.job import Job, transfer_fields
from testbed.training.layer_hooks import HookedPasses, LayerHooks, Spans, WholePasses
from testbed.training.profiling import measure, profile_of
from testbed.training.replica import DeviceClock, DeviceMark, Replica
from testbed.training.step import (
    BucketTimings,
    ComputeResult,
    ExchangeOutcome,
    Finished,
    SequentialStep,
    StepContext,
)

if TYPE_CHECKING:
    from torch import nn


_LATE_S = 1e-3
"""Computation that ends so much later than it is held to has overrun: less is the scheduler's."""


class LayerClock:
    """Times of layers one after the other. ``paced``: by a profile. Deadlines are absolute, so that
    lateness does not add up. ``at_s``: until when the accelerator is busy; ``stall_s``: it waited
    for parameters for so long."""

    def __init__(self, node: Node, *, paced: bool) -> None:
        self._node, self._paced = node, paced
        self.at_s = self.stall_s = 0.0
        self.overran = False

    def begin(self, at_s: float) -> None:
        """A step begins."""
        self.at_s, self.stall_s, self.overran = at_s, 0.0, False

    def wait_for_parameters(self, time_s: float) -> None:
        """Note that all parameters of the coming layer have been up to date since ``time_s``."""
        if time_s > self.at_s:
            self.stall_s += time_s - self.at_s
            self.at_s = time_s

    def compute_for(self, seconds: float) -> None:
        """A layer computes."""
        if self._paced:
            self.at_s += seconds
            self._node.sleep_until(self.at_s)

    def finish_layer(self, computed_s: float) -> None:
        """Note that the layer's results are complete since ``computed_s``; a late wait is no
        delay."""
        if not self._paced or computed_s > self.at_s + _LATE_S:
            self.overran = self.overran or self._paced
            self.at_s = computed_s


_PASSES, _WARM_UP = 5, 2
"""Computations before t0 by which a profile is measured: few, since all nodes wait."""


@dataclass(slots=True)
class StepInProgress:
    """A step as far as it has come; ``computed`` and ``summary`` after its backward pass."""

    step: int
    epoch: int
    start_s: float
    stretch: float
    """Factor of the times of its layers."""
    computed: Computed = field(init=False)
    summary: EncodedSummary = field(init=False)
    computed_s: float = 0.0
    busy_s: float = 0.0
    end_s: float = 0.0
    awaited: int = 0
    """The bucket with which it ended."""
    stall_s: float = 0.0
    overran: bool = False
    forward: Spans = field(default_factory=dict)
    backward: Spans = field(default_factory=dict)
    buckets: dict[int, BucketTimings] = field(default_factory=dict)
    applied: set[int] = field(default_factory=set)
    apply_cpu_s: float = 0.0


class OverlappedStep(SequentialStep):
    """Makes a worker's steps, layer by layer."""

    def __init__(self, node: Node, job: Job, context: StepContext, finished: Finished) -> None:
        super().__init__(node, job, context, finished)
        replica, compute = context.replica, context.computation.gradients
        self._layers = replica.flat.layout.layers()
        self._buckets = _buckets(self._layers, replica.shards)
        self._passes: HookedPasses | WholePasses
        if isinstance(replica, Replica):
            self._passes = HookedPasses(node, compute, self._layers, replica.flat.module)
        else:  # workers that share a model compute all at once
            self._passes = WholePasses(node, compute, self._layers)
        profile = profile_of(job, [layer.name for layer in self._layers], self._measured)
        self._layer_times = None if profile is None else profile.layers
        self._clock = LayerClock(node, paced=profile is not None)
        self._pipeline = BucketPipeline(node, job, context)
        self._previous: StepInProgress | None = None
        """The step whose buckets are still coming back."""

    def step(self, step: int, epoch: int) -> int:
        """See ``SequentialStep``; ``finished`` is called for a step during the one after it."""
        start_s = self._node.now() if self._previous is None else self._previous.end_s
        stretch = 1.0 if self._times is None else self._times.factor(step)
        current = StepInProgress(step, epoch, start_s, stretch)
        self._clock.begin(start_s)
        self._forward(current)
        self._backward(current)
        self._end_with(current, self._buckets[0])
        self._previous = current
        if self._context.exchange.last_step == step:
            for bucket in current.buckets:
                self._end_with(current, bucket)
            self._take_in(current)
        return step

    def _end_with(self, current: StepInProgress, bucket: int) -> None:
        """The step ends when it has this bucket, as far as is known by now."""
        applied_s = self._apply_bucket(current, bucket)
        if applied_s > current.end_s:
            current.end_s, current.awaited = applied_s, bucket

    def end(self) -> None:
        """See ``SequentialStep``."""
        self._passes.end()
        self._pipeline.end()

    def _forward(self, current: StepInProgress) -> None:
        self._passes.begin(current.step)
        for number, layer in enumerate(self._layers):
            if self._previous is not None:
                applied_s = self._apply_bucket(self._previous, self._buckets[number])
                self._clock.wait_for_parameters(applied_s)
            from_s = self._node.now()
            self._passes.permit(number)
            if self._layer_times is not None:
                self._clock.compute_for(self._layer_times[number].forward_s * current.stretch)
                current.forward[layer.name] = [from_s, self._node.now()]
        if self._previous is not None:
            self._take_in(self._previous)

    def _backward(self, current: StepInProgress) -> None:
        """Nothing is left to come back when this begins."""
        self._pipeline.begin(current.step)
        current.buckets = self._pipeline.timings
        for number in reversed(range(len(self._layers))):
            from_s = self._node.now()
            if self._layer_times is not None:
                self._clock.compute_for(self._layer_times[number].backward_s * current.stretch)
            self._clock.finish_layer(self._passes.computed(number))
            current.backward[self._layers[number].name] = [from_s, self._node.now()]
            if number == 0 or self._buckets[number - 1] != self._buckets[number]:
                self._pipeline.submit_bucket(self._buckets[number])
        current.computed_s = self._node.now()
        current.computed = self._passes.result()
        current.stall_s, current.overran = self._clock.stall_s, self._clock.overran
        forward, backward = self._passes.spans()
        # whatever they are held to; what is between two layers of the forward pass was a wait
        spans = [*forward.values(), *backward.values()]
        current.busy_s = sum(to_s - from_s for from_s, to_s in spans)
        if self._layer_times is None:
            current.stall_s = self._passes.waited_s
            current.forward, current.backward = forward, backward
        current.summary = self._pipeline.summary()

    def _apply_bucket(self, current: StepInProgress, bucket: int) -> float:
        """Return when a bucket's parameters were as ``current`` leaves them: now, if not before.
        While it has not come, what has is applied: the forward pass need not wait for that
        later."""
        replica = self._context.replica
        for number in self._pipeline.wait_until(bucket):
            timings = current.buckets[number]
            timings.applying_s, cpu_s = self._node.now(), self._node.cpu()
            replica.apply_shard(replica.shards[number], current.epoch)
            current.applied.add(number)
            if len(current.applied) == len(current.buckets):
                replica.all_applied(current.epoch)
            current.apply_cpu_s += self._node.cpu() - cpu_s
            timings.applied_s = self._node.now()
        return current.buckets[bucket].applied_s

    def _take_in(self, current: StepInProgress) -> None:
        """All that is still to come of a step; it is finished then."""
        for bucket in current.buckets:
            self._apply_bucket(current, bucket)
        self._previous = None
        name, step = self._job.node, current.step
        buckets = [current.buckets[number] for number in sorted(current.buckets)]
        observed = self._record_buckets(step, buckets, current.start_s, current.computed_s)
        self._node.record(PassRecord(name, step, current.forward, current.backward).to_json())
        self._finished(self._step_record(current, observed))

    def _step_record(
        self, current: StepInProgress, buckets: dict[str, dict[str, float]]
    ) -> StepRecord:
        """Phases after the computation are those of the bucket that the next step waits for first.
        A bucket's turn to be sent is waited for in sending: busy links are no compression."""
        step, epoch, computed_s = current.step, current.epoch, current.computed_s
        timings = current.buckets.values()
        whole = merge_timings([bucket.ticket.travel for bucket in timings])
        step_s = current.end_s - current.start_s
        observed = self._context.observer.observe(
            step, epoch, current.computed, current.summary, whole, step_s, buckets
        )
        awaited = current.buckets[current.awaited]
        left = replace(
            awaited.ticket.travel,
            start_s=awaited.encoded.end_s,
            bytes_up=whole.bytes_up,
            bytes_down=whole.bytes_down,
        ).after(computed_s)
        decoded_s = max(awaited.decoded_s, computed_s)
        return self._record(
            step,
            epoch,
            current.computed,
            current.summary,
            observed,
            **transfer_fields(left, computed_s),
            start_s=current.start_s,
            compute_s=computed_s - current.start_s - current.stall_s,
            busy_s=current.busy_s,
            decompress_s=decoded_s - left.last_s,
            apply_s=current.end_s - decoded_s,
            end_s=current.end_s,
            overran=current.overran,
            compress_cpu_s=sum(bucket.encoded.cpu_s for bucket in timings),
            apply_cpu_s=current.apply_cpu_s,
            overlap_s=max(0.0, whole.last_s - whole.start_s - (left.last_s - left.start_s)),
            stall_s=current.stall_s,
            pace_s=self._pace.requested_s(step),
        )

    def _measured(self) -> Profile:
        """Measure it before t0; not where workers share a model: none has passes of its own."""
        replica, computation = self._context.replica, self._context.computation
        if not isinstance(replica, Replica):
            layers = tuple(LayerTimes(layer.name, 0.0, 0.0) for layer in self._layers)
            return Profile(layers, "measured")
        profile = measure(
            replica.flat,
            lambda: computation.gradients(step=1),
            self._node.now,
            passes=_PASSES,
            warm_up=_WARM_UP,
            of_passes=min,  # all nodes of a host measure at once, and hold each other up
        )
        replica.flat.gradients.zero_()
        return profile


def _buckets(layers: Sequence[Layer], shards: Sequence[Shard]) -> list[int]:
    """Return the number of the bucket that each layer is in, by layer."""
    return [next(s.number for s in shards if s.begin <= layer.begin < s.end) for layer in layers]


_FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True)
class BackwardBucket:
    """Parameters that follow one another: their numbers, and their elements of the flat vector."""

    parts: range
    elements: slice


def ddp_buckets(layout: Layout, first_bytes: int, most_bytes: int) -> list[BackwardBucket]:
    """The parameters from the last to the first: about the order in which gradients are complete.

    A bucket is full when it has ``most_bytes`` (the first one: ``first_bytes``) or more, so that a
    parameter is never parted: as PyTorch's ``_compute_bucket_assignment_by_size`` does it.
    """
    buckets: list[BackwardBucket] = []
    end = len(layout.parts)
    for number in reversed(range(end)):
        part, last = layout.parts[number], layout.parts[end - 1]
        elements = slice(part.offset, last.offset + last.size)
        limit = most_bytes if buckets else first_bytes
        if number == 0 or _FLOAT_BYTES * (elements.stop - elements.start) >= limit:
            buckets.append(BackwardBucket(range(number, end), elements))
            end = number
    return buckets


class BackwardBuckets:
    """Reports the buckets of ``module`` that are complete, in order, within the backward pass."""

    def __init__(
        self, module: nn.Module, layout: Layout, buckets: Sequence[BackwardBucket]
    ) -> None:
        self._sizes = [len(bucket.parts) for bucket in buckets]
        self._bucket_of = {
            part: number for number, bucket in enumerate(buckets) for part in bucket.parts
        }
        self._missing: list[int] = []
        self._next = 0
        self._device = next(module.parameters()).device
        LayerHooks(module, layout.layers(), self._gradient_ready)

    def begin(self, complete: Callable[[int], None]) -> None:
        """Call ``complete`` with every bucket's number, in order, until the next ``begin``."""
        self._missing, self._next, self._complete = list(self._sizes), 0, complete

    def shares(
        self, compute: Callable[[], object], now: Callable[[], float], times: int
    ) -> list[float]:
        """Measure at what share of a computation each bucket is complete: the median of ``times``.
        Never less than that of a bucket before it, and at most 1."""
        measured, clock = [], DeviceClock(now, self._device)
        for _ in range(times):
            ready: dict[int, DeviceMark] = {}
            self.begin(lambda number, into=ready: into.setdefault(number, clock.mark()))  # type: ignore[misc]
            clock.adjust()
            start_s = now()
            compute()
            end_s = now()
            spent_s = max(end_s - start_s, 1e-9)
            ready_s = {number: mark.wait() for number, mark in ready.items()}
            numbers = range(len(self._sizes))
            measured.append([(ready_s.get(n, end_s) - start_s) / spent_s for n in numbers])
        self._missing = []
        shares: list[float] = []
        for of_bucket in zip(*measured, strict=True):
            shares.append(min(1.0, max([median(of_bucket), *shares[-1:]])))
        return shares

    def _gradient_ready(self, _: int, parameter: int) -> None:
        if self._missing:
            self._missing[self._bucket_of[parameter]] -= 1
            while self._next < len(self._missing) and self._missing[self._next] == 0:
                self._next += 1
                self._complete(self._next - 1)


_REHEARSALS = 5


class DdpStep(SequentialStep):
    """Makes a worker's steps as DistributedDataParallel does. Raises MachineError for a replica
    that is not the worker's own."""

    def __init__(self, node: Node, job: Job, context: StepContext, finished: Finished) -> None:
        super().__init__(node, job, context, finished)
        replica, computation = context.replica, context.computation
        if not isinstance(replica, Replica):
            raise MachineError("workers that share a model cannot tell when a gradient is there")
        options = read("exchange_options", BucketOptions, job.algorithm.exchange_options)
        layout, self._gradients = replica.flat.layout, replica.flat.gradients
        self._buckets = ddp_buckets(layout, options.first_bucket_bytes, options.bucket_bytes)
        self._backward = BackwardBuckets(replica.flat.module, layout, self._buckets)
        # a first computation, which pays first-time costs, has been made
        self._shares = self._backward.shares(
            lambda: computation.gradients(step=1), node.now, _REHEARSALS
        )
        self._gradients.zero_()
        self._stagings = [Staging() for _ in self._buckets]
        self._tickets: list[Ticket] = []
        self._computed_s = 0.0
        self._mean = np.empty(replica.flat.size, np.float32)

    def _compute(self, step: int) -> ComputeResult:
        node, start_s = self._node, self._node.now()
        self._tickets = []

        def complete(number: int) -> None:
            """Submit a bucket from within the backward pass, unless its time has not come yet."""
            due = node.now() >= self._due_s(step, number, start_s)
            if due and number == len(self._tickets):
                self._submit(step, number)

        self._backward.begin(complete)
        computed = node.background(lambda: self._context.computation.gradients(step))
        busy_s = node.now() - start_s
        for number in range(len(self._tickets), len(self._buckets)):
            node.sleep_until(self._due_s(step, number, start_s))
            self._submit(step, number)
        overran = self._pace.hold(step, start_s)
        self._computed_s, pace_s = node.now(), self._pace.requested_s(step)
        return ComputeResult(computed, start_s, busy_s, self._computed_s, overran, pace_s)

    def _due_s(self, step: int, number: int, start_s: float) -> float:
        pace_s = self._pace.requested_s(step)
        return start_s if pace_s is None else start_s + pace_s * self._shares[number]

    def _submit(self, step: int, number: int) -> None:
        values = self._gradients[self._buckets[number].elements]
        body = self._stagings[number].to_bytes(values)
        self._tickets.append(self._context.exchange.submit(step, number, body))

    def _exchange(self, step: int) -> tuple[ExchangeOutcome, list[Update]]:
        """Finish the exchange: the part of it that is left when the computation has ended."""
        codec, cpu_s = self._context.codec, self._node.cpu()
        codec.encode()
        summary, compress_cpu_s = codec.summary(), self._node.cpu() - cpu_s
        for bucket, ticket in zip(self._buckets, self._tickets, strict=True):
            self._mean[bucket.elements] = np.frombuffer(ticket.wait().payload, np.float32)
        timing = merge_timings([ticket.travel for ticket in self._tickets])
        overlap_s = max(0.0, min(timing.last_s, self._computed_s) - timing.start_s)
        update = Update("gradient", step, self._mean.data.cast("B"))
        left = timing.after(self._computed_s)
        return ExchangeOutcome(left, summary, compress_cpu_s, overlap_s), [update]
