"""How matrices and their factors are written: ``lowrank``'s section, little-endian.

offset   size   field
0        4      p, number of matrices
4        12·p   rows, columns and rank of each, uint32; rank 0: the matrix itself is sent
4+12·p   …      of each, float32: rank × rows of P, then rank × columns of Q; or rows × columns
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from testbed.compress.base import Bytes, Floats
from testbed.compress.layout import Part
from testbed.compress.values.groups import check_shapes
from testbed.compress.values.section import WORD, expect, numbers, put
from testbed.errors import InputError, WireError

MOST = 64
"""Greatest rank."""
LIMIT = 1.5e38
"""Of all entries of Q together that one entry of P·Qᵀ is made of: no sum of theirs overflows."""
_LONGEST = 1 << 32
_HEAD = WORD
_SHAPE = 3 * WORD


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a matrix; ``rank`` 0: it is sent as it is."""

    rows: int
    columns: int
    rank: int

    @classmethod
    def of(cls, part: Part, rank: int) -> Shape:
        """``rank`` where factors are shorter. Raises InputError for dimensions that do not fit 32 bits."""
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
    """Of all of them."""
    return _HEAD + sum(_SHAPE + WORD * shape.numbers for shape in shapes)


def put_shapes(section: Bytes, shapes: list[Shape]) -> int:
    """Into the beginning of the section; returns where the matrices begin."""
    table = [number for shape in shapes for number in (shape.rows, shape.columns, shape.rank)]
    return put(section, 0, np.array([len(shapes), *table], np.uint32))


def read_shapes(section: Bytes, count: int) -> list[Shape]:
    """Raises WireError unless they have ``count`` elements and the section is as long as they say."""
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
    """P (rank, rows) and Q (rank, columns). Raises WireError for entries of which no sum need be finite."""
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
