"""What a worker sends of its gradient, and what it makes of what comes back: one class per ``ExchangeKind.carries``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol
from zlib import crc32

from testbed.algorithms.algorithm import Algorithm
from testbed.compress.base import Selection
from testbed.compress.bucket import Packed
from testbed.compress.compressor import together
from testbed.compress.finite import refuse
from testbed.compress.layout import Layout
from testbed.control.base import Controller
from testbed.exchange.base import Update
from testbed.node import Buffer, Node
from testbed.train.agreement import Note, detached
from testbed.train.bucket_order import bucket_rng
from testbed.train.fits import WatchedCompressor
from testbed.train.job import Job
from testbed.train.mean import Mean
from testbed.train.observing import Observer, Sent
from testbed.train.workshop import WorkersReplica


@dataclass(frozen=True, slots=True)
class Freight:
    """What is recorded of a step's messages. ``density``: asked for; ``crc``: CRC-32 of all of them."""

    density: float
    sent: Sent
    crc: int
    how: Selection | None


class Carrier(Protocol):
    """Between a worker's gradient and its exchange. Calls come in this order, once a step."""

    def pack(self) -> list[tuple[int, Buffer]]:
        """Buckets and what to submit for them, of the gradient as it is now."""
        ...

    def freight(self) -> Freight:
        """Of what was packed; asked for while it is under way, when it costs nothing."""
        ...

    def unpack(self, updates: Sequence[Update]) -> None:
        """Take in the mean, so that the replica can apply it. Raises WireError."""
        ...


class PayloadCarrier:
    """Compressed payloads, one for each shard; the mean comes as such too, or is taken here of everybody's."""

    def __init__(
        self, node: Node, job: Job, replica: WorkersReplica,
        controller: Controller, compressor: WatchedCompressor, observer: Observer,
    ) -> None:  # fmt: skip
        self._node, self._job, self._replica = node, job, replica
        self._controller, self._compressor, self._observer = controller, compressor, observer
        self._looks = False
        self._means: list[Mean] = []
        self._packed: dict[int, Packed] = {}
        self._density = 1.0
        self._densities: list[float | list[float]] = []
        self._note: Note | None = None
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
        """What ``pack_shard`` made last, and the densities that were asked for."""
        return self._packed[place], self._densities[place]

    def freight(self) -> Freight:
        """See ``Carrier``."""
        packed, crc = [self._packed[place] for place in sorted(self._packed)], 0
        for one in packed:
            crc = crc32(one.payload, crc)
        return Freight(self._density, self._observer.sent(packed), crc, together(packed))

    def unpack(self, updates: Sequence[Update]) -> None:
        """See ``Carrier``."""
        for place, update in enumerate(updates):
            self.unpack_shard(place, update)

    def unpack_shard(self, place: int, update: Update) -> None:
        """Take in the mean of one shard. Raises WireError."""
        payload, note = self._mean(place, update)
        if note is not None:
            self._observer.agree(note)
        self._replica.decode(self._replica.shards[place], payload)

    def _mean(self, place: int, update: Update) -> tuple[Buffer, Note | None]:
        if update.kind == "gradients":
            if not self._means:
                self._means = [Mean(self._job, shard) for shard in self._replica.shards]
            # all peers draw alike: else their means, and then their replicas, would differ
            rng = Random(f"{self._job.seed}/mean/{place}/{update.version}")
            payload, _, note = self._means[place].of(update.parts, rng)
            return payload, note
        if self._note is None or place:
            return update.payload, None
        return detached(update.payload)


class VectorCarrier:
    """The whole gradient as it is, float32; the exchange itself adds up."""

    def __init__(self, replica: WorkersReplica) -> None:
        self._replica = replica
        self._sent: Buffer = b""

    def pack(self) -> list[tuple[int, Buffer]]:
        """The gradient's own memory, where it is on the host. Raises GradientError for NaN or infinity."""
        refuse(self._replica.flat.gradients, self._replica.flat.layout)
        self._sent = self._replica.flat.gradients.cpu().numpy().data.cast("B")
        return [(0, self._sent)]

    def freight(self) -> Freight:
        """All is sent."""
        return Freight(1.0, Sent(self._replica.flat.size, 0.0, 0.0, {}), crc32(self._sent), None)

    def unpack(self, updates: Sequence[Update]) -> None:
        """See ``Carrier``."""
        (update,) = updates
        self._replica.take(update.payload)


def _thinned(row: Algorithm, layout: Layout, density: float | list[float]) -> tuple[int, int]:
    """How many things are made sparse by themselves, and their elements; what is sent dense is none of them."""
    sizes = [part.size for part in layout] if row.buckets == "layer" else [layout.size]
    shares = density if isinstance(density, list) else [density] * len(sizes)
    thinned = [
        size
        for size, share in zip(sizes, shares, strict=True)
        if share < 1.0 and size >= row.dense_below
    ]
    return len(thinned), sum(thinned)
