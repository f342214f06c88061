"""The mean of all workers' payloads for one shard, the server's reply, and what workers tell each
other so that controllers decide alike.

Where an algorithm asks for it (``agree``), a worker's gradient message ends with 16 bytes about its
last step, and the server's reply with what all of them come to. So controllers see every step one
step later, all the same.

    offset from the end   size  field
    −16                   8     communication delay in seconds of model time, IEEE 754 double,
                                little-endian; NaN: none yet
    −8                    8     accuracy of the mini-batch
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import isfinite, isnan, nan
from random import Random
from statistics import fmean
from typing import TYPE_CHECKING, Any

from testbed.compress.aggregate import Aggregate
from testbed.compress.base import (
    BufferPool,
    PayloadBuffer,
    Recipe,
    RecipeChoice,
    Sparse,
    selectors,
)
from testbed.compress.compressor import as_arrays, as_tensors
from testbed.compress.gradient_stats import element_count, refuse
from testbed.compress.layout import Shard
from testbed.compress.memory import NoMemory
from testbed.compress.payload import encode, read_message
from testbed.control.base import Observation
from testbed.errors import WireError
from testbed.node import Buffer, Message
from testbed.training.job import Job

if TYPE_CHECKING:
    from torch import Tensor

    from testbed.algorithm import Algorithm
    from testbed.compress.base import Memory
    from testbed.compress.layout import Layout


_LAYOUT = struct.Struct("<dd")


@dataclass(frozen=True, slots=True)
class ControllerStats:
    """A step as one worker, or all of them, met it."""

    delay_s: float = nan
    accuracy: float = nan

    @classmethod
    def of(cls, observed: Observation | None) -> ControllerStats:
        """Return the statistics of a worker's own step; NaN before the first."""
        return cls() if observed is None else cls(observed.delay_s, observed.accuracy)

    def append_to(self, payload: Buffer) -> bytes:
        """``payload`` and this."""
        return b"".join((payload, _LAYOUT.pack(self.delay_s, self.accuracy)))

    @classmethod
    def split_from(cls, body: Buffer) -> tuple[memoryview, ControllerStats]:
        """Payload and statistics. Raises WireError for a body that is too short."""
        view, size = memoryview(body).cast("B"), _LAYOUT.size
        if len(view) < size:
            raise WireError(f"{len(view)} B are too few for the {size} B that workers agree by")
        return view[:-size], cls(*_LAYOUT.unpack(view[-size:]))

    def merged_with(self, observed: Observation | None) -> Observation | None:
        """A worker's own step, with what all have agreed upon; None before the first."""
        if observed is None or isnan(self.delay_s):
            return None
        return replace(observed, delay_s=self.delay_s, accuracy=self.accuracy)


def agreed(workers: Sequence[ControllerStats]) -> ControllerStats:
    """The largest delay and the mean accuracy; NaN as long as one has nothing to tell."""
    delays = [stats.delay_s for stats in workers]
    if any(isnan(delay_s) for delay_s in delays):
        return ControllerStats()
    return ControllerStats(max(delays), fmean(stats.accuracy for stats in workers))


class UpdateEncoder:
    """Writes one mean after another, always as one payload.

    With a memory it is the second pass of double-pass error feedback (DoubleSqueeze, Tang 2019;
    dist-EF-SGD, Zheng 2019): with mean m of a round and S the elements that any worker sent,

        p = m + e        send Q(p on S)        e ← p − Q(p on S)

    so that Σ replies + residual = Σ means. Elements outside S wait for a round that sends them: the
    reply is as sparse as without a memory. With ``down_density`` S are the greatest of all of p,
    sent in this round or before (global top-k; gTop-k, Shi et al. 2019).
    """

    def __init__(self, algorithm: Algorithm, layout: Layout, device: str = "cpu") -> None:
        self._layout, self._values = layout, algorithm.downward(layout)
        self._device = device
        self.memory: Memory[Any] | None = None
        """None where nothing is kept: a memory reads the whole vector for its statistics."""
        if algorithm.down_memory != "none":
            self.memory = Recipe(memory=RecipeChoice(algorithm.down_memory)).make_memory(layout)
        self._density, self._selector = algorithm.down_density, selectors.get("topk")()
        self._most = element_count(layout.size, self._density)
        self.sent_count = 0
        """Elements of the last mean that were sent."""
        self._flat: Tensor | None = None
        self._payload = PayloadBuffer()

    @cached_property
    def aggregate(self) -> Aggregate:
        """Sums of rounds, whose means are whole where that is what this sends best."""
        values = self._values
        return Aggregate(
            self._layout.size, self._device, values.section_bytes, keeps_zero=values.keeps_zero
        )

    def average(
        self, messages: Iterable[Sparse], workers: int, rng: Random
    ) -> tuple[memoryview, int]:
        """Return the payload of the mean of ``messages``, as ``encode`` does, and its elements.
        They are added up in their order; each is needed until the next one is asked for."""
        self.aggregate.reset()
        for message in messages:
            self.aggregate.add(message)
        mean: Sparse = self.aggregate.mean(workers)
        return self.encode(mean, rng), self.sent_count

    def encode(self, mean: Sparse, rng: Random) -> memoryview:
        """The payload of ``mean`` (on the host); it holds until the next one. Raises GradientError
        where finite gradients add up to more than float32 holds."""
        if not isfinite(float(mean.values.sum())):
            refuse(mean.values, self._layout, mean.indices, "mean gradient")
        self.sent_count = mean.count
        few = self._density == 1 or (self.memory is None and mean.count <= self._most)
        if self.memory is None and few:
            return encode(mean, self._values, rng, self._payload).payload
        memory = self.memory or NoMemory(self._layout)
        given = memory.accumulate(self._spread(mean))
        if few:
            values = given.flat if mean.indices is None else given.flat[mean.indices]
            sent = Sparse(mean.size, mean.indices, values)
        else:
            sent = self._selector.select(given, self._density, rng)
        self.sent_count = sent.count
        encoded = encode(sent, self._values, rng, self._payload)
        memory.update(given, replace(sent, values=encoded.values))
        return encoded.payload

    def state(self) -> dict[str, Any]:
        """Return what is carried from round to round: what was left out, and what values know."""
        left_out = {} if self.memory is None else self.memory.state()
        return {"memory": left_out, "values": as_tensors(self._values.state())}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from what ``state`` of the same algorithm returned."""
        if self.memory is not None:
            self.memory.load(state["memory"])
        self._values.load(as_arrays(state["values"]))

    def _spread(self, mean: Sparse) -> Tensor:
        """The mean as a whole vector, in a buffer of its own where it is sparse."""
        if mean.indices is None:
            return mean.values
        if self._flat is None:
            self._flat = mean.values.new_empty(mean.size)
        self._flat.zero_()
        self._flat[mean.indices] = mean.values
        return self._flat


class PayloadAverager:
    """Averages messages of ``shard`` into a payload, as the algorithm of ``job`` codes updates."""

    def __init__(self, job: Job, shard: Shard) -> None:
        self._job, self._shard, self.size = job, shard, shard.layout.size
        self._encoder = UpdateEncoder(job.algorithm, shard.layout, job.device)
        self._scratch = BufferPool()

    def average(
        self, messages: Sequence[Message], rng: Random
    ) -> tuple[memoryview, int, ControllerStats | None]:
        """The payload, which holds until the next one, and its elements; what workers agree upon:
        None where they do not, or it goes with another shard. Raises WireError naming whose message
        is none."""
        bodies: list[Buffer] = [message.body for message in messages]
        stats, aggregate = None, self._encoder.aggregate
        if self._job.algorithm.agree and self._shard.number == 0:
            parts = [ControllerStats.split_from(body) for body in bodies]
            bodies, stats = [body for body, _ in parts], agreed([stats for _, stats in parts])
        aggregate.reset()
        for message, gradient in zip(messages, bodies, strict=True):
            try:
                aggregate.add(read_message(gradient, self._shard.layout, self._scratch))
            except WireError as error:
                name = self._job.peer_name(message.sender)
                raise WireError(f"gradient of {name}, step {message.step}: {error}") from error
        mean: Sparse = aggregate.mean(len(messages))
        return self._encoder.encode(mean, rng), self._encoder.sent_count, stats
