"""Codecs between a worker's gradient and its messages, in both directions: one class per
``ExchangeSpec.unit``; and in which order buckets are sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any
from zlib import crc32

import numpy as np
import torch

from testbed.algorithm import Algorithm
from testbed.compress.base import selectors
from testbed.compress.compressor import EncodedBucket, together
from testbed.compress.gradient_stats import refuse
from testbed.compress.kernels.torch_ops import Staging
from testbed.compress.layout import Layout, Shard
from testbed.control.base import Controller
from testbed.errors import GradientError
from testbed.exchange.base import Update
from testbed.exchange.coded.exchange import CodedExchange
from testbed.exchange.coded.round import POISON, Floats, quantize
from testbed.node import Buffer, Node
from testbed.training.averaging import ControllerStats, PayloadAverager
from testbed.training.compute import Computed
from testbed.training.controller_feedback import (
    ControllerAdapter,
    EncodedSummary,
    ObservableCompressor,
    SentMass,
)
from testbed.training.job import Job
from testbed.training.replica import on_stream
from testbed.training.shared_replica import AnyComputation, AnyReplica


def bucket_rng(job: Job, shard: Shard) -> Random:
    """Return a bucket's own generator: the order of packing or answering changes no draws."""
    return Random(f"{job.seed}/{job.node}/{shard.name}")


def send_priority(job: Job, number: int) -> int:
    """Return the priority of a bucket, by number, that waits to be sent; the least goes first."""
    return -number if job.algorithm.order == "forward" else number


Densities = float | list[float]
"""Requested: one for all of a bucket, or one for each of its parameters."""


@dataclass(frozen=True, slots=True)
class BucketMessage:
    """A bucket's message as the compressor made it, from ``begin_s`` to ``end_s``."""

    packed: EncodedBucket
    densities: Densities
    begin_s: float
    end_s: float
    cpu_s: float


class CompressedCodec:
    """Compressed payloads, one for each shard; the mean comes as such too, or is taken here of
    everybody's. ``encoded``: a step's messages by shard number; ``itemised``: they say of which
    parameters they are made; ``stream``: the device's queue in which they are made."""

    def __init__(
        self,
        node: Node,
        job: Job,
        replica: AnyReplica,
        controller: Controller[Any],
        compressor: ObservableCompressor,
        observer: ControllerAdapter,
    ) -> None:
        self._node, self._job, self._replica = node, job, replica
        self._controller, self._compressor, self._observer = controller, compressor, observer
        self._wants_curves = False
        self._averagers: list[PayloadAverager] = []
        self.encoded: dict[int, BucketMessage] = {}
        self.stream: torch.cuda.Stream | None = None
        self._density = 1.0
        self._densities: list[Densities] = []
        self._stats: ControllerStats | None = None
        row, shards = job.algorithm, replica.shards
        self.itemised = bool(row.bucket_bytes) or row.buckets == "layer" or observer.sees_buckets
        compressor.itemise = self.itemised
        self._rngs = [node.rng] * len(shards)
        if row.bucket_bytes:
            # in which order they are compressed depends on when they are complete
            self._rngs = [bucket_rng(job, shard) for shard in shards]

    def encode(self) -> list[tuple[int, Buffer]]:
        """Compress all shards of the gradient as it is now; return their numbers and bodies."""
        self.begin_step()
        return [(number, self.encode_bucket(number)) for number in range(len(self._replica.shards))]

    def begin_step(self) -> None:
        """Ask the controller, before a step's first shard, for densities and what it watches."""
        self.encoded, self._stats = {}, self._observer.stats()
        self._wants_curves = self._observer.wants_curves()
        self._density, self._densities = self._controller.density(), self._observer.densities()

    def encode_bucket(self, number: int) -> Buffer:
        """Compress one of the replica's shards; return its body."""
        node, replica, rng = self._node, self._replica, self._rngs[number]
        begin_s, cpu_s = node.now(), node.cpu()
        shard, density = replica.shards[number], self._densities[number]
        gradient = replica.flat.gradients[shard.span]
        with on_stream(self.stream):
            if self._wants_curves:
                self._observer.add_curves(shard, self._compressor.compensated(shard.name, gradient))
            packed = self._compressor.compress(shard.name, gradient, density, rng)
        node.compressed(*_thinned(self._job.algorithm, shard.layout, density))
        body: Buffer = packed.payload
        if self._stats is not None and number == 0:
            body = self._stats.append_to(packed.payload)
        cpu_s = node.cpu() - cpu_s
        self.encoded[number] = BucketMessage(packed, density, begin_s, node.now(), cpu_s)
        return body

    def summary(self) -> EncodedSummary:
        """Summarise what was packed; asked for while that is under way, when it costs nothing."""
        packed, crc = [self.encoded[number].packed for number in sorted(self.encoded)], 0
        for message in packed:
            crc = crc32(message.payload, crc)
        return EncodedSummary(self._density, self._observer.sent(packed), crc, together(packed))

    def decode(self, updates: Sequence[Update]) -> None:
        """Take in the mean, so that the replica can apply it. Raises WireError."""
        for number, update in enumerate(updates):
            self.decode_bucket(number, update)

    def decode_bucket(self, number: int, update: Update) -> None:
        """Take in the mean of one shard. Raises WireError."""
        payload, stats = self._mean(number, update)
        if stats is not None:
            self._observer.agree(stats)
        self._replica.decode(self._replica.shards[number], payload)

    def _mean(self, number: int, update: Update) -> tuple[Buffer, ControllerStats | None]:
        if update.kind == "gradients":
            if not self._averagers:
                shards = self._replica.shards
                self._averagers = [PayloadAverager(self._job, shard) for shard in shards]
            # all peers draw alike: else their means, and then their replicas, would differ
            rng = Random(f"{self._job.seed}/mean/{number}/{update.version}")
            payload, _, stats = self._averagers[number].average(update.parts, rng)
            if self._job.algorithm.down_density < 1:
                self._node.compressed(1, self._averagers[number].size)
            return payload, stats
        if self._stats is None or number:
            return update.payload, None
        return ControllerStats.split_from(update.payload)


class DenseCodec:
    """The whole gradient as it is, float32; the exchange itself adds up."""

    def __init__(self, replica: AnyReplica) -> None:
        self._replica, self._staging = replica, Staging()
        self._sent: Buffer = b""

    def encode(self) -> list[tuple[int, Buffer]]:
        """The gradient's own memory, if it is on the host. Raises GradientError for NaN or inf."""
        gradients = self._replica.flat.gradients
        refuse(gradients, self._replica.flat.layout)
        self._sent = self._staging.to_bytes(gradients)
        return [(0, self._sent)]

    def summary(self) -> EncodedSummary:
        """All is sent."""
        sent = SentMass(self._replica.flat.size, 0.0, 0.0, {})
        return EncodedSummary(1.0, sent, crc32(self._sent), None)

    def decode(self, updates: Sequence[Update]) -> None:
        """See ``CompressedCodec``."""
        (update,) = updates
        self._replica.load_mean_gradient(update.payload)


def _thinned(row: Algorithm, layout: Layout, density: Densities) -> tuple[int, int]:
    """How many things are made sparse by themselves, and their elements; dense ones are not."""
    sizes = [part.size for part in layout] if row.buckets == "layer" else [layout.size]
    shares = density if isinstance(density, list) else [density] * len(sizes)
    both = zip(sizes, shares, strict=True)
    by_value = row.selector != "dense" and not selectors.get(row.selector).takes_density
    thinned = [n for n, share in both if (share < 1.0 or by_value) and n >= row.dense_below]
    return len(thinned), sum(thinned)


class BlockComputation:
    """The computation that ``exchange`` asks this worker for, in place of its own batch.

    Blocks are computed one by one and on one thread: whoever computes the same one gets the same
    bits.
    """

    def __init__(
        self, job: Job, computation: AnyComputation, size: int, exchange: CodedExchange
    ) -> None:
        torch.set_num_threads(1)
        self._computation, self._exchange = computation, exchange
        self._count, self._size = job.workers * job.train.batch, size
        self.batches = computation.batches
        self.rows: Floats = np.empty((0, size), np.float32)
        """The sum of the sample gradients of each block, float32 (blocks, size)."""
        self.gradients(step=1)  # what happens for the first time takes longer

    def gradients(self, step: int) -> Computed:
        """Set ``rows`` to the gradients of this worker's blocks of ``step``."""
        samples = self._exchange.samples(self._count)
        if len(self.rows) != len(samples):
            self.rows = np.zeros((len(samples), self._size), np.float32)
        return self._computation.blocks(step, samples, self.rows)


class BlockCodec(DenseCodec):
    """Blocks as 32-bit fixed point; which elements are sent how often is the exchange's to tell."""

    def __init__(
        self, replica: AnyReplica, computation: BlockComputation, exchange: CodedExchange
    ) -> None:
        super().__init__(replica)
        self._computation, self._exchange = computation, exchange
        exchange.matrices = tuple(part.rows for part in replica.flat.layout)

    def encode(self) -> list[tuple[int, Buffer]]:
        """In the place of the rows themselves. Raises GradientError for what is no number."""
        rows = self._computation.rows
        fixed, saturated = rows.view(np.int32), 0
        for row, into in zip(rows, fixed, strict=True):
            counted = quantize(row, into, self._exchange.over)
            saturated += counted.saturated
            if counted.poisoned:
                wrong = np.flatnonzero(into == POISON)
                part = self._replica.flat.layout.at(int(wrong[0]))
                raise GradientError(
                    f"the gradient of {part.name!r} is not finite at element "
                    f"{int(wrong[0]) - part.offset} ({len(wrong)} such elements in all): the "
                    "training has diverged, or its data are not finite"
                )
        self._exchange.report(saturated)
        self._sent = fixed.data.cast("B")
        return [(0, self._sent)]


GradientCodec = CompressedCodec | DenseCodec
"""Between a worker's gradient and its exchange. Calls come in this order, once a step: ``encode``,
``summary``, ``decode``."""
