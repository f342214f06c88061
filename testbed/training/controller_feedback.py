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
from typing import TYPE_CHECKING

from testbed.compress import gradient_stats
from testbed.compress.base import AccumulatedGradient, RecipeChoice
from testbed.compress.compressor import Compressor, Packed
from testbed.compress.gradient_stats import error_curve
from testbed.compress.layout import Shard
from testbed.control.base import LEVELS, Controller, LayerController, Observation, watched
from testbed.exchange.base import TransferTiming
from testbed.node import Node
from testbed.records.events import FitRecord
from testbed.training.averaging import ControllerStats
from testbed.training.compute import Computed, ReplicaView
from testbed.training.job import Job, SharedLink
from testbed.training.replica import learning_rate

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class SentMass:
    """The elements and their magnitudes in a step's messages: of all shards together."""

    count: int
    before: float
    """Σ|p|."""
    mass: float
    """Σ|sent|."""
    layers: dict[str, list[float]]
    """``Observation.layers``."""


class ControllerAdapter:
    """One worker's side of its controller."""

    def __init__(
        self,
        node: Node,
        job: Job,
        controller: Controller,
        replica: ReplicaView,
        compressor: Compressor,
    ) -> None:
        self._node, self._job = node, job
        self._controller, self._replica = controller, replica
        self._watched = watched(controller)
        self._every: int = getattr(controller, "curves_every", 1)
        self._looked = 0
        self._curves: dict[str, list[float]] = {}
        self._last: Observation | None = None
        self._agreed = ControllerStats()
        compressor.weigh = "memory" in self._watched
        layered = job.algorithm.buckets == "layer"
        self._parts = [
            [(part.name, part.size) for part in shard.layout]
            if layered
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

    def looks(self) -> bool:
        """Return whether the controller wants error curves of the coming step."""
        self._curves = {}
        self._looked += 1
        return "curves" in self._watched and (self._looked - 1) % self._every == 0

    def look(self, shard: Shard, given: Iterable[tuple[str, AccumulatedGradient]]) -> None:
        """Take the error curves of what ``shard`` will be compressed from, by the name of its first
        parameter."""
        layered = self._job.algorithm.buckets == "layer"
        for name, one in given:
            self._curves[name if layered else shard.name] = error_curve(one.flat, LEVELS)

    def sent(self, packed: Sequence[Packed]) -> SentMass:
        """Return the mass that ``packed``, a message for every shard, carries.

        The gradients are still those of the step.
        """
        layers = self._norms() if "layers" in self._watched else {}
        return SentMass(
            count=sum(one.count for one in packed),
            before=sum(one.before for one in packed),
            mass=sum(one.sent for one in packed),
            layers=layers,
        )

    def observe(
        self,
        step: int,
        epoch: int,
        result: Computed,
        density: float,
        travel: TransferTiming,
        sent: SentMass,
        step_s: float,
        buckets: dict[str, dict[str, float]] | None = None,
    ) -> Observation | None:
        """Show the controller a finished step, in model time: dilation makes delays longer and
        rates lower.

        Returns what it was shown.
        """
        dilation, rate = self._job.dilation, self._node.asked_rate(self._job.node, "up")
        weighed = "memory" in self._watched
        seen = Observation(
            step=step,
            epoch=epoch,
            delay_s=(travel.last_s - travel.start_s) / dilation,
            accuracy=result.accuracy,
            bytes_sent=travel.bytes_up,
            density=density,
            link_rate_bits=None if rate is None else rate * dilation,
            step_s=step_s / dilation,
            bytes_received=travel.bytes_down,
            learning_rate=learning_rate(self._job.train.optimizer, epoch),
            held=max(0.0, sent.before - sent.mass) if weighed else None,
            sent=sent.mass if weighed else None,
            share_up_bits=self._share(self._job.way_up),
            share_down_bits=self._share(self._job.way_down),
            layers=sent.layers,
            curves=self._curves,
            buckets=buckets or {},
        )
        return self._shown(seen)

    def note(self) -> ControllerStats | None:
        """Return the statistics to go with the coming gradient; None where workers do not agree."""
        return ControllerStats.of(self._last) if self._job.algorithm.agree else None

    def agree(self, note: ControllerStats) -> None:
        """Take in the statistics that came with the reply: about the step before."""
        self._agreed = note

    def _shown(self, seen: Observation) -> Observation | None:
        """Show the controller a step, and return it.

        It is this step or, where workers agree, the one before as all met it.
        """
        shown: Observation | None = seen
        if self._job.algorithm.agree:
            shown, self._last = self._agreed.upon(self._last), seen
        if shown is not None:
            self._controller.observe(shown)
        return shown

    def _share(self, way: Sequence[SharedLink]) -> float | None:
        """Bit/s of model time; None where the fabric has not told of every link yet."""
        shares = []
        for link, direction, workers in way:
            if (rate := self._node.asked_rate(link, direction)) is None:
                return None
            shares.append(rate * self._job.dilation / workers)
        return min(shares, default=None)

    def _norms(self) -> dict[str, list[float]]:
        gradients, offset = self._replica.flat.gradients, 0
        found: dict[str, list[float]] = {}
        for shard, parts in zip(self._replica.shards, self._parts, strict=True):
            offset = shard.place.start or 0
            for name, size in parts:
                norm = float(gradients[offset : offset + size].norm())
                found[name] = [float(size), norm]
                offset += size
        return found


EVERY = "fit_every"
"""Option of a selector: a report at every so many steps, from the first on; 0, the default:
none."""


class ObservableCompressor(Compressor):
    """Shows what it will compress.

    Its selectors make no reports of their own, which would be in the time of the compression.
    """

    def __init__(self, job: Job, replica: ReplicaView) -> None:
        recipe = job.algorithm.recipe
        options = {name: value for name, value in recipe.selector.options.items() if name != EVERY}
        selector = RecipeChoice(recipe.selector.name, options)
        super().__init__(
            replace(recipe, selector=selector), {s.name: s.layout for s in replica.shards}
        )

    def compensated(self, name: str, flat: Tensor) -> Iterator[tuple[str, AccumulatedGradient]]:
        """Yield the vectors that ``compress`` of ``flat`` would choose from, by the name of a
        bucket's first parameter.

        Nothing is kept yet; each is void when its bucket is used again. Raises what ``compress``
        does.
        """
        flat, end = self._flat(name, flat), 0
        for bucket in self._buckets_of(name):
            begin, end = end, end + bucket.layout.size
            yield bucket.layout.parts[0].name, bucket.compensate(flat[begin:end])


class FitReporter:
    """A worker's reports, where its algorithm asks for them."""

    def __init__(self, job: Job, replica: ReplicaView, compressor: ObservableCompressor) -> None:
        self._job, self._replica, self._compressor = job, replica, compressor
        self._every = int(job.algorithm.selector_options.get(EVERY, 0))

    def due(self, step: int) -> bool:
        """Return whether ``step``, counted from 1, has a report."""
        return self._every > 0 and (step - 1) % self._every == 0

    def report(self, step: int) -> Iterator[FitRecord]:
        """One for each bucket from which the selector chooses, of the gradients as they are now.

        Raises GradientError for NaN or infinity.
        """
        rng = Random(f"{self._job.seed}/{self._job.node}/fit/{step}")
        for shard in self._replica.shards:
            yield from self._of(step, shard, rng)

    def of(self, step: int, shard: Shard) -> Iterator[FitRecord]:
        """The same of one shard alone."""
        yield from self._of(
            step, shard, Random(f"{self._job.seed}/{self._job.node}/fit/{step}/{shard.name}")
        )

    def _of(self, step: int, shard: Shard, rng: Random) -> Iterator[FitRecord]:
        job, row = self._job, self._job.algorithm
        layered, gradients = row.buckets == "layer", self._replica.flat.gradients
        for name, given in self._compressor.compensated(shard.name, gradients[shard.place]):
            size = given.flat.numel()
            if size and not (layered and size < row.dense_below):
                found = gradient_stats.report(given.flat, rng, given.sum_abs)
                yield _record(job.node, step, name if layered else shard.name, size, found)


def _record(node: str, step: int, bucket: str, size: int, found: gradient_stats.Fit) -> FitRecord:
    return FitRecord(
        node=node,
        step=step,
        bucket=bucket,
        size=size,
        b=found.b,
        sigma=found.sigma,
        w1_laplace=found.w1_laplace,
        w1_normal=found.w1_normal,
        sample=found.sample,
        laplace=found.laplace,
        normal=found.normal,
    )
