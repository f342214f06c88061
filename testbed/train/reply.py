"""The server's reply: the mean of a round, as the algorithm writes it on the way down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import isfinite
from random import Random
from typing import TYPE_CHECKING, Any

from testbed.compress.aggregate import Aggregate
from testbed.compress.base import Sparse
from testbed.compress.finite import refuse
from testbed.compress.payload import PayloadBuffer
from testbed.compress.portable import as_arrays, as_tensors
from testbed.compress.recipe import Choice, Recipe
from testbed.compress.wire import encode

if TYPE_CHECKING:
    from torch import Tensor

    from testbed.algorithms import Algorithm
    from testbed.compress.base import Memory
    from testbed.compress.layout import Layout


class Reply:
    """Writes one mean after another, always as one payload.

    With a memory it is the second pass of double-pass error feedback (DoubleSqueeze, Tang 2019;
    dist-EF-SGD, Zheng 2019): with mean m of a round and S the elements that any worker sent,

        p = m + e        send Q(p on S)        e ← p − Q(p on S)

    so that Σ replies + residual = Σ means. Elements outside S wait for a round that sends them: the
    reply is as sparse as without a memory.
    """

    def __init__(self, algorithm: Algorithm, layout: Layout) -> None:
        self._layout, self._values = layout, algorithm.downward(layout)
        self._memory = _memory(algorithm.down_memory, layout)
        self._flat: Tensor | None = None
        self._payload = PayloadBuffer()

    def aggregate(self) -> Aggregate:
        """A place for the sums of rounds, whose means are whole where that is what this sends best."""
        values = self._values
        return Aggregate(
            self._layout.size, value_bytes=values.section_bytes, keeps_zero=values.keeps_zero
        )

    def encode(self, mean: Sparse, rng: Random) -> memoryview:
        """The payload of ``mean`` (on the host); it holds until the next one. Randomness from ``rng``.

        Raises GradientError where finite gradients add up to more than float32 holds.
        """
        if not isfinite(float(mean.values.sum())):
            refuse(mean.values, self._layout, mean.indices, "mean gradient")
        if self._memory is None:
            return encode(mean, self._values, rng, self._payload).payload
        given = self._memory.compensate(self._spread(mean))
        chosen = given.flat if mean.indices is None else given.flat[mean.indices]
        sent = Sparse(mean.size, mean.indices, chosen)
        encoded = encode(sent, self._values, rng, self._payload)
        self._memory.update(given, replace(sent, values=encoded.values))
        return encoded.payload

    def state(self) -> dict[str, Any]:
        """Everything that is carried from round to round: what was left out by parameter, what values know."""
        left_out = {} if self._memory is None else self._memory.state()
        return {"memory": left_out, "values": as_tensors(self._values.state())}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from what ``state`` of the same algorithm returned."""
        if self._memory is not None:
            self._memory.load(state["memory"])
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


def _memory(name: str, layout: Layout) -> Memory | None:
    """None for the memory that keeps nothing: it would read the whole vector for its statistics."""
    return None if name == "none" else Recipe(memory=Choice(name)).make_memory(layout)
