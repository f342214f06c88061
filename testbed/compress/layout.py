"""Layout of a bucket's flat vector (parameters, places, shapes), and its pieces that travel by
themselves: shards of equal size, or layer by layer. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby, pairwise
from math import prod

from testbed.errors import InputError


@dataclass(frozen=True, slots=True)
class Part:
    """One parameter's place in a flat vector: elements ``offset`` to ``offset + size``,
    row-major."""

    name: str
    offset: int
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Elements."""
        return prod(self.shape)

    @property
    def rows(self) -> tuple[int, int]:
        """The parameter as a matrix: first dimension, all others. Scalars and vectors are one
        row."""
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
        """In the order of the parameters: those in succession that belong to one module."""
        layers: list[Layer] = []
        for name, parts in groupby(self.parts, key=lambda part: part.name.rpartition(".")[0]):
            layers.append(Layer(name, tuple(parts)))
        return layers

    def __iter__(self) -> Iterator[Part]:
        return iter(self.parts)

    def at(self, position: int) -> Part:
        """The part that element ``position`` belongs to."""
        return next(p for p in reversed(self.parts) if p.offset <= position)


_WIDTH = 4
"""Bytes of a float32."""

WHOLE = "whole"
"""The bucket that holds the whole model, where there is one server."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Elements ``begin`` to ``end`` of the vector: a bucket by itself, ``number`` in frames."""

    number: int
    name: str
    begin: int
    layout: Layout

    @property
    def end(self) -> int:
        """The element after its last."""
        return self.begin + self.layout.size

    @property
    def span(self) -> slice:
        """Where it is in the vector."""
        return slice(self.begin, self.end)


def cut(layout: Layout, count: int) -> list[Shard]:
    """``count`` shards. Cuts are between two rows of a parameter, as near to equal sizes as that
    allows.

    Raises InputError when there are fewer rows than that.
    """
    if count == 1:
        return [Shard(0, WHOLE, 0, layout)]
    cuts = [0]
    for i in range(1, count):
        near = _row_near(layout, layout.size * i // count)
        cuts.append(near if near > cuts[-1] else _next_row(layout, cuts[-1]))
    cuts.append(layout.size)
    for i in range(count - 1, 0, -1):  # the last ones may have been pushed to the end
        if cuts[i] >= cuts[i + 1]:
            cuts[i] = _row_before(layout, cuts[i + 1])
    if any(before >= after for before, after in pairwise(cuts)):
        raise InputError(
            f"a model of {layout.size} parameters cannot be spread over {count} servers",
            hint="Use fewer servers, or a larger model",
        )
    return [
        Shard(number, f"shard-{number}", begin, Layout.of(_pieces(layout, begin, end)))
        for number, (begin, end) in enumerate(pairwise(cuts))
    ]


def pieces(layout: Layout, servers: int, bucket_bytes: int) -> list[Shard]:
    """Return the shards that travel by themselves, by number.

    They are buckets of layers, which go round among ``servers``, or one shard for each server.
    Raises InputError when that is too few for the servers.
    """
    if not bucket_bytes:
        return cut(layout, servers)
    buckets = in_buckets(layout, bucket_bytes)
    if len(buckets) < servers:
        raise InputError(
            f"the model makes {len(buckets)} buckets of {int(bucket_bytes)} B or more, for "
            f"{servers} servers",
            hint="Use smaller `bucket_bytes`, or fewer servers",
        )
    return buckets


def in_buckets(layout: Layout, least_bytes: int) -> list[Shard]:
    """Layers from the last to the first, which is the order in which a backward pass computes them.

    Layers join the bucket before them until it has ``least_bytes`` or more (float32); none is
    parted.
    """
    buckets: list[Shard] = []
    layers = layout.layers()
    end = len(layers)
    for number in reversed(range(end)):
        begin = layers[number].begin
        if number == 0 or _WIDTH * (layers[end - 1].end - begin) >= least_bytes:
            parts = [part for layer in layers[number:end] for part in layer.parts]
            own = Layout.of((part.name, part.shape) for part in parts)
            buckets.append(Shard(len(buckets), f"bucket-{len(buckets)}", begin, own))
            end = number
    return buckets


def _row(part: Part) -> int:
    """Elements that stay together: a matrix's row; of vectors and scalars each for itself."""
    return prod(part.shape[1:]) if len(part.shape) > 1 else 1


def _row_near(layout: Layout, position: int) -> int:
    part = layout.at(position)
    return part.offset + round((position - part.offset) / _row(part)) * _row(part)


def _next_row(layout: Layout, position: int) -> int:
    """Where the row ends that begins at ``position``; the end of all, behind the last."""
    return position + _row(layout.at(position)) if position < layout.size else position


def _row_before(layout: Layout, position: int) -> int:
    """Where the row begins that ends at ``position``; 0, before the first."""
    part = layout.at(max(0, position - 1))
    return part.offset + max(0, position - 1 - part.offset) // _row(part) * _row(part)


def _pieces(layout: Layout, begin: int, end: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of what lies between; of a parameter that is cut, which rows."""
    for part in layout:
        first, last = max(begin, part.offset), min(end, part.offset + part.size)
        if first >= last:
            continue
        if last - first == part.size:
            yield part.name, part.shape
        else:
            row = _row(part)
            rows = (first - part.offset) // row, (last - part.offset) // row
            yield f"{part.name}[{rows[0]}:{rows[1]}]", (rows[1] - rows[0], *part.shape[1:])
