"""An algorithm's parts, and patterns: families of names that end in a number, such as
``topk-<density>``. Which algorithms there are: ``algorithms.py``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from testbed.compress.base import Recipe, RecipeChoice, Values
from testbed.compress.layout import Layout
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
    """The memory in which the server keeps what its replies lack of the mean, by name."""
    down_density: float = 1.0
    """Below 1: the server sends that share of the mean's elements, the greatest (global top-k)."""
    exchange: str = "ps"
    """How it travels."""
    exchange_options: dict[str, Any] = field(default_factory=dict)
    buckets: str = "whole"
    """``whole``: the model is one vector. ``layer``: every parameter is compressed by itself."""
    dense_below: int = 0
    """With ``layer``: parameters of fewer elements are sent whole and exact."""
    bucket_bytes: int = 0
    """Bytes (float32) of a bucket of layers, from the last to the first; 0: all in one message."""
    overlap: bool = False
    """Buckets travel while others are computed, and the next step begins as they come back."""
    order: str = "forward"
    """The bucket that goes first of those that wait, at a server or, with ``overlap``, at a worker:
    ``forward``, what the next forward pass needs first; ``backward``, what is computed first."""
    agree: bool = False
    """Controllers see all workers' largest delay and mean accuracy, a step later."""
    about: str = ""
    """A sentence for people."""

    @property
    def recipe(self) -> Recipe:
        """The recipe with which a worker compresses."""
        return Recipe(
            RecipeChoice(self.selector, self.selector_options),
            RecipeChoice(self.values, self.values_options),
            RecipeChoice(self.memory, self.memory_options),
            self.buckets == "layer",
            self.dense_below,
        )

    def downward(self, layout: Layout) -> Values[Any]:
        """Return the value coding in which the server writes its reply."""
        return Recipe(values=RecipeChoice(self.down, self.down_options)).make_values(layout)

    def parts(self, controller: str | None = None) -> list[str]:
        """Selector, values, memory, controller, down and exchange in words; values, controller and
        exchange with the options that are given. ``controller``: these words for it."""
        down = self.down if self.down_memory == "none" else f"{self.down} + {self.down_memory}"
        down += f" (density {self.down_density:g})" if self.down_density < 1 else ""
        return [
            self.selector,
            _with_options(self.values, self.values_options),
            self.memory,
            controller or _with_options(self.controller, self.options),
            down,
            _with_options(self.exchange, self.exchange_options),
        ]

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


def _with_options(name: str, given: Mapping[str, Any]) -> str:
    """A part with the options that are given."""
    options = ", ".join(f"{option} {value}" for option, value in given.items())
    return f"{name} ({options})" if options else name


_NUMBER = re.compile(r"(\d+\.?\d*|\.\d+)(e-?\d+)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Number:
    """The number in a pattern's name: its form, its meaning, an example, and which values fit."""

    word: str
    meaning: str
    example: str
    fits: Callable[[float], bool]

    def read(self, text: str) -> float | None:
        """None for what is no such number."""
        value = float(text) if _NUMBER.fullmatch(text) else -1.0
        return value if self.fits(value) else None


@dataclass(frozen=True, slots=True)
class Pattern:
    """Names of ``prefix`` and a number; ``row`` with what ``set_`` makes of it."""

    prefix: str
    number: Number
    row: Algorithm
    set_: Callable[[float], dict[str, Any]]

    def __str__(self) -> str:
        return f"{self.prefix}<{self.number.word}>"

    @property
    def about(self) -> str:
        """A sentence for people."""
        return self.row.about

    @property
    def example(self) -> str:
        """A name that matches."""
        return f"{self.prefix}{self.number.example}"

    def matches(self, name: str) -> bool:
        """Return whether ``name`` is one of these, number and all."""
        return (
            name.startswith(self.prefix)
            and self.number.read(name.removeprefix(self.prefix)) is not None
        )

    def make(self, name: str, where: str | None = None) -> Algorithm:
        """The algorithm called ``name``, which has the prefix. Raises InputError for a wrong
        number."""
        text = name.removeprefix(self.prefix)
        if (value := self.number.read(text)) is None:
            word, meaning = self.number.word, self.number.meaning
            raise InputError(
                f"algorithm {name!r}: {text!r} is no {word}: it is {meaning}",
                where=where,
                hint=f"Write for example {self.example!r}",
            )
        about = f"{self.row.about.rstrip('.')}; {self.number.word} {value:g}."
        return replace(self.row, name=name, about=about, **self.set_(value))
