"""A worker's compressor: each bucket's way from gradient to payload and back (memory, selector,
values, bytes, memory again), and checkpoints of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import isfinite
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor, float32

from testbed.compress import kernels
from testbed.compress.base import (
    AccumulatedGradient,
    BufferPool,
    PayloadBuffer,
    Recipe,
    RecipeChoice,
    Selection,
    Sparse,
)
from testbed.compress.gradient_stats import check_density, refuse
from testbed.compress.kernels.base import Fetching, fetched
from testbed.compress.kernels.torch_ops import Staging
from testbed.compress.layout import Layout
from testbed.compress.memory import parameters_of
from testbed.compress.payload import encode, join, read_message
from testbed.errors import GradientError, InputError, WireError
from testbed.node import Buffer


def as_tensors(state: Mapping[str, Any]) -> dict[str, Any]:
    """Copies of all arrays in ``state``, as tensors; everything else as it is."""
    return {
        name: torch.from_numpy(value.copy()) if isinstance(value, np.ndarray) else value
        for name, value in state.items()
    }


def as_arrays(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state that ``as_tensors`` was given."""
    return {
        name: value.cpu().numpy().copy() if isinstance(value, torch.Tensor) else value
        for name, value in state.items()
    }


@dataclass(frozen=True, slots=True)
class ParameterShare:
    """One parameter's share of a message: elements that are sent, and bytes.

    Where it shares a payload with others, so many bytes of it as it has of the elements sent.
    """

    count: int
    bytes: float


@dataclass(frozen=True, slots=True)
class EncodedBucket:
    """A message on its way out. ``payload`` holds until the bucket's next message is made."""

    payload: memoryview
    size: int
    """Elements of the gradient."""
    count: int
    """Elements sent."""
    selection: Selection | None
    held: float = 0.0
    """Σ|p − sent|: what the message lacks, values taken as they are read; 0 where nobody weighs."""
    sent: float = 0.0
    """Σ|values| as they are read, likewise."""
    parts: tuple[ParameterShare, ...] = ()
    """Each parameter's share of the message; empty where nobody itemises."""


class Bucket:
    """Compresses one flat vector after another, and remembers what it left out."""

    def __init__(self, layout: Layout, recipe: Recipe) -> None:
        self.layout, self._names = layout, [recipe.selector.name, recipe.values.name]
        self._selector = recipe.make_selector()
        self._values = recipe.make_values(layout)
        self._memory = recipe.make_memory(layout)
        self._buffer, self._staging = PayloadBuffer(), Staging()

    def accumulating(self, flat: Tensor) -> Fetching[AccumulatedGradient]:
        """Return the vector to compress in place of ``flat``; nothing is kept yet, so it can be
        forgotten. What other buckets need of the device can be waited for too.

        ``flat``: float32 (n,), contiguous; it is not changed. Raises GradientError for NaN or
        infinity.
        """
        given = yield from self._memory.accumulating(flat)
        if not isfinite(given.sum_abs):
            refuse(flat, self.layout)
            refuse(given.flat, self.layout)
        return given

    def encode(
        self,
        given: AccumulatedGradient,
        density: float,
        rng: Random,
        *,
        weigh: bool = False,
        itemise: bool = False,
        chosen: Sparse | None = None,
    ) -> EncodedBucket:
        """The message; ``given`` is what ``accumulating`` returned last.

        ``weigh``, ``itemise``: find ``EncodedBucket.held`` and ``sent``, or ``parts``, too.
        ``chosen``: what ``selecting`` has chosen already.
        """
        if chosen is None:
            sent = self._selector.select(given, density, rng)
            staged = self._staging.to_host(sent)
        else:
            sent, staged = self._returned(chosen, given.flat), chosen
        encoded = encode(staged, self._values, rng, self._buffer)
        mass = float(encoded.values.abs().sum()) if weigh else 0.0
        read = sent.values  # where they travel as they are, they need not come back
        if encoded.values is not staged.values or read is staged.values:
            read = self._staging.to_device(encoded.values, given.flat.device)
        residual_mass = 0.0
        if weigh:
            residual_mass = _lacking(given, self._originals(given, sent, staged), encoded.values)
        self._memory.update(given, replace(sent, values=read))
        parts = self._shares(staged, len(encoded.payload)) if itemise else ()
        return EncodedBucket(
            encoded.payload, sent.size, sent.count, sent.selection, residual_mass, mass, parts
        )

    def _originals(self, given: AccumulatedGradient, sent: Sparse, staged: Sparse) -> Tensor:
        """Return the chosen elements of p, on the host: there nothing is waited for, unless the
        selector has changed them."""
        if not self._selector.alters or sent.indices is None:
            return staged.values
        return given.flat[sent.indices].cpu()

    def _returned(self, chosen: Sparse, flat: Tensor) -> Sparse:
        """Return ``chosen`` with what is known of it on the device: its indices, or all values."""
        if chosen.indices is None:
            return replace(chosen, values=flat)
        return replace(chosen, indices=self._staging.to_device(chosen.indices, flat.device))

    @property
    def queues(self) -> bool:
        """Return whether ``selecting`` can be used."""
        return self._selector.queues

    def selecting(self, given: AccumulatedGradient, density: float) -> Fetching[Sparse]:
        """Choose for ``encode``; other buckets' elements can be waited for too."""
        return self._selector.selecting(given, density)

    def _shares(self, sent: Sparse, length: int) -> tuple[ParameterShare, ...]:
        """Return each parameter's share of ``sent``, on the host: there nothing is waited for."""
        ends = [part.offset + part.size for part in self.layout]
        if sent.indices is not None:
            ends = torch.searchsorted(sent.indices, torch.tensor(ends)).tolist()
        counts = [end - begin for begin, end in pairwise([0, *ends])]
        return tuple(ParameterShare(count, length * count / max(1, sent.count)) for count in counts)

    def memory_state(self) -> dict[str, Tensor]:
        """Return what was left out, keyed by parameter."""
        return self._memory.state()

    def load_memory(self, state: Mapping[str, Tensor]) -> None:
        """Take over what belongs to this bucket's parameters."""
        self._memory.load(state)

    def state(self) -> dict[str, Any]:
        """Return what selector and values carry from step to step, and for which parameters."""
        return {
            "parts": [part.name for part in self.layout],
            "made_with": self._names,
            "selector": self._selector.state(),
            "values": as_tensors(self._values.state()),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take over the ``state`` of some of the same parameters, as far as it is of use here.

        What a selector knows is of use to one of the same name for exactly these parameters; a
        value coding knows matrices by the names of their parameters.
        """
        selector, values = state["made_with"]
        if selector == self._names[0] and state["parts"] == [p.name for p in self.layout]:
            self._selector.load(state["selector"])
        if values == self._names[1]:
            self._values.load(as_arrays(state["values"]))


def _lacking(given: AccumulatedGradient, chosen: Tensor, read: Tensor) -> float:
    """Σ|p − sent|, of what was chosen of p and as what it is read, both on the host."""
    fewer = chosen.abs().sum() - (chosen - read).abs().sum()
    return max(0.0, given.sum_abs - float(fewer))


class Checkpoint:
    """Loaded state that no bucket has taken yet. ``kind``: name of the memory."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._memory: dict[str, Tensor] = {}
        self._states: list[Mapping[str, Any]] = []
        """States of buckets, each for its parameters."""
        self._served: set[str] = set()
        """Parameters whose bucket has what there was for it."""

    @classmethod
    def read(cls, state: Mapping[str, Any], kind: str) -> Checkpoint:
        """Read what ``to_json`` gave. Raises InputError when another memory's vectors are in it."""
        if state["memory"] and state["kind"] != kind:
            raise InputError(
                f"memory {kind!r} cannot take over what memory {state['kind']!r} holds of "
                f"{', '.join(sorted(state['memory']))}",
                hint=f"Load it into a compressor with memory {state['kind']!r}",
            )
        loaded = cls(kind)
        loaded._memory, loaded._states = dict(state["memory"]), list(state["learnt"])
        return loaded

    def to_json(self, buckets: Iterable[Bucket]) -> dict[str, Any]:
        """The state of ``buckets``, and what waits for others."""
        memory, states = dict(self._memory), list(self._states)
        for bucket in buckets:
            memory.update(bucket.memory_state())
            states.append(bucket.state())
        return {"kind": self._kind, "memory": memory, "learnt": states}

    def hand_over(self, bucket: Bucket) -> None:
        """Give ``bucket`` what belongs to it."""
        names = [part.name for part in bucket.layout]
        own = {key: self._memory.pop(key) for key in parameters_of(self._memory, names)}
        if own:
            bucket.load_memory(own)
        self._served |= {*names}
        for state in self._states:
            if {*state["parts"]} & {*names}:
                bucket.load_state(state)
        self._states = [state for state in self._states if not {*state["parts"]} <= self._served]


class Compressor:
    """Compresses buckets by name. One per worker: the memories in it belong to that worker's
    gradients.

    ``layouts``: what each bucket is made of; a bucket that is not in it is one parameter of that
    name.
    """

    def __init__(self, recipe: Recipe, layouts: Mapping[str, Layout] | None = None) -> None:
        self.recipe, self.weigh, self.itemise = recipe, False, False
        """True if messages say how much of it all they carry, and of which parameters."""
        self._layouts = dict(layouts or {})
        self._buckets: dict[str, list[Bucket]] = {}
        self._joined: dict[str, PayloadBuffer] = {}
        self._scratch, self._staging = BufferPool(), Staging()
        self._loaded = Checkpoint(recipe.memory.name)

    @classmethod
    def named(
        cls,
        selector: str,
        memory: str,
        layouts: Mapping[str, Layout] | None = None,
        values: str = "fp32",
    ) -> Compressor:
        """From registered names, without options. Raises InputError for unknown ones."""
        return cls(
            Recipe(RecipeChoice(selector), RecipeChoice(values), RecipeChoice(memory)), layouts
        )

    def compress(
        self, name: str, flat: Tensor, density: float | Sequence[float], rng: Random
    ) -> EncodedBucket:
        """The message of bucket ``name``; it holds until the next one of that bucket.

        ``flat``: float32 (n,), any device, any stride; it is not changed. ``density``: one for all,
        or, where parameters are compressed by themselves, one for each of them.

        Raises GradientError for NaN or infinity, a wrong shape or dtype; InputError for a density
        outside (0, 1], or too many or too few of them. Whatever is raised of these, all is as
        before.
        """
        flat = self._flat(name, flat)
        buckets = self._buckets_of(name)
        densities = _densities(density, len(buckets))
        # all are looked at before any memory takes something in
        given = self._accumulated(name, flat)
        chosen: Sequence[Sparse | None] = [None] * len(buckets)
        if self._queued(flat) and all(bucket.queues for bucket in buckets):
            both = zip(given, densities, strict=True)
            chosen = self._staging.together([b.selecting(p, share) for (b, p), share in both])
        packed = [
            bucket.encode(p, share, rng, weigh=self.weigh, itemise=self.itemise, chosen=sent)
            for (bucket, p), share, sent in zip(given, densities, chosen, strict=True)
        ]
        return self._message(name, packed) if self.recipe.layers else packed[0]

    def _queued(self, flat: Tensor) -> bool:
        """Return whether ``flat`` is on a device that is waited for once for all parameters."""
        return self.recipe.layers and kernels.of(flat).queues

    def _accumulated(self, name: str, flat: Tensor) -> list[tuple[Bucket, AccumulatedGradient]]:
        """Each of the buckets with what it is to compress of ``flat``."""
        buckets = self._buckets_of(name)
        parts = _split(flat, self._layouts[name]) if self.recipe.layers else [flat]
        works = [bucket.accumulating(part) for bucket, part in zip(buckets, parts, strict=True)]
        together = self._queued(flat)
        given = self._staging.together(works) if together else [fetched(work) for work in works]
        return [*zip(buckets, given, strict=True)]

    def decompress(self, name: str, payload: Buffer, out: Tensor) -> None:
        """Set ``out`` (float32 (n,), any device) to what ``payload`` holds, zeros elsewhere.

        Raises WireError for bytes that are no payload of that bucket, or of another size than
        ``out``.
        """
        layout = self._layouts.get(name) or Layout.whole(name, out.numel())
        if layout.size != out.numel():
            raise WireError(f"bucket {name!r} has {layout.size} elements, not {out.numel()}")
        received = read_message(payload, layout, self._scratch)
        if received.indices is None:
            out.copy_(received.values)
            return
        out.zero_()
        out[received.indices.to(out.device)] = received.values.to(out.device)

    def state(self) -> dict[str, Any]:
        """Everything that is carried from step to step, as copies that ``torch.save`` takes.

        ``memory``: what was left out, tensors by the name of the parameter; ``kind``: whose memory
        it is; ``learnt``: what selectors and values know, by bucket.
        """
        return self._loaded.to_json([b for own in self._buckets.values() for b in own])

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over what ``state`` returned, of these buckets or of others with the same
        parameters.

        The state of selectors and values is taken over where a bucket has the same parameters.
        Raises InputError when it is another memory's, or a parameter has another number of
        elements; then all is as before.
        """
        loaded = Checkpoint.read(state, self.recipe.memory.name)
        buckets = {
            name: self._new_buckets(layout, loaded) for name, layout in self._layouts.items()
        }
        self._buckets, self._loaded = buckets, loaded

    def _flat(self, name: str, flat: Tensor) -> Tensor:
        if flat.dim() != 1 or flat.dtype != float32:
            raise GradientError(
                f"bucket {name!r} is {flat.dtype} {tuple(flat.shape)}: a flat float32 vector is "
                "needed"
            )
        layout = self._layouts.setdefault(name, Layout.whole(name, flat.numel()))
        if flat.numel() != layout.size:
            raise GradientError(
                f"bucket {name!r} had {layout.size} elements and now has {flat.numel()}"
            )
        return flat.detach().contiguous()

    def _buckets_of(self, name: str) -> list[Bucket]:
        if name not in self._buckets:
            self._buckets[name] = self._new_buckets(self._layouts[name], self._loaded)
        return self._buckets[name]

    def _new_buckets(self, layout: Layout, loaded: Checkpoint) -> list[Bucket]:
        """A bucket for all of ``layout`` or one for each part, each with what ``loaded`` holds for
        it."""
        recipe, buckets = self.recipe, [Bucket(layout, self.recipe)]
        if recipe.layers:
            buckets = [
                Bucket(Layout.of([(p.name, p.shape)]), recipe.for_part(p.size)) for p in layout
            ]
        for bucket in buckets:
            loaded.hand_over(bucket)
        return buckets

    def _message(self, name: str, packed: list[EncodedBucket]) -> EncodedBucket:
        """One message of all parameters'."""
        buffer = self._joined.setdefault(name, PayloadBuffer())
        payload = join([part.payload for part in packed], buffer)
        size, count = sum(part.size for part in packed), sum(part.count for part in packed)
        residual_mass, sent = sum(part.held for part in packed), sum(part.sent for part in packed)
        shares = tuple(share for part in packed for share in part.parts)
        return EncodedBucket(payload, size, count, together(packed), residual_mass, sent, shares)


def _densities(density: float | Sequence[float], count: int) -> list[float]:
    """One for each of ``count`` buckets, all in (0, 1]."""
    given = [density] * count if isinstance(density, float | int) else list(density)
    if len(given) != count:
        raise InputError(f"{len(given)} densities for {count} parameters")
    for share in given:
        check_density(share)
    return given


def _split(flat: Tensor, layout: Layout) -> list[Tensor]:
    """Views of the parts."""
    return [flat[part.offset : part.offset + part.size] for part in layout]


def together(packed: Sequence[EncodedBucket]) -> Selection | None:
    """One report for all of them: passes by their share of the elements."""
    if len(packed) == 1:
        return packed[0].selection
    both = [(part.size, part.selection) for part in packed if part.selection is not None]
    if len(both) < len(packed):
        return None
    size = sum(share for share, _ in both) or 1
    passes = sum(share * selection.passes for share, selection in both) / size
    return Selection(passes, ties=sum(selection.ties for _, selection in both))
