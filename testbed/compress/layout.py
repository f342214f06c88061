"""What a bucket's flat vector is made of: the parameters, their places and their shapes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from math import prod


@dataclass(frozen=True, slots=True)
class Part:
    """One parameter's place in a flat vector: elements ``offset`` to ``offset + size``, row-major."""

    name: str
    offset: int
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Elements."""
        return prod(self.shape)

    @property
    def rows(self) -> tuple[int, int]:
        """The parameter as a matrix: first dimension, all others. Scalars and vectors are one row."""
        if len(self.shape) < 2:
            return 1, self.size
        return self.shape[0], prod(self.shape[1:])


@dataclass(frozen=True, slots=True)
class Layer:
    """The parameters that one module owns: what is computed, and needed, at one time."""

    name: str
    """The module's path; empty for the whole model's own parameters."""
    parts: tuple[Part, ...]

    @property
    def begin(self) -> int:
        """Its first element."""
        return self.parts[0].offset

    @property
    def end(self) -> int:
        """The element after its last."""
        return self.parts[-1].offset + self.parts[-1].size


@dataclass(frozen=True, slots=True)
class Layout:
    """Parts that follow one another without a gap from element 0 on."""

    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        offset = 0
        for part in self.parts:
            if part.offset != offset:
                raise ValueError(f"{part.name!r} begins at {part.offset} where {offset} is next")
            offset += part.size

    @classmethod
    def of(cls, shapes: Iterable[tuple[str, tuple[int, ...]]]) -> Layout:
        """Parts in the order given, e.g. the names and shapes of a module's parameters."""
        parts, offset = [], 0
        for name, shape in shapes:
            parts.append(Part(name, offset, tuple(shape)))
            offset += parts[-1].size
        return cls(tuple(parts))

    @classmethod
    def whole(cls, name: str, size: int) -> Layout:
        """One nameless vector."""
        return cls((Part(name, 0, (size,)),))

    @property
    def size(self) -> int:
        """Elements of the vector."""
        return self.parts[-1].offset + self.parts[-1].size if self.parts else 0

    def layers(self) -> list[Layer]:
        """In the order of the parameters: those that follow one another and belong to the same module."""
        found: list[Layer] = []
        for name, parts in groupby(self.parts, key=lambda part: part.name.rpartition(".")[0]):
            found.append(Layer(name, tuple(parts)))
        return found

    def __iter__(self) -> Iterator[Part]:
        return iter(self.parts)

    def at(self, position: int) -> Part:
        """The part that element ``position`` belongs to."""
        return next(p for p in reversed(self.parts) if p.offset <= position)
