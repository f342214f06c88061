"""The operations on the host: numba's loops over tensors' memory, shared out among threads."""

from __future__ import annotations

from collections.abc import Callable
from math import fsum
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from testbed.compress.kernels import Moments, Statistics, Workspace, pool
from testbed.compress.kernels import loops_choose as choosing
from testbed.compress.kernels import loops_digits as digits
from testbed.compress.kernels import loops_measure as measuring
from testbed.compress.kernels import loops_moments as moment
from testbed.compress.kernels import loops_sparse as sparse
from testbed.compress.kernels.chosen import Chosen, joined
from testbed.compress.kernels.grid import CHUNK, DIGITS, as_float32, chunks

Floats = NDArray[np.float32]


class Host:
    """See ``Operations``. Has no state: one is as good as another."""

    def measure(self, flat: Tensor) -> Statistics:
        """A sum for each chunk, then of the chunks."""
        x, partial = floats(flat), _Partial(flat)

        def part(_: int, first: int, last: int) -> None:
            measuring.measure(x[first:last], *partial.of(first, last))

        pool.over(x.size, part)
        return partial.statistics()

    def add(self, first: Tensor, second: Tensor, out: Tensor) -> Statistics:
        """As ``measure``, row by row after the addition."""
        a, b, p, partial = floats(first), floats(second), floats(out), _Partial(out)
        _same_size(a, b, p)

        def part(_: int, start: int, end: int) -> None:
            sums, tops = partial.of(start, end)
            measuring.add(a[start:end], b[start:end], p[start:end], sums, tops)

        pool.over(p.size, part)
        return partial.statistics()

    def moments(self, flat: Tensor, threshold: float = 0.0) -> Moments:
        """A row of sums for each chunk, then of the chunks."""
        x, least = floats(flat), as_float32(threshold)
        counts, sums = np.zeros((chunks(x.size), 2), np.int64), np.zeros((chunks(x.size), 3))

        def part(_: int, first: int, last: int) -> None:
            rows = slice(first // CHUNK, chunks(last))
            moment.moments(x[first:last], least, counts[rows], sums[rows])

        pool.over(x.size, part)
        count, nonzero = counts.sum(axis=0)
        return Moments(int(count), int(nonzero), *(_total(column) for column in sums.T))

    def count_from(self, flat: Tensor, threshold: float) -> int:
        """Counts add up exactly."""
        x, least = floats(flat), as_float32(threshold)
        found = pool.over(x.size, lambda _, first, last: choosing.count(x[first:last], least))
        return sum(found)

    def choose_from(
        self, flat: Tensor, threshold: float, space: Workspace
    ) -> tuple[Tensor, Tensor]:
        """Each thread fills buffers of its own; the first one's are made longer by the others'."""
        x, least = floats(flat), as_float32(threshold)

        def part(number: int, first: int, last: int) -> Chosen:
            found = Chosen(space, number, last - first)
            found.take(x[first:last], least, first)
            return found

        return joined(pool.over(x.size, part))

    def digit_counts(self, flat: Tensor, digit: int = 0, prefix: int = 0) -> Tensor:
        """Counts add up exactly."""
        bits = floats(flat).view(np.uint32)
        shift, width = DIGITS[digit]

        def part(_: int, first: int, last: int) -> NDArray[np.int64]:
            counts = np.zeros((1 if digit else digits.BESIDE, 1 << width), np.uint32)
            if digit:
                digits.below(bits[first:last], shift, width, prefix, counts)
            else:
                digits.first(bits[first:last], shift, counts)
            total: NDArray[np.int64] = counts.sum(axis=0, dtype=np.int64)
            return total

        return torch.from_numpy(np.sum(pool.over(bits.size, part), axis=0))

    def take_away(self, flat: Tensor, indices: Tensor, values: Tensor) -> None:
        """Indices occur once: threads do not meet."""
        _scatter(sparse.take_away, flat, indices, values)

    def add_at(self, flat: Tensor, indices: Tensor, values: Tensor) -> None:
        """Indices occur once: threads do not meet."""
        _scatter(sparse.add_at, flat, indices, values)


def floats(tensor: Tensor) -> Floats:
    """The memory of a float32 vector. Raises TypeError for anything else: loops are compiled for it alone."""
    if tensor.dtype != torch.float32 or tensor.dim() != 1 or not tensor.is_contiguous():
        raise TypeError(f"a contiguous float32 vector is needed, not {tensor.dtype} {tensor.shape}")
    view: Floats = tensor.detach().numpy()
    return view


class _Partial:
    """Sums and greatest magnitudes of all chunks of a vector."""

    def __init__(self, flat: Tensor) -> None:
        self._sums = np.zeros(chunks(flat.numel()))
        self._tops = np.zeros(chunks(flat.numel()), np.int32)

    def of(self, first: int, last: int) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
        """Those of elements ``first``, which begins a chunk, to ``last``."""
        rows = slice(first // CHUNK, chunks(last))
        return self._sums[rows], self._tops[rows]

    def statistics(self) -> Statistics:
        """Of the whole vector."""
        if not self._sums.size:
            return Statistics(0.0, 0.0)
        return Statistics(_total(self._sums), float(self._tops.max().view(np.float32)))


def _total(sums: NDArray[np.float64]) -> float:
    """Rounded once: in whatever order they are taken."""
    return fsum(sums.tolist())


def _same_size(*arrays: Floats) -> None:
    """Loops do not check."""
    if len({array.size for array in arrays}) != 1:
        raise ValueError(f"vectors of {', '.join(str(array.size) for array in arrays)} elements")


def _scatter(loop: Callable[..., Any], flat: Tensor, indices: Tensor, values: Tensor) -> None:
    x, at, v = floats(flat), indices.numpy(), floats(values)
    if at.shape != v.shape or at.dtype != np.int64 or not at.flags.c_contiguous:
        raise ValueError(f"{at.dtype} {at.shape} indices for {v.size} values")

    def part(_: int, first: int, last: int) -> int:
        return first + int(loop(x, at[first:last], v[first:last])) - last

    if any(pool.over(at.size, part)):
        raise IndexError(f"indices outside a vector of {x.size} elements")
