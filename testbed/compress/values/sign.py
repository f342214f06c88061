"""SignSGD (one bit each, one scale for all), and 1-bit SGD (signs and the means of both groups)."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from testbed.compress.base import (
    Allocator,
    Bytes,
    Floats,
    Options,
    PositiveFloat32,
    Values,
    allocate,
)
from testbed.compress.kernels.compilation import CHUNK
from testbed.compress.layout import Layout
from testbed.compress.values.section import (
    WORD,
    expect,
    no_remainder,
    numbers,
    pieces,
    put,
    scales,
    usable,
)
from testbed.errors import InputError, WireError

Lengths = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ValueGroups:
    """Consecutive groups, cut into segments where chunks begin, so that threads can share them out.

    ``edges`` int64 (s + 1,): where segments begin and end. ``owners`` int64 (s,): each one's group.
    """

    count: int
    lengths: Lengths
    edges: Lengths
    owners: Lengths

    @classmethod
    def of(cls, lengths: Lengths) -> ValueGroups:
        """Groups of so many elements each."""
        ends = np.cumsum(lengths)
        size = int(ends[-1])
        edges = np.union1d(np.concatenate(([0], ends)), np.arange(0, size, CHUNK))
        return cls(len(lengths), lengths, edges, np.searchsorted(ends, edges[:-1], side="right"))

    @classmethod
    def whole(cls, size: int) -> ValueGroups:
        """One group."""
        return cls.of(np.array([size], np.int64))

    def measure(self, values: Floats, body: Bytes) -> tuple[Floats, NDArray[np.float64]]:
        """Write one sign bit for each value; means float32 (g, 2) and sums float64 (g, 2).

        Column 0 is of the values that are not below 0, column 1 of those that are; the mean of none
        is 0.
        """
        from testbed.compress.kernels import cpu, sign_codecs

        sums, negative = np.zeros((len(self.owners), 2)), np.zeros(len(self.owners), np.int64)

        def part(_: int, a: int, b: int) -> None:
            first, last = np.searchsorted(self.edges, (a, b))
            sign_codecs.measure(
                values[a:b],
                a,
                self.edges[first : last + 1],
                sums[first:last],
                negative[first:last],
                body[a // 8 : -(-b // 8)],
            )

        cpu.over(values.size, part)
        totals = np.zeros((self.count, 2))
        np.add.at(totals, self.owners, sums)
        counts = self.both_counts(negative)
        return (totals / np.maximum(counts, 1)).astype(np.float32) + np.float32(0.0), totals

    def both_counts(self, negative: Lengths) -> Lengths:
        """int64 (g, 2): how many values of each group are not below 0, and are, from the segments'
        counts."""
        counts = np.zeros((self.count, 2), np.int64)
        np.add.at(counts[:, 1], self.owners, negative)
        counts[:, 0] = self.lengths - counts[:, 1]
        return counts

    def spread(self, means: Floats, body: Bytes, out: Floats) -> Lengths:
        """Set ``out`` to each value's mean, by its sign bit; returns ``both_counts``."""
        from testbed.compress.kernels import cpu, sign_codecs

        own, negative = means[self.owners], np.zeros(len(self.owners), np.int64)

        def part(_: int, a: int, b: int) -> None:
            first, last = np.searchsorted(self.edges, (a, b))
            sign_codecs.read(
                body[a // 8 : -(-b // 8)],
                a,
                self.edges[first : last + 1],
                own[first:last],
                negative[first:last],
                out[a:b],
            )

        cpu.over(out.size, part)
        return self.both_counts(negative)


def check_shapes(rows: NDArray[np.uint64], columns: NDArray[np.uint64], count: int) -> None:
    """Raise WireError unless matrices of these shapes have ``count`` elements in all, and none is
    empty."""
    sizes = rows * columns  # of 32 bits each: the product fits
    if not sizes.all() or int(sizes.sum(dtype=np.float64)) != count:  # exact as far as counts go
        raise WireError(f"matrices that are not of {count} values in all")


_HEAD = WORD


class SignOptions(Options):
    """Options of ``sign``."""

    scale: Literal["mean", "one"] | PositiveFloat32 = Field(
        "mean", description="Of the signs: the mean magnitude, 1, or a number."
    )


class Sign(Values[SignOptions]):
    """The sign of each value, that of 0 being +, times a scale: 1 + 32/N bits each.

    ``scale="mean"``: ‖p‖₁/N (EF-signSGD, Karimireddy et al., ICML 2019). ``"one"``: 1 (signSGD,
    Bernstein et al., ICML 2018). A number: Strom's τ (Interspeech 2015), for use with the selector
    ``threshold``. Where the scale is 0 every value is read as 0.

    Section: scale, float32; one bit for each value, 1 for those below 0, lowest bit of the first
    byte first.
    """

    name, model, code = "sign", SignOptions, 5
    keeps_zero = False

    def section_bytes(self, count: int) -> int:
        """A bit for each, and four bytes."""
        return _HEAD + pieces(count, 8)

    def write(self, values: Floats, section: Bytes, rng: Random) -> Floats:
        """One pass, and one over the bits."""
        from testbed.compress.kernels import cpu, sign_codecs

        del rng
        given, body = usable(values, np.float32), section[_HEAD:]
        whole = ValueGroups.whole(given.size)
        given_scale = self.options.scale
        if given_scale == "mean":
            _, sums = whole.measure(given, body)
            scale = np.float32((sums[0, 0] - sums[0, 1]) / max(given.size, 1))
        else:
            scale = np.float32(1.0 if given_scale == "one" else given_scale)
            cpu.over(
                given.size,
                lambda _, a, b: sign_codecs.write(given[a:b], body[a // 8 : pieces(b, 8)]),
            )
        if scale == 0.0:
            body[:] = 0
        put(section, 0, np.array([scale], np.float32))
        kept = self._scratch.array("kept", given.size, np.float32)
        whole.spread(np.array([[scale, -scale]], np.float32), body, kept)
        return kept

    @classmethod
    def read(cls, section: Bytes, count: int, room: Allocator = allocate) -> Floats:
        """± the scale."""
        expect(section, _HEAD + pieces(count, 8), count)
        (scale,) = scales(section, 0, 1)
        body, out = usable(section[_HEAD:], np.uint8), room(count)
        no_remainder(body, count)
        means = np.array([[scale, -scale]], np.float32)
        counts = ValueGroups.whole(count).spread(means, body, out)
        if scale == 0.0 and counts[0, 1]:
            raise WireError("values of scale 0 have signs")
        return out


_SHAPE = 2 * WORD
_MEANS = 2 * WORD


class OneBitOptions(Options):
    """Options of ``onebit``."""

    per: Literal["tensor", "row"] = Field("tensor", description="Values that share two means.")


class OneBit(Values[OneBitOptions]):
    """Values that are not below 0 become their mean, the others theirs (Seide et al., Interspeech
    2014).

    ``per="tensor"``: over all that is sent, 1 + 64/N bits each. ``per="row"``: over each row of
    every parameter's matrix (``Part.rows``; the paper's columns: all weights into one unit), 1 +
    64/columns bits; where only some elements are sent, over all of them. The paper finds error
    feedback indispensable: ``memory="feedback"``.

    Section: number of matrices, uint32, 0 for one group; rows and columns of each, uint32; for each
    group the mean of what is not below 0 and of what is, float32; bits as in ``sign``.
    """

    name, model, code = "onebit", OneBitOptions, 4
    keeps_zero = False

    def __init__(self, layout: Layout, **options: Any) -> None:
        super().__init__(layout, **options)
        by_row = self.options.per == "row"
        shapes = [part.rows for part in layout if part.size] if by_row else []
        if max((max(shape) for shape in shapes), default=0) >= 1 << 32:
            raise InputError("value coding 'onebit': a parameter is too long for per 'row'")
        self._shapes = np.array(shapes, np.uint32).reshape(-1, 2)
        self._size = layout.size
        self._rows = ValueGroups.of(_lengths(self._shapes)) if shapes else None

    def section_bytes(self, count: int) -> int:
        """A bit for each value, eight bytes for each group and each matrix, and four."""
        groups, shapes = self._groups(count)
        return _HEAD + shapes.nbytes + _MEANS * groups.count + pieces(count, 8)

    def write(self, values: Floats, section: Bytes, rng: Random) -> Floats:
        """One pass, and one over the bits."""
        del rng
        given = usable(values, np.float32)
        groups, shapes = self._groups(given.size)
        body = section[_HEAD + shapes.nbytes + _MEANS * groups.count :]
        means, _ = groups.measure(given, body)
        put(section, 0, np.array([len(shapes)], np.uint32))
        put(section, put(section, _HEAD, shapes.ravel()), means.ravel())
        kept = self._scratch.array("kept", given.size, np.float32)
        groups.spread(means, body, kept)
        return kept

    def _groups(self, count: int) -> tuple[ValueGroups, NDArray[np.uint32]]:
        """And the shapes that go with them."""
        if self._rows is not None and count == self._size:
            return self._rows, self._shapes
        return ValueGroups.whole(count), self._shapes[:0]

    @classmethod
    def read(cls, section: Bytes, count: int, room: Allocator = allocate) -> Floats:
        """Every value's mean."""
        groups, start = _read_groups(section, count)
        end = start + _MEANS * groups.count
        means = scales(section, start, 2 * groups.count, signed=True).reshape(-1, 2)
        if (means[:, 0] < 0.0).any() or (means[:, 1] > 0.0).any():
            raise WireError("a mean has the wrong sign")
        body, out = usable(section[end:], np.uint8), room(count)
        no_remainder(body, count)
        counts = groups.spread(means, body, out)
        if means[counts == 0].any():
            raise WireError("a group without values has a mean")
        return out


def _read_groups(section: Bytes, count: int) -> tuple[ValueGroups, int]:
    """And where their means begin. Nothing is made of them before the length is known."""
    (matrices,) = numbers(section, 0, 1)
    end = _HEAD + _SHAPE * matrices
    if not matrices:
        expect(section, end + _MEANS + pieces(count, 8), count)
        return ValueGroups.whole(count), end
    if section.size < end:
        raise WireError(f"{matrices} matrices in a value section of {section.size} B")
    shapes = section[_HEAD:end].view("<u4").reshape(-1, 2)
    rows, columns = shapes.astype(np.uint64).T
    check_shapes(rows, columns, count)
    expect(section, end + _MEANS * int(rows.sum()) + pieces(count, 8), count)
    return ValueGroups.of(_lengths(shapes)), end


def _lengths(shapes: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Columns of every row of all matrices."""
    return np.repeat(shapes[:, 1].astype(np.int64), shapes[:, 0])
