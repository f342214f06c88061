"""A worker's step, layer by layer: buckets leave while earlier layers still compute, and the next
step begins as they come back.

A step lasts from when its first layer has its parameters until the next step's has. What a step
sends comes back during the next one's forward pass too, so its record is complete only at the end
of that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace

from testbed.compress.layout import Layer, Shard
from testbed.exchange.base import TransferTiming, merge_timings
from testbed.node import Node
from testbed.records.events import PassRecord, StepRecord
from testbed.scenario.profile import LayerTimes, Profile
from testbed.training.bucket_pipeline import BucketPipeline
from testbed.training.compute import Computed
from testbed.training.gradient_codec import EncodedSummary
from testbed.training.job import Job
from testbed.training.job import bucket_observations as phases
from testbed.training.layer_hooks import HookedPasses, Passes, Spans, WholePasses
from testbed.training.profiling import measure, profile_of
from testbed.training.replica import Replica
from testbed.training.step import (
    Buckets,
    BucketTimings,
    Finished,
    SequentialStep,
    StepContext,
    told,
)

_LATE_S = 1e-3
"""Computation that ends so much later than it is held to has overrun: less is the scheduler's
doing."""


class LayerClock:
    """``held``: whether there is a profile. Deadlines are absolute, so that lateness does not add
    up.

    ``at_s``: until when the accelerator is busy, if there is one; ``stall_s``: it waited for
    parameters for so long.
    """

    def __init__(self, node: Node, *, held: bool) -> None:
        self._node, self._held = node, held
        self.at_s = self.stall_s = 0.0
        self.overran = False

    def begin(self, at_s: float) -> None:
        """A step begins."""
        self.at_s, self.stall_s, self.overran = at_s, 0.0, False

    def there(self, time_s: float) -> None:
        """Note that everything the coming layer needs was there at ``time_s``."""
        if time_s > self.at_s:
            self.stall_s += time_s - self.at_s
            self.at_s = time_s

    def hold(self, seconds: float) -> None:
        """A layer computes."""
        if self._held:
            self.at_s += seconds
            self._node.sleep_until(self.at_s)

    def done(self, there_s: float) -> None:
        """Note that the layer's results are really there since ``there_s``.

        A wait that ends later than asked makes nothing late.
        """
        if not self._held or there_s > self.at_s + _LATE_S:
            self.overran = self.overran or self._held
            self.at_s = there_s


_PASSES, _WARM_UP = 5, 2
"""Computations before t0 by which a profile is measured: of large models they take long, and all
nodes wait."""


@dataclass(slots=True)
class StepInProgress:
    """A step as far as it has come."""

    step: int
    epoch: int
    start_s: float
    stretch: float = 1.0
    """Factor of the times of its layers."""
    computed_s: float = 0.0
    busy_s: float = 0.0
    end_s: float = 0.0
    awaited: int = 0
    """The bucket with which it ended."""
    stall_s: float = 0.0
    overran: bool = False
    forward: Spans = field(default_factory=dict)
    backward: Spans = field(default_factory=dict)
    result: list[Computed] = field(default_factory=list)
    freight: list[EncodedSummary] = field(default_factory=list)
    ways: dict[int, BucketTimings] = field(default_factory=dict)
    applied: set[int] = field(default_factory=set)
    apply_cpu_s: float = 0.0


class OverlappedStep(SequentialStep):
    """Makes a worker's steps."""

    def __init__(self, node: Node, job: Job, tools: StepContext, finished: Finished) -> None:
        super().__init__(node, job, tools, finished)
        self._layers = tools.replica.flat.layout.layers()
        self._buckets = _buckets(self._layers, tools.replica.shards)
        self._passes = _passes(node, tools, self._layers)
        self._layer_times = self._held()
        self._clock = LayerClock(node, held=self._layer_times is not None)
        self._beside = BucketPipeline(node, job, tools)
        self._before: StepInProgress | None = None
        """The step whose buckets are still coming back."""

    def step(self, step: int, epoch: int) -> int:
        """See ``SequentialStep``; ``finished`` is told of a step during the one after it."""
        start_s = self._node.now() if self._before is None else self._before.end_s
        made = StepInProgress(step, epoch, start_s)
        made.stretch = 1.0 if self._times is None else self._times.factor(step)
        self._clock.begin(start_s)
        self._forward(made)
        self._backward(made)
        self._end(made, self._buckets[0])
        self._before = made
        if self._tools.exchange.last_step == step:
            for bucket in made.ways:
                self._end(made, bucket)
            self._take_in(made)
        return step

    def _end(self, made: StepInProgress, bucket: int) -> None:
        """The step ends when it has this bucket, as far as is known by now."""
        applied_s = self._apply_one(made, bucket)
        if applied_s > made.end_s:
            made.end_s, made.awaited = applied_s, bucket

    def end(self) -> None:
        """See ``SequentialStep``."""
        self._passes.end()
        self._beside.end()

    def _forward(self, made: StepInProgress) -> None:
        self._passes.begin(made.step)
        for number, layer in enumerate(self._layers):
            if self._before is not None:
                self._clock.there(self._apply_one(self._before, self._buckets[number]))
            from_s = self._node.now()
            self._passes.permit(number)
            if self._layer_times is not None:
                self._clock.hold(self._layer_times[number].forward_s * made.stretch)
                made.forward[layer.name] = [from_s, self._node.now()]
        if self._before is not None:
            self._take_in(self._before)

    def _backward(self, made: StepInProgress) -> None:
        """Nothing is left to come back when this begins."""
        self._beside.begin(made.step)
        made.ways = self._beside.ways
        for number in reversed(range(len(self._layers))):
            from_s = self._node.now()
            if self._layer_times is not None:
                self._clock.hold(self._layer_times[number].backward_s * made.stretch)
            self._clock.done(self._passes.computed(number))
            made.backward[self._layers[number].name] = [from_s, self._node.now()]
            if number == 0 or self._buckets[number - 1] != self._buckets[number]:
                self._beside.ready(self._buckets[number])
        made.computed_s = self._node.now()
        made.result.append(self._passes.result())
        made.stall_s, made.overran = self._clock.stall_s, self._clock.overran
        if self._layer_times is None:
            made.stall_s = self._passes.waited_s
        forward, backward = self._passes.spans()
        # whatever they are held to; what is between two layers of the forward pass was a wait
        made.busy_s = sum(to_s - from_s for from_s, to_s in [*forward.values(), *backward.values()])
        if self._layer_times is None:
            made.forward, made.backward = forward, backward
        made.freight.append(self._beside.freight())

    def _apply_one(self, made: StepInProgress, bucket: int) -> float:
        """When the parameters of a bucket were as ``made`` leaves them: now, if they have not been
        before.

        While it has not come, what has is applied: the forward pass need not wait for that later.
        """
        replica = self._tools.replica
        for there in self._beside.until(bucket):
            made.ways[there].applying_s, cpu_s = self._node.now(), self._node.cpu()
            replica.apply_shard(replica.shards[there], made.epoch)
            made.applied.add(there)
            if len(made.applied) == len(made.ways):
                replica.all_applied(made.epoch)
            made.apply_cpu_s += self._node.cpu() - cpu_s
            made.ways[there].applied_s = self._node.now()
        return made.ways[bucket].applied_s

    def _take_in(self, made: StepInProgress) -> None:
        """All that is still to come of a step; it is finished then."""
        for bucket in made.ways:
            self._apply_one(made, bucket)
        self._before = None
        node, name = self._node, self._job.node
        ways = [made.ways[bucket] for bucket in sorted(made.ways)]
        records = [way.record(name, made.step) for way in ways]
        for record in records:
            node.record(record.to_json())
        node.record(PassRecord(name, made.step, made.forward, made.backward).to_json())
        buckets = Buckets()
        if self._tools.observer.sees_buckets:
            both = zip(ways, records, strict=True)
            buckets = told(self._job, both, made.start_s, made.computed_s)
        self._finished(self._record_of(made, buckets))

    def _record_of(self, made: StepInProgress, buckets: Buckets) -> StepRecord:
        """Phases after the computation are those of the bucket that the next step waits for first;
        of all in the end.

        Its turn to be sent is waited for in sending: what the links are busy with is no
        compression.
        """
        job, tools, (result,), (freight,) = self._job, self._tools, made.result, made.freight
        travel = merge_timings([way.travel for way in made.ways.values()])
        seen = tools.observer.observe(
            made.step,
            made.epoch,
            result,
            freight.density,
            travel,
            freight.sent,
            made.end_s - made.start_s,
            buckets,
        )
        awaited = made.ways[made.awaited]
        left = replace(awaited.travel, start_s=awaited.packed_s).after(made.computed_s)
        decoded_s = max(awaited.decoded_s, made.computed_s)
        return StepRecord(
            node=job.node,
            step=made.step,
            epoch=made.epoch,
            start_s=made.start_s,
            compute_s=made.computed_s - made.start_s - made.stall_s,
            busy_s=made.busy_s,
            **phases(_with_bytes(left, travel), made.computed_s),
            decompress_s=decoded_s - left.last_s,
            apply_s=made.end_s - decoded_s,
            end_s=made.end_s,
            density=freight.density,
            sent_count=freight.sent.count,
            size=tools.replica.flat.size,
            loss=result.loss,
            accuracy=result.accuracy,
            overran=made.overran,
            compress_cpu_s=sum(way.compress_cpu_s for way in made.ways.values()),
            apply_cpu_s=made.apply_cpu_s,
            overlap_s=max(0.0, travel.last_s - travel.start_s - (left.last_s - left.start_s)),
            stall_s=made.stall_s,
            payload_crc=freight.crc,
            selection=None if freight.how is None else asdict(freight.how),
            controller=None if seen is None else seen.to_json(),
            pace_s=self._pace.asked_s(made.step),
        )

    def _held(self) -> Sequence[LayerTimes] | None:
        names = [layer.name for layer in self._layers]
        found = profile_of(self._job, names, self._measured)
        return None if found is None else found.layers

    def _measured(self) -> Profile:
        """Here and now, before t0. Of workers that share a model none has passes of its own:
        nothing is measured."""
        replica, computation = self._tools.replica, self._tools.computation
        if not isinstance(replica, Replica):
            layers = tuple(LayerTimes(layer.name, 0.0, 0.0) for layer in self._layers)
            return Profile(layers, "measured")
        found = measure(
            replica.flat,
            lambda: computation.gradients(step=1),
            self._node.now,
            passes=_PASSES,
            warm_up=_WARM_UP,
            of_passes=min,  # all nodes of a host measure at once, and hold each other up
        )
        replica.flat.gradients.zero_()
        return found


def _passes(node: Node, tools: StepContext, layers: Sequence[Layer]) -> Passes:
    """Workers that share a model compute all at once."""
    compute = tools.computation.gradients
    if isinstance(tools.replica, Replica):
        return HookedPasses(node, compute, layers, tools.replica.flat.module)
    return WholePasses(node, compute, layers)


def _buckets(layers: Sequence[Layer], shards: Sequence[Shard]) -> list[int]:
    """Return the number of the bucket that each layer is in, by layer."""
    return [next(s.number for s in shards if s.begin <= layer.begin < s.end) for layer in layers]


def _with_bytes(left: TransferTiming, whole: TransferTiming) -> TransferTiming:
    return replace(left, bytes_up=whole.bytes_up, bytes_down=whole.bytes_down)
