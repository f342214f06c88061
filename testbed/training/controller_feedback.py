"""Between a step and its controller: it is asked for densities before, and shown what became of
them; and reports on how well a Laplace distribution fits.

A report is made of p = g + e, the very vector that is compressed right after, before the
computation is held to its pace: it is in no phase of communication nor in that of compression, and
with a pace that leaves time for it no phase grows. With overlap it is made beside the computation,
and its bucket leaves that much later. It draws from randomness of its own: reports change no
payload.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Any

from testbed.compress.base import AccumulatedGradient, RecipeChoice, Selection
from testbed.compress.compressor import Compressor, EncodedBucket
from testbed.compress.gradient_stats import error_curving, report
from testbed.compress.kernels.torch_ops import Staging
from testbed.compress.layout import Shard
from testbed.control.base import LEVELS, Controller, LayerController, Observation
from testbed.exchange.base import TransferTiming
from testbed.node import Node
from testbed.records.events import FitRecord
from testbed.training.averaging import ControllerStats
from testbed.training.compute import Computed
from testbed.training.job import Job, SharedLink
from testbed.training.replica import learning_rate
from testbed.training.shared_replica import AnyReplica

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class EncodedSummary:
    """The record of a step's messages. ``density``: requested; ``crc``: CRC-32 of all of them."""

    density: float
    sent: SentMass
    crc: int
    selection: Selection | None


@dataclass(frozen=True, slots=True)
class SentMass:
    """Elements and magnitudes in a step's messages: ``held`` is Σ|p − sent|, ``mass`` is Σ|sent|,
    and ``layers`` is ``Observation.layers``."""

    count: int
    held: float
    mass: float
    layers: dict[str, list[float]]


class ControllerAdapter:
    """One worker's side of its controller."""

    def __init__(
        self,
        node: Node,
        job: Job,
        controller: Controller[Any],
        replica: AnyReplica,
        compressor: Compressor,
    ) -> None:
        self._node, self._job = node, job
        self._controller, self._replica = controller, replica
        self._watched = controller.watches
        self._every: int = controller.curve_interval
        self._steps = 0
        self._curves: dict[str, list[float]] = {}
        self._staging = Staging()
        self._last: Observation | None = None
        self._agreed = ControllerStats()
        compressor.weigh = "memory" in self._watched
        self._layered = job.algorithm.buckets == "layer"
        self._parts = [
            [(part.name, part.size) for part in shard.layout]
            if self._layered
            else [(shard.name, shard.layout.size)]
            for shard in replica.shards
        ]

    def densities(self) -> list[float | list[float]]:
        """For the coming step, of every shard."""
        controller = self._controller
        if isinstance(controller, LayerController):
            return [controller.densities([name for name, _ in parts]) for parts in self._parts]
        return [controller.density()] * len(self._parts)

    @property
    def sees_buckets(self) -> bool:
        """Return whether the controller wants to know how buckets travelled."""
        return "buckets" in self._watched

    def wants_curves(self) -> bool:
        """Return whether the controller wants error curves of the coming step."""
        self._curves = {}
        self._steps += 1
        return "curves" in self._watched and (self._steps - 1) % self._every == 0

    def add_curves(self, shard: Shard, given: Iterable[tuple[str, AccumulatedGradient]]) -> None:
        """Take the error curves of what ``shard`` will be compressed from, by first parameter."""
        vectors = dict(given)
        works = [error_curving(vector.flat, LEVELS) for vector in vectors.values()]
        for name, curve in zip(vectors, self._staging.together(works), strict=True):
            self._curves[name if self._layered else shard.name] = curve

    def sent(self, packed: Sequence[EncodedBucket]) -> SentMass:
        """Return the mass of ``packed``, a message for every shard of this step's gradient."""
        return SentMass(
            count=sum(message.count for message in packed),
            held=sum(message.held for message in packed),
            mass=sum(message.sent for message in packed),
            layers=self._norms() if "layers" in self._watched else {},
        )

    def observe(
        self,
        step: int,
        epoch: int,
        computed: Computed,
        summary: EncodedSummary,
        timing: TransferTiming,
        step_s: float,
        buckets: dict[str, dict[str, float]],
    ) -> Observation | None:
        """Show the controller a finished step, in model time. Returns what it was shown: this step
        or, where workers agree, the one before as all met it."""
        dilation, rate = self._job.dilation, self._node.asked_rate(self._job.node, "up")
        sent, weighed = summary.sent, "memory" in self._watched
        own = Observation(
            step=step,
            epoch=epoch,
            delay_s=(timing.last_s - timing.start_s) / dilation,
            accuracy=computed.accuracy,
            bytes_sent=timing.bytes_up,
            density=summary.density,
            link_rate_bits=None if rate is None else rate * dilation,
            step_s=step_s / dilation,
            bytes_received=timing.bytes_down,
            learning_rate=learning_rate(self._job.train.optimizer, epoch),
            held=sent.held if weighed else None,
            sent=sent.mass if weighed else None,
            share_up_bits=self._share(self._job.way_up),
            share_down_bits=self._share(self._job.way_down),
            layers=sent.layers,
            curves=self._curves,
            buckets=buckets,
        )
        shown: Observation | None = own
        if self._job.algorithm.agree:
            shown, self._last = self._agreed.merged_with(self._last), own
        if shown is not None:
            self._controller.observe(shown)
        return shown

    def stats(self) -> ControllerStats | None:
        """Return the statistics to go with the coming gradient; None where workers do not agree."""
        return ControllerStats.of(self._last) if self._job.algorithm.agree else None

    def agree(self, stats: ControllerStats) -> None:
        """Take in the statistics that came with the reply: about the step before."""
        self._agreed = stats

    def _share(self, path: Sequence[SharedLink]) -> float | None:
        """Bit/s of model time; None where the fabric has not told of every link yet."""
        shares = []
        for link, direction, workers in path:
            if (rate := self._node.asked_rate(link, direction)) is None:
                return None
            shares.append(rate * self._job.dilation / workers)
        return min(shares, default=None)

    def _norms(self) -> dict[str, list[float]]:
        gradients, norms = self._replica.flat.gradients, dict[str, list[float]]()
        for shard, parts in zip(self._replica.shards, self._parts, strict=True):
            offset = shard.begin
            for name, size in parts:
                norms[name] = [float(size), float(gradients[offset : offset + size].norm())]
                offset += size
        return norms


EVERY = "fit_every"
"""Option of a selector: a report at every so many steps, from the first on; 0: none."""


class ObservableCompressor(Compressor):
    """Shows what it will compress. Its selectors report nothing: that would take compression
    time."""

    def __init__(self, job: Job, replica: AnyReplica) -> None:
        recipe = job.algorithm.recipe
        options = {name: value for name, value in recipe.selector.options.items() if name != EVERY}
        selector = RecipeChoice(recipe.selector.name, options)
        super().__init__(
            replace(recipe, selector=selector), {s.name: s.layout for s in replica.shards}
        )

    def compensated(self, name: str, flat: Tensor) -> Iterator[tuple[str, AccumulatedGradient]]:
        """Yield the vectors that ``compress`` of ``flat`` would choose from, by first parameter.
        Each is void when its bucket is used again. Raises what ``compress`` does."""
        for bucket, given in self._accumulated(name, self._flat(name, flat)):
            yield bucket.layout.parts[0].name, given


class FitReporter:
    """A worker's reports, where its algorithm asks for them."""

    def __init__(self, job: Job, replica: AnyReplica, compressor: ObservableCompressor) -> None:
        self._job, self._replica, self._compressor = job, replica, compressor
        self._every = int(job.algorithm.selector_options.get(EVERY, 0))

    def due(self, step: int) -> bool:
        """Return whether ``step``, counted from 1, has a report."""
        return self._every > 0 and (step - 1) % self._every == 0

    def report(self, step: int, only: Shard | None = None) -> Iterator[FitRecord]:
        """Yield one for each bucket (of shard ``only``) from which the selector chooses, of the
        gradients as they are now. Raises GradientError for NaN or infinity."""
        job, row, seed = self._job, self._job.algorithm, f"{self._job.seed}/{self._job.node}"
        rng = Random(f"{seed}/fit/{step}" if only is None else f"{seed}/fit/{step}/{only.name}")
        layered, gradients = row.buckets == "layer", self._replica.flat.gradients
        for shard in self._replica.shards if only is None else [only]:
            for name, given in self._compressor.compensated(shard.name, gradients[shard.span]):
                size, bucket = given.flat.numel(), name if layered else shard.name
                if size and not (layered and size < row.dense_below):
                    fit: dict[str, Any] = report(given.flat, rng, given.sum_abs).to_json()
                    yield FitRecord(job.node, step, bucket, size, **fit)
