"""Codecs between a worker's gradient and its messages, both ways: one class per
``ExchangeSpec.carries``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol
from zlib import crc32

import numpy as np
import torch

from testbed.algorithms import Algorithm
from testbed.compress.base import Selection
from testbed.compress.compressor import Packed, together
from testbed.compress.gradient_stats import refuse
from testbed.compress.layout import Layout, Shard
from testbed.control.base import Controller
from testbed.errors import GradientError
from testbed.exchange.base import BlocksSide, Update
from testbed.exchange.coded.round import POISON, Fixed, Floats, quantize
from testbed.node import Buffer, Node
from testbed.training.averaging import ControllerStats, PayloadAverager, detached
from testbed.training.compute import Computed, ReplicaView, WorkersComputation
from testbed.training.controller_feedback import ControllerAdapter, ObservableCompressor, SentMass
from testbed.training.job import Job


def bucket_rng(job: Job, shard: Shard) -> Random:
    """Return a generator of the node's own for each bucket.

    If all buckets shared a generator, the order of packing or answering would change its draws.
    """
    return Random(f"{job.seed}/{job.node}/{shard.name}")


def send_priority(job: Job, number: int) -> int:
    """Return the priority of a bucket that waits to be sent; the least goes first.

    Buckets are numbered as they are computed.
    """
    return -number if job.algorithm.order == "forward" else number


@dataclass(frozen=True, slots=True)
class EncodedSummary:
    """The record of a step's messages. ``density``: asked for; ``crc``: CRC-32 of all of them."""

    density: float
    sent: SentMass
    crc: int
    how: Selection | None


class GradientCodec(Protocol):
    """Between a worker's gradient and its exchange. Calls come in this order, once a step."""

    def pack(self) -> list[tuple[int, Buffer]]:
        """Buckets and what to submit for them, of the gradient as it is now."""
        ...

    def freight(self) -> EncodedSummary:
        """Summarise what was packed; asked for while that is under way, when it costs nothing."""
        ...

    def unpack(self, updates: Sequence[Update]) -> None:
        """Take in the mean, so that the replica can apply it. Raises WireError."""
        ...


class CompressedCodec:
    """Compressed payloads, one for each shard; the mean comes as such too, or is taken here of
    everybody's."""

    def __init__(
        self,
        node: Node,
        job: Job,
        replica: ReplicaView,
        controller: Controller,
        compressor: ObservableCompressor,
        observer: ControllerAdapter,
    ) -> None:
        self._node, self._job, self._replica = node, job, replica
        self._controller, self._compressor, self._observer = controller, compressor, observer
        self._looks = False
        self._means: list[PayloadAverager] = []
        self._packed: dict[int, Packed] = {}
        self._density = 1.0
        self._densities: list[float | list[float]] = []
        self._note: ControllerStats | None = None
        row, shards = job.algorithm, replica.shards
        self._rngs = [node.rng] * len(shards)
        if row.bucket_bytes:
            # in which order they are compressed depends on when they are there
            self._rngs = [bucket_rng(job, shard) for shard in shards]

    def pack(self) -> list[tuple[int, Buffer]]:
        """All shards are compressed before the first is sent: phases follow one another."""
        self.open()
        return [(place, self.pack_shard(place)) for place in range(len(self._replica.shards))]

    def itemise(self) -> None:
        """From now on messages say of which parameters they are made."""
        self._compressor.itemise = True

    def open(self) -> None:
        """Before the first shard of a step: what its controller wants of it."""
        self._packed, self._note = {}, self._observer.note()
        self._looks = self._observer.looks()
        self._density, self._densities = self._controller.density(), self._observer.densities()

    def pack_shard(self, place: int) -> Buffer:
        """The body for one of the replica's shards, whose number is its place."""
        replica, rng = self._replica, self._rngs[place]
        shard, density = replica.shards[place], self._densities[place]
        gradient = replica.flat.gradients[shard.place]
        if self._looks:
            self._observer.look(shard, self._compressor.compensated(shard.name, gradient))
        packed = self._compressor.compress(shard.name, gradient, density, rng)
        self._node.compressed(*_thinned(self._job.algorithm, shard.layout, density))
        self._packed[place] = packed
        if self._note is None or place:
            return packed.payload
        return self._note.attached(packed.payload)

    def packed(self, place: int) -> tuple[Packed, float | list[float]]:
        """Return the last result of ``pack_shard``, and the densities that were asked for."""
        return self._packed[place], self._densities[place]

    def freight(self) -> EncodedSummary:
        """See ``GradientCodec``."""
        packed, crc = [self._packed[place] for place in sorted(self._packed)], 0
        for one in packed:
            crc = crc32(one.payload, crc)
        return EncodedSummary(self._density, self._observer.sent(packed), crc, together(packed))

    def unpack(self, updates: Sequence[Update]) -> None:
        """See ``GradientCodec``."""
        for place, update in enumerate(updates):
            self.unpack_shard(place, update)

    def unpack_shard(self, place: int, update: Update) -> None:
        """Take in the mean of one shard. Raises WireError."""
        payload, note = self._mean(place, update)
        if note is not None:
            self._observer.agree(note)
        self._replica.decode(self._replica.shards[place], payload)

    def _mean(self, place: int, update: Update) -> tuple[Buffer, ControllerStats | None]:
        if update.kind == "gradients":
            if not self._means:
                self._means = [PayloadAverager(self._job, shard) for shard in self._replica.shards]
            # all peers draw alike: else their means, and then their replicas, would differ
            rng = Random(f"{self._job.seed}/mean/{place}/{update.version}")
            payload, _, note = self._means[place].of(update.parts, rng)
            return payload, note
        if self._note is None or place:
            return update.payload, None
        return detached(update.payload)


class DenseCodec:
    """The whole gradient as it is, float32; the exchange itself adds up."""

    def __init__(self, replica: ReplicaView) -> None:
        self._replica = replica
        self._sent: Buffer = b""

    def pack(self) -> list[tuple[int, Buffer]]:
        """The gradient's own memory, where it is on the host. Raises GradientError for NaN or
        infinity."""
        refuse(self._replica.flat.gradients, self._replica.flat.layout)
        self._sent = self._replica.flat.gradients.cpu().numpy().data.cast("B")
        return [(0, self._sent)]

    def freight(self) -> EncodedSummary:
        """All is sent."""
        return EncodedSummary(
            1.0, SentMass(self._replica.flat.size, 0.0, 0.0, {}), crc32(self._sent), None
        )

    def unpack(self, updates: Sequence[Update]) -> None:
        """See ``GradientCodec``."""
        (update,) = updates
        self._replica.take(update.payload)


def _thinned(row: Algorithm, layout: Layout, density: float | list[float]) -> tuple[int, int]:
    """How many things are made sparse by themselves, and their elements; what is sent dense is none
    of them."""
    sizes = [part.size for part in layout] if row.buckets == "layer" else [layout.size]
    shares = density if isinstance(density, list) else [density] * len(sizes)
    thinned = [
        size
        for size, share in zip(sizes, shares, strict=True)
        if share < 1.0 and size >= row.dense_below
    ]
    return len(thinned), sum(thinned)


class BlockComputation:
    """The computation that ``exchange`` asks this worker for, in place of its own batch (see
    ``compute.Computation``).

    Blocks are computed one by one and on one thread: whoever computes the same one gets the same
    bits.
    """

    def __init__(
        self, job: Job, computation: WorkersComputation, size: int, exchange: BlocksSide
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
        places = self._exchange.samples(self._count)
        if len(self.rows) != len(places):
            self.rows = np.zeros((len(places), self._size), np.float32)
        return self._computation.blocks(step, places, self.rows)


class BlockCodec:
    """Blocks as 32-bit fixed point (``testbed.training.gradient_codec.GradientCodec``)."""

    def __init__(
        self, replica: ReplicaView, computation: BlockComputation, exchange: BlocksSide
    ) -> None:
        self._replica, self._computation, self._exchange = replica, computation, exchange
        self._sent: Buffer = b""

    def pack(self) -> list[tuple[int, Buffer]]:
        """In the place of the rows themselves. Raises GradientError for what is no number."""
        rows = self._computation.rows
        fixed, saturated = rows.view(np.int32), 0
        for row, into in zip(rows, fixed, strict=True):
            counted = quantize(row, into, self._exchange.over)
            saturated += counted.saturated
            if counted.poisoned:
                raise _diverged(into, self._replica.flat.layout)
        self._exchange.report(saturated)
        self._sent = fixed.data.cast("B")
        return [(0, self._sent)]

    def freight(self) -> EncodedSummary:
        """All is sent; which elements of it how often is the exchange's to tell."""
        return EncodedSummary(
            1.0, SentMass(self._replica.flat.size, 0.0, 0.0, {}), crc32(self._sent), None
        )

    def unpack(self, updates: Sequence[Update]) -> None:
        """See ``GradientCodec``."""
        (update,) = updates
        self._replica.take(update.payload)


def _diverged(values: Fixed, layout: Layout) -> GradientError:
    wrong = np.flatnonzero(values == POISON)
    part = layout.at(int(wrong[0]))
    return GradientError(
        f"the gradient of {part.name!r} is not finite at element {int(wrong[0]) - part.offset} "
        f"({len(wrong)} such elements in all): the training has diverged, or its data are not "
        "finite"
    )
