"""How long each layer of a model computes: forward and backward, in seconds of model time. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from testbed.errors import InputError

Source = Literal["constant", "measured", "estimated"]


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """Of one layer, named as ``compress.layout.Layer`` is. What is computed between layers is in that before it."""

    name: str
    forward_s: float
    backward_s: float


@dataclass(frozen=True, slots=True)
class Profile:
    """Of a whole model, in the order of its forward pass. ``about``: where the times are from, for people."""

    layers: tuple[LayerTimes, ...]
    source: Source
    about: str = ""

    @classmethod
    def constant(cls, names: Sequence[str], pace_s: float) -> Profile:
        """All layers alike; the backward pass takes twice as long as the forward pass."""
        each = pace_s / (3 * len(names))
        layers = tuple(LayerTimes(name, each, 2 * each) for name in names)
        return cls(layers, "constant", "the same time for every layer")

    @property
    def total_s(self) -> float:
        """Of one forward and one backward pass."""
        return sum(layer.forward_s + layer.backward_s for layer in self.layers)

    def scaled(self, total_s: float) -> Profile:
        """As long as that in all, and every layer in proportion."""
        factor = total_s / self.total_s
        layers = tuple(
            LayerTimes(one.name, one.forward_s * factor, one.backward_s * factor)
            for one in self.layers
        )
        return Profile(layers, self.source, self.about)

    def of(self, names: Sequence[str]) -> Profile:
        """The same, checked. Raises InputError unless it is of exactly the layers ``names``, in their order."""
        own = [layer.name for layer in self.layers]
        if own == list(names):
            return self
        wrong = next((n for n in own if n not in names), None) or next(
            (n for n in names if n not in own), None
        )
        raise InputError(
            "the profile is of another model: "
            + (
                f"layer {wrong!r} is in one of them only"
                if wrong is not None
                else "its layers are in another order"
            )
        )
