"""How well a Laplace distribution fits what a worker compresses: what selector ``laplace`` takes for granted.

A report is made of p = g + e, the very vector that is compressed right after, before the computation is
held to its pace: it is in no phase of communication nor in that of compression, and with a pace that
leaves time for it no phase grows. With overlap it is made beside the computation, and its bucket leaves
that much later. It draws from randomness of its own: reports change no payload.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from testbed.compress import fit
from testbed.compress.base import Compensated
from testbed.compress.compressor import Compressor
from testbed.compress.recipe import Choice
from testbed.compress.shards import Shard
from testbed.record.events import FitRecord
from testbed.train.job import Job
from testbed.train.workshop import WorkersReplica

if TYPE_CHECKING:
    from torch import Tensor

EVERY = "fit_every"
"""Option of a selector: a report at every so many steps, from the first on; 0, the default: none."""


class WatchedCompressor(Compressor):
    """Shows what it will compress.

    Its selectors make no reports of their own, which would be in the time of the compression.
    """

    def __init__(self, job: Job, replica: WorkersReplica) -> None:
        recipe = job.algorithm.recipe
        options = {name: value for name, value in recipe.selector.options.items() if name != EVERY}
        selector = Choice(recipe.selector.name, options)
        super().__init__(
            replace(recipe, selector=selector), {s.name: s.layout for s in replica.shards}
        )

    def compensated(self, name: str, flat: Tensor) -> Iterator[tuple[str, Compensated]]:
        """What ``compress`` of ``flat`` would choose from, by the name of a bucket's first parameter.

        Nothing is kept yet; each is void when its bucket is used again. Raises what ``compress`` does.
        """
        flat, end = self._flat(name, flat), 0
        for bucket in self._buckets_of(name):
            begin, end = end, end + bucket.layout.size
            yield bucket.layout.parts[0].name, bucket.compensate(flat[begin:end])


class Fits:
    """A worker's reports, where its algorithm asks for them."""

    def __init__(self, job: Job, replica: WorkersReplica, compressor: WatchedCompressor) -> None:
        self._job, self._replica, self._compressor = job, replica, compressor
        self._every = int(job.algorithm.selector_options.get(EVERY, 0))

    def due(self, step: int) -> bool:
        """Whether ``step``, counted from 1, has a report."""
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
                found = fit.report(given.flat, rng, given.sum_abs)
                yield _record(job.node, step, name if layered else shard.name, size, found)


def _record(node: str, step: int, bucket: str, size: int, found: fit.Fit) -> FitRecord:
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
