"""Elements that share two means: a whole vector, or the rows of matrices."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from testbed.compress.base import Bytes, Floats
from testbed.compress.kernels.grid import CHUNK
from testbed.errors import WireError

Lengths = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Groups:
    """Consecutive groups, cut into segments where chunks begin, so that threads can share them out.

    ``edges`` int64 (s + 1,): where segments begin and end. ``owners`` int64 (s,): each one's group.
    """

    count: int
    lengths: Lengths
    edges: Lengths
    owners: Lengths

    @classmethod
    def of(cls, lengths: Lengths) -> Groups:
        """Groups of so many elements each."""
        ends = np.cumsum(lengths)
        size = int(ends[-1])
        edges = np.union1d(np.concatenate(([0], ends)), np.arange(0, size, CHUNK))
        return cls(len(lengths), lengths, edges, np.searchsorted(ends, edges[:-1], side="right"))

    @classmethod
    def whole(cls, size: int) -> Groups:
        """One group."""
        return cls.of(np.array([size], np.int64))

    def measure(self, values: Floats, body: Bytes) -> tuple[Floats, NDArray[np.float64]]:
        """Write one sign bit for each value; means float32 (g, 2) and sums float64 (g, 2).

        Column 0 is of the values that are not below 0, column 1 of those that are; the mean of none is 0.
        """
        from testbed.compress.kernels import loops_signs, pool

        sums, negative = np.zeros((len(self.owners), 2)), np.zeros(len(self.owners), np.int64)

        def part(_: int, a: int, b: int) -> None:
            first, last = np.searchsorted(self.edges, (a, b))
            loops_signs.measure(
                values[a:b], a, self.edges[first : last + 1],
                sums[first:last], negative[first:last], body[a // 8 : -(-b // 8)],
            )  # fmt: skip

        pool.over(values.size, part)
        totals = np.zeros((self.count, 2))
        np.add.at(totals, self.owners, sums)
        counts = self.both_counts(negative)
        return (totals / np.maximum(counts, 1)).astype(np.float32) + np.float32(0.0), totals

    def both_counts(self, negative: Lengths) -> Lengths:
        """int64 (g, 2): how many values of each group are not below 0, and are, from the segments' counts."""
        counts = np.zeros((self.count, 2), np.int64)
        np.add.at(counts[:, 1], self.owners, negative)
        counts[:, 0] = self.lengths - counts[:, 1]
        return counts

    def spread(self, means: Floats, body: Bytes, out: Floats) -> Lengths:
        """Set ``out`` to each value's mean, by its sign bit; returns ``both_counts``."""
        from testbed.compress.kernels import loops_signs, pool

        own, negative = means[self.owners], np.zeros(len(self.owners), np.int64)

        def part(_: int, a: int, b: int) -> None:
            first, last = np.searchsorted(self.edges, (a, b))
            loops_signs.read(
                body[a // 8 : -(-b // 8)], a, self.edges[first : last + 1],
                own[first:last], negative[first:last], out[a:b],
            )  # fmt: skip

        pool.over(out.size, part)
        return self.both_counts(negative)


def check_shapes(rows: NDArray[np.uint64], columns: NDArray[np.uint64], count: int) -> None:
    """Raise WireError unless matrices of these shapes have ``count`` elements in all, and none is empty."""
    sizes = rows * columns  # of 32 bits each: the product fits
    if not sizes.all() or int(sizes.sum(dtype=np.float64)) != count:  # exact as far as counts go
        raise WireError(f"matrices that are not of {count} values in all")
