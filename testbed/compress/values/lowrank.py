"""PowerSGD: matrices as products of two thin ones; the layout of its section, little-endian.

offset   size   field
0        4      p, number of matrices
4        12·p   rows, columns and rank of each, uint32; rank 0: the matrix itself is sent
4+12·p   …      of each, float32: rank × rows of P, then rank × columns of Q; or rows × columns
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from testbed.compress.base import Allocator, Bytes, Floats, Options, Values, allocate
from testbed.compress.layout import Layout, Part
from testbed.compress.values.section import WORD, expect, numbers, put, usable
from testbed.compress.values.sign import check_shapes
from testbed.errors import InputError, WireError

MOST = 64
"""Greatest rank."""
LIMIT = 1.5e38
"""Limit of the entries of Q together that one entry of P·Qᵀ is made of: no sum of theirs
overflows."""
_LONGEST = 1 << 32
_HEAD = WORD
_SHAPE = 3 * WORD


@dataclass(frozen=True, slots=True)
class Shape:
    """Shape of a matrix; ``rank`` 0: it is sent as it is."""

    rows: int
    columns: int
    rank: int

    @classmethod
    def of(cls, part: Part, rank: int) -> Shape:
        """``rank`` where factors are shorter. Raises InputError for dimensions beyond 32 bits."""
        rows, columns = part.rows
        if max(rows, columns) >= _LONGEST:
            raise InputError(f"parameter {part.name!r} is too long for value coding 'lowrank'")
        shorter = rank * (rows + columns) < rows * columns
        return cls(rows, columns, rank if shorter else 0)

    @property
    def size(self) -> int:
        """Elements."""
        return self.rows * self.columns

    @property
    def numbers(self) -> int:
        """Float32 that are sent for it."""
        return self.rank * (self.rows + self.columns) if self.rank else self.size


def section_bytes(shapes: Iterable[Shape]) -> int:
    """Return the length of a section with all ``shapes``, in bytes."""
    return _HEAD + sum(_SHAPE + WORD * shape.numbers for shape in shapes)


def put_shapes(section: Bytes, shapes: list[Shape]) -> int:
    """Into the beginning of the section; returns where the matrices begin."""
    table = [number for shape in shapes for number in (shape.rows, shape.columns, shape.rank)]
    return put(section, 0, np.array([len(shapes), *table], np.uint32))


def read_shapes(section: Bytes, count: int) -> list[Shape]:
    """Raises WireError unless they have ``count`` elements and the section has their length."""
    (matrices,) = numbers(section, 0, 1)
    if section.size < _HEAD + _SHAPE * matrices:
        raise WireError(f"{matrices} matrices in a value section of {section.size} B")
    table = section[_HEAD : _HEAD + _SHAPE * matrices].view("<u4").reshape(-1, 3)
    rows, columns, ranks = table.astype(np.uint64).T
    check_shapes(rows, columns, count)
    if (ranks > MOST).any() or (ranks * (rows + columns) >= rows * columns)[ranks > 0].any():
        raise WireError("a matrix would be longer in factors than as it is")
    shapes = [Shape(*row) for row in table.tolist()]
    expect(section, section_bytes(shapes), count)
    return shapes


def read_factors(section: Bytes, at: int, shape: Shape) -> tuple[Floats, Floats]:
    """P (rank, rows) and Q (rank, columns). Raises WireError where a sum might not be finite."""
    middle = at + WORD * shape.rank * shape.rows
    left = section[at:middle].view("<f4").astype(np.float32)
    right = section[middle : at + WORD * shape.numbers].view("<f4").astype(np.float32)
    if not ((np.abs(left) <= 1.0).all() and (np.abs(right) <= LIMIT / shape.rank).all()):
        raise WireError("factors of a matrix are out of range")
    return left.reshape(shape.rank, -1), right.reshape(shape.rank, -1)


def read_whole(section: Bytes, at: int, shape: Shape) -> Floats:
    """A matrix that is not factored, (rows, columns). Raises WireError for NaN and infinity."""
    matrix = section[at : at + WORD * shape.numbers].view("<f4").astype(np.float32)
    if not np.isfinite(matrix).all():
        raise WireError("a value is not finite")
    return matrix.reshape(shape.rows, shape.columns)


class LowRankOptions(Options):
    """Options of ``lowrank``."""

    rank: Annotated[int, Field(ge=1, le=MOST)] = Field(2, description="Rank of the products (r).")


class LowRank(Values[LowRankOptions]):
    """M ≈ P·Qᵀ of rank r, by one power iteration from the last step's Q (Vogels et al., NeurIPS
    2019).

        P ← M·Q,  P ← Gram–Schmidt of P,  Q ← Mᵀ·P

    A parameter is the matrix ``Part.rows``; vectors, and matrices that would be no shorter, are
    sent as float32. 32·r·(rows + columns)/(rows·columns) bits each. Biased: it needs
    ``memory="feedback"``.

    The original all-reduces P, then Q: all workers work on one Q, and the result is one iteration
    for the mean gradient. Here, in one round of a parameter server, each worker sends factors of
    its own gradient and keeps a Q of its own. So the mean of W workers has a rank of up to r·W and
    keeps more of each, the server multiplies out before it adds, the way down is as long as without
    factors, and one round trip is saved.

    Section: ``factors``. Every element of the bucket must be sent.
    """

    name, model, code = "lowrank", LowRankOptions, 10
    keeps_zero = False

    def __init__(self, layout: Layout, **options: Any) -> None:
        super().__init__(layout, **options)
        self._size = layout.size
        self._parts = [part for part in layout if part.size]
        self._shapes = [Shape.of(part, self.options.rank) for part in self._parts]
        self._bytes = section_bytes(self._shapes)
        self._rights: dict[str, Floats] = {}

    def section_bytes(self, count: int) -> int:
        """Follows from the layout. Raises InputError unless all elements are sent."""
        if count != self._size:
            raise InputError(
                f"value coding 'lowrank' writes whole matrices, not {count} of {self._size} "
                "elements",
                hint="Use it with the selector 'dense'",
            )
        return self._bytes

    def write(self, values: Floats, section: Bytes, rng: Random) -> Floats:
        """Two passes over every matrix, and one that multiplies the factors out."""
        from testbed.compress.kernels import lowrank

        seed, given = rng.getrandbits(64), usable(values, np.float32)
        self.section_bytes(given.size)
        kept = self._scratch.array("kept", given.size, np.float32)
        at, drawn = put_shapes(section, self._shapes), 0
        for part, shape in zip(self._parts, self._shapes, strict=True):
            own = slice(part.offset, part.offset + part.size)
            if not shape.rank:
                kept[own] = given[own]
                at = put(section, at, given[own])
                continue
            matrix = given[own].reshape(shape.rows, shape.columns)
            left, right = self._factors(part.name, matrix, shape, (seed, drawn))
            drawn += right.size
            at = put(section, put(section, at, left.ravel()), right.ravel())
            lowrank.product(left, right, kept[own].reshape(matrix.shape))
        return kept

    @classmethod
    def read(cls, section: Bytes, count: int, room: Allocator = allocate) -> Floats:
        """The products, and what was sent as it is."""
        from testbed.compress.kernels import lowrank

        shapes = read_shapes(section, count)
        out, done = room(count), 0
        at = section.size - sum(4 * shape.numbers for shape in shapes)
        for shape in shapes:
            matrix = out[done : done + shape.size].reshape(shape.rows, shape.columns)
            if shape.rank:
                lowrank.product(*read_factors(section, at, shape), matrix)
            else:
                matrix[:] = read_whole(section, at, shape)
            done, at = done + shape.size, at + 4 * shape.numbers
        return out

    def state(self) -> dict[str, Any]:
        """The last Q of every matrix, float32 (rank, columns), its rows of length 1, by
        parameter."""
        return {name: right.copy() for name, right in self._rights.items()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over what fits; a matrix without one, or of another rank, begins anew."""
        for part, shape in zip(self._parts, self._shapes, strict=True):
            right = np.asarray(state.get(part.name, ()), np.float32)
            fits = right.shape == (shape.rank, shape.columns) and np.isfinite(right).all()
            if shape.rank and fits:
                self._rights[part.name] = right.copy()

    def _factors(
        self, name: str, matrix: Floats, shape: Shape, drawn: tuple[int, int]
    ) -> tuple[Floats, Floats]:
        """P (rank, rows), orthonormal, and Q (rank, columns), float32; in buffers.

        ``drawn``: a seed, and how many of its numbers belong to other matrices.
        """
        from testbed.compress.kernels import lowrank

        lefts, left = self._room("left", (shape.rank, shape.rows))
        rights, right = self._room("right", (shape.rank, shape.columns))
        rights[:] = self._start(name, right.shape, drawn)
        lowrank.times(matrix, rights, lefts)
        lowrank.orthonormal(lefts)
        left[:] = lefts
        lowrank.times_transposed(matrix, left, rights)
        limit = LIMIT / shape.rank
        np.clip(rights, -limit, limit, out=right, casting="same_kind")
        lengths = np.sqrt(np.square(rights).sum(axis=1, keepdims=True))
        lengths[lengths == 0.0] = 1.0
        np.divide(rights, lengths, out=self._rights[name], casting="same_kind")
        return left, right

    def _start(self, name: str, shape: tuple[int, ...], drawn: tuple[int, int]) -> Floats:
        """The last Q; numbers from [−1, 1) in the place of rows that are missing or 0."""
        from testbed.compress.kernels import random_loops

        right = self._rights.setdefault(name, np.zeros(shape, np.float32))
        dead = ~right.any(axis=1)
        if dead.any():
            shares = np.empty(right.size, np.float32)
            random_loops.fill(np.uint64(drawn[0]), drawn[1], shares)
            right[dead] = (2.0 * shares - 1.0).reshape(shape)[dead]
        return right

    def _room(self, name: str, shape: tuple[int, int]) -> tuple[NDArray[np.float64], Floats]:
        """The same in float64 and in float32."""
        size = shape[0] * shape[1]
        doubles = self._scratch.array(f"{name} 64", size, np.float64)
        floats = self._scratch.array(f"{name} 32", size, np.float32)
        return doubles.reshape(shape), floats.reshape(shape)
