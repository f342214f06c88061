"""All buckets of one worker: gradients in, payloads out, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from torch import Tensor, float32

from testbed.compress.base import Selection
from testbed.compress.bucket import Bucket, Packed
from testbed.compress.checkpoint import Checkpoint
from testbed.compress.elements import check_density
from testbed.compress.layers import join, read_message
from testbed.compress.layout import Layout
from testbed.compress.payload import PayloadBuffer, Scratch
from testbed.compress.recipe import Choice, Recipe
from testbed.errors import GradientError, InputError, WireError
from testbed.node import Buffer


class Compressor:
    """Compresses buckets by name. One per worker: the memories in it belong to that worker's gradients.

    ``layouts``: what each bucket is made of; a bucket that is not in it is one parameter of that name.
    """

    def __init__(self, recipe: Recipe, layouts: Mapping[str, Layout] | None = None) -> None:
        self.recipe, self.weigh, self.itemise = recipe, False, False
        """Whether messages say how much of what there was they carry, and of which parameters (``Packed.parts``)."""
        self._layouts = dict(layouts or {})
        self._buckets: dict[str, list[Bucket]] = {}
        self._joined: dict[str, PayloadBuffer] = {}
        self._scratch = Scratch()
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
        return cls(Recipe(Choice(selector), Choice(values), Choice(memory)), layouts)

    def compress(
        self, name: str, flat: Tensor, density: float | Sequence[float], rng: Random
    ) -> Packed:
        """The message of bucket ``name``; it holds until the next one of that bucket.

        ``flat``: float32 (n,), any device, any stride; it is not changed. ``density``: one for all, or,
        where parameters are compressed by themselves, one for each of them.

        Raises GradientError for NaN or infinity, a wrong shape or dtype; InputError for a density
        outside (0, 1], or too many or too few of them. Whatever is raised of these, all is as before.
        """
        flat = self._flat(name, flat)
        buckets = self._buckets_of(name)
        densities = _densities(density, len(buckets))
        parts = _split(flat, self._layouts[name]) if self.recipe.layers else [flat]
        # all are looked at before any memory takes something in
        given = [bucket.compensate(part) for bucket, part in zip(buckets, parts, strict=True)]
        packed = [
            bucket.compress(compensated, share, rng, weigh=self.weigh, itemise=self.itemise)
            for bucket, compensated, share in zip(buckets, given, densities, strict=True)
        ]
        return self._message(name, packed) if self.recipe.layers else packed[0]

    def decompress(self, name: str, payload: Buffer, out: Tensor) -> None:
        """Set ``out`` (float32 (n,), any device) to what ``payload`` holds, zeros elsewhere.

        Raises WireError for bytes that are no payload of that bucket, or of another size than ``out``.
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

        ``memory``: what was left out, tensors by the name of the parameter; ``kind``: whose memory it
        is; ``learnt``: what selectors and values know, by bucket.
        """
        return self._loaded.to_json([b for own in self._buckets.values() for b in own])

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over what ``state`` returned, of these buckets or of others with the same parameters.

        What selectors and values have learnt is taken over where a bucket has the same parameters.
        Raises InputError when it is another memory's, or a parameter has another number of elements;
        then all is as before.
        """
        loaded = Checkpoint.read(state, self.recipe.memory.name)
        buckets = {name: self._made(layout, loaded) for name, layout in self._layouts.items()}
        self._buckets, self._loaded = buckets, loaded

    def _flat(self, name: str, flat: Tensor) -> Tensor:
        if flat.dim() != 1 or flat.dtype != float32:
            raise GradientError(
                f"bucket {name!r} is {flat.dtype} {tuple(flat.shape)}: a flat float32 vector is needed"
            )
        layout = self._layouts.setdefault(name, Layout.whole(name, flat.numel()))
        if flat.numel() != layout.size:
            raise GradientError(
                f"bucket {name!r} had {layout.size} elements and now has {flat.numel()}"
            )
        return flat.detach().contiguous()

    def _buckets_of(self, name: str) -> list[Bucket]:
        if name not in self._buckets:
            self._buckets[name] = self._made(self._layouts[name], self._loaded)
        return self._buckets[name]

    def _made(self, layout: Layout, loaded: Checkpoint) -> list[Bucket]:
        """A bucket for all of ``layout`` or one for each part, each with what ``loaded`` holds for it."""
        recipe, buckets = self.recipe, [Bucket(layout, self.recipe)]
        if recipe.layers:
            buckets = [
                Bucket(Layout.of([(p.name, p.shape)]), recipe.for_part(p.size)) for p in layout
            ]
        for bucket in buckets:
            loaded.hand_over(bucket)
        return buckets

    def _message(self, name: str, packed: list[Packed]) -> Packed:
        """One message of all parameters'."""
        buffer = self._joined.setdefault(name, PayloadBuffer())
        payload = join([one.payload for one in packed], buffer)
        size, count = sum(one.size for one in packed), sum(one.count for one in packed)
        before, sent = sum(one.before for one in packed), sum(one.sent for one in packed)
        parts = tuple(share for one in packed for share in one.parts)
        return Packed(payload, size, count, together(packed), before, sent, parts)


def _densities(density: float | Sequence[float], count: int) -> list[float]:
    """One for each of ``count`` buckets, all in (0, 1]."""
    given = [density] * count if isinstance(density, float | int) else list(density)
    if len(given) != count:
        raise InputError(f"{len(given)} densities for {count} parameters")
    for one in given:
        check_density(one)
    return given


def _split(flat: Tensor, layout: Layout) -> list[Tensor]:
    """Views of the parts."""
    return [flat[part.offset : part.offset + part.size] for part in layout]


def together(packed: Sequence[Packed]) -> Selection | None:
    """One report for all of them: passes by their share of the elements."""
    if len(packed) == 1:
        return packed[0].how
    hows = [(one.size, one.how) for one in packed if one.how is not None]
    if len(hows) < len(packed):
        return None
    size = sum(share for share, _ in hows) or 1
    passes = sum(share * how.passes for share, how in hows) / size
    return Selection(passes, ties=sum(how.ties for _, how in hows))
