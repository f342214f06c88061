"""One bucket's way from gradient to payload: memory, selector, values, bytes, memory again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from math import isfinite
from random import Random
from typing import Any

import torch
from torch import Tensor

from testbed.compress.base import Compensated, Selection, Sparse
from testbed.compress.finite import refuse
from testbed.compress.layout import Layout
from testbed.compress.payload import PayloadBuffer
from testbed.compress.portable import as_arrays, as_tensors
from testbed.compress.recipe import Recipe
from testbed.compress.staging import Staging
from testbed.compress.wire import encode


@dataclass(frozen=True, slots=True)
class Share:
    """One parameter's share of a message: elements that are sent, and bytes.

    Where it shares a payload with others, so many bytes of it as it has of the elements sent.
    """

    count: int
    bytes: float


@dataclass(frozen=True, slots=True)
class Packed:
    """A message on its way out. ``payload`` holds until the bucket's next message is made."""

    payload: memoryview
    size: int
    """Elements of the gradient."""
    count: int
    """Elements sent."""
    how: Selection | None
    before: float = 0.0
    """Σ|p|: of all that there was to send."""
    sent: float = 0.0
    """Σ|values| as they are read; 0 where nobody weighs."""
    parts: tuple[Share, ...] = ()
    """What each parameter has of it; empty where nobody itemises."""


class Bucket:
    """Compresses one flat vector after another, and remembers what it left out."""

    def __init__(self, layout: Layout, recipe: Recipe) -> None:
        self.layout, self._made_with = layout, [recipe.selector.name, recipe.values.name]
        self._selector = recipe.make_selector()
        self._values = recipe.make_values(layout)
        self._memory = recipe.make_memory(layout)
        self._buffer, self._staging = PayloadBuffer(), Staging()

    def compensate(self, flat: Tensor) -> Compensated:
        """What is to be compressed in place of ``flat``; nothing is kept yet, so it can be forgotten.

        ``flat``: float32 (n,), contiguous; it is not changed. Raises GradientError for NaN or infinity.
        """
        given = self._memory.compensate(flat)
        if not isfinite(given.sum_abs):
            refuse(flat, self.layout)
            refuse(given.flat, self.layout)
        return given

    def compress(
        self, given: Compensated, density: float, rng: Random,
        *, weigh: bool = False, itemise: bool = False,
    ) -> Packed:  # fmt: skip
        """The message; ``given`` is what ``compensate`` returned last.

        ``weigh``, ``itemise``: find ``Packed.sent`` and ``Packed.parts`` too.
        """
        sent = self._selector.select(given, density, rng)
        encoded = encode(self._staging.to_host(sent), self._values, rng, self._buffer)
        mass = float(encoded.values.abs().sum()) if weigh else 0.0
        read = encoded.values.to(given.flat.device)
        self._memory.update(given, replace(sent, values=read))
        parts = self._shares(sent, len(encoded.payload)) if itemise else ()
        return Packed(encoded.payload, sent.size, sent.count, sent.how, given.sum_abs, mass, parts)

    def _shares(self, sent: Sparse, length: int) -> tuple[Share, ...]:
        ends = [part.offset + part.size for part in self.layout]
        if sent.indices is not None:
            bounds = torch.tensor(ends, device=sent.indices.device)
            ends = torch.searchsorted(sent.indices, bounds).tolist()
        counts = [end - begin for begin, end in pairwise([0, *ends])]
        return tuple(Share(count, length * count / max(1, sent.count)) for count in counts)

    def memory(self) -> dict[str, Tensor]:
        """What was left out, by parameter."""
        return self._memory.state()

    def recall(self, state: Mapping[str, Tensor]) -> None:
        """Take over what belongs to this bucket's parameters."""
        self._memory.load(state)

    def learnt(self) -> dict[str, Any]:
        """What selector and values carry from step to step, and for which parameters."""
        return {
            "parts": [part.name for part in self.layout],
            "made_with": self._made_with,
            "selector": self._selector.state(),
            "values": as_tensors(self._values.state()),
        }

    def learn(self, state: Mapping[str, Any]) -> None:
        """Take over what ``learnt`` returned for some of the same parameters, as far as it is of use here.

        What a selector knows is of use to one of the same name for exactly these parameters; a value coding
        knows matrices by the names of their parameters.
        """
        selector, values = state["made_with"]
        if selector == self._made_with[0] and state["parts"] == [p.name for p in self.layout]:
            self._selector.load(state["selector"])
        if values == self._made_with[1]:
            self._values.load(as_arrays(state["values"]))
