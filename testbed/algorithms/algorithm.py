"""What an algorithm says: a name for every part, and their options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from testbed.compress.base import Values
from testbed.compress.layout import Layout
from testbed.compress.recipe import Choice, Recipe
from testbed.errors import InputError


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One way to exchange gradients. Names in it are looked up in the registries."""

    name: str
    selector: str = "dense"
    memory: str = "none"
    controller: str = "fixed"
    options: dict[str, Any] = field(default_factory=dict)
    """Options of the controller; ``fixed`` takes ``density``."""
    values: str = "fp32"
    """How values are written on the way up."""
    down: str = "fp32"
    """How the server writes the mean."""
    selector_options: dict[str, Any] = field(default_factory=dict)
    memory_options: dict[str, Any] = field(default_factory=dict)
    values_options: dict[str, Any] = field(default_factory=dict)
    down_options: dict[str, Any] = field(default_factory=dict)
    down_memory: str = "none"
    """What the server does with what its replies lack of the mean."""
    exchange: str = "ps"
    """How it travels."""
    exchange_options: dict[str, Any] = field(default_factory=dict)
    buckets: str = "whole"
    """``whole``: the model is one vector. ``layer``: every parameter is compressed by itself."""
    dense_below: int = 0
    """With ``layer``: parameters of fewer elements are sent whole and exact."""
    bucket_bytes: int = 0
    """Layers travel in buckets of so many bytes (float32) or more, from the last to the first; 0: all in one message."""
    overlap: bool = False
    """Buckets travel while others are still computed, and the next step begins as they come back."""
    order: str = "forward"
    """Of buckets that wait to be sent, by a server or, with ``overlap``, by a worker, goes first: ``forward``, what the next
    forward pass needs first; ``backward``, what is computed first."""
    agree: bool = False
    """Controllers see the largest delay and the mean accuracy of all workers, a step later, in place of their own."""
    about: str = ""
    """A sentence for people."""

    @property
    def recipe(self) -> Recipe:
        """What a worker compresses with."""
        return Recipe(
            Choice(self.selector, self.selector_options),
            Choice(self.values, self.values_options),
            Choice(self.memory, self.memory_options),
            self.buckets == "layer",
            self.dense_below,
        )

    def downward(self, layout: Layout) -> Values:
        """What the server writes its reply with."""
        return Recipe(values=Choice(self.down, self.down_options)).make_values(layout)

    def to_json(self) -> dict[str, Any]:
        """As it stands in a manifest; ``from_json`` reads it back equal."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Algorithm:
        """Read what ``to_json`` wrote. Raises InputError when it is something else."""
        try:
            return cls(**data)
        except TypeError as error:
            raise InputError(f"this is not an algorithm: {error}") from error
