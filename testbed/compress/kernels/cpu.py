"""Operations on the host: numba's loops over tensors' memory, shared out among threads: the only
place in ``compress`` that knows of threads.

Parts are whole chunks, and what is made of them is put together in their order, so that the number
of threads, which is PyTorch's, shows in the time alone. Loops run without the interpreter's lock.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from itertools import pairwise
from math import fsum
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from testbed.compress.kernels import passes
from testbed.compress.kernels.base import GradientStatistics, Moments, Workspace
from testbed.compress.kernels.compilation import BLOCK, CHUNK, DIGITS, as_float32, chunks
from testbed.compress.kernels.torch_ops import Operations

T = TypeVar("T")

_LEAST = 2
"""Chunks that are worth a thread: waking one takes as long as reading some 100,000 elements."""


def over(size: int, work: Callable[[int, int, int], T]) -> list[T]:
    """``work(number, first, last)`` for each part of ``range(size)``; what it returns, in order.

    There is always one part at least. With one thread the caller does it all, and no pool is made.
    """
    own, *others = parts(size)
    if not others:
        return [work(0, *own)]
    executor = _executor(os.getpid())
    started = [executor.submit(work, i, *part) for i, part in enumerate(others, start=1)]
    try:
        mine = work(0, *own)
    finally:
        wait(started)  # also after an error: nobody may still write when the caller goes on
    return [mine, *(future.result() for future in started)]


def parts(size: int) -> list[tuple[int, int]]:
    """First and last element of each thread's share: whole chunks, about as many for each."""
    count = chunks(size)
    threads = max(1, min(torch.get_num_threads(), count // _LEAST))
    edges = [min(size, count * thread // threads * CHUNK) for thread in range(threads + 1)]
    return list(pairwise(edges))


@cache
def _executor(process: int) -> ThreadPoolExecutor:
    """Threads are started when first needed, and a forked process needs its own."""
    del process
    return ThreadPoolExecutor(os.cpu_count(), "kernels")


_FIRST_SHARE = 32
"""A buffer begins with room for one in so many; what a training needs is known after its first
step."""
_INDICES, _VALUES = torch.empty(0, dtype=torch.int64), torch.empty(0)


class Chosen:
    """Elements that thread ``number`` chose among ``size``: ``count`` indices and values."""

    def __init__(self, space: Workspace, number: int, size: int) -> None:
        self._space, self._names = space, (f"indices {number}", f"values {number}")
        self.count = 0
        least = size // _FIRST_SHARE + 2 * BLOCK
        for name, like in zip(self._names, (_INDICES, _VALUES), strict=True):
            space.whole(name, least, like)

    def room(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """All of both buffers, of the same length."""
        indices, values = (self._space.tensors[name].numpy() for name in self._names)
        length = min(indices.size, values.size)
        return indices[:length], values[:length]

    def take(self, flat: NDArray[np.float32], threshold: np.float32, base: int) -> None:
        """Append each |x| ≥ ``threshold`` of ``flat``, whose first element has index ``base``."""
        done = 0
        while done < flat.size:
            advanced, self.count = passes.choose(
                flat[done:], threshold, base + done, *self.room(), self.count
            )
            done += advanced
            if done < flat.size:
                self.grow(2 * len(self.room()[0]))

    def grow(self, least: int) -> None:
        """Make room for ``least`` elements; those that were taken stay."""
        for name in self._names:
            self._space.grown(name, least, self.count)

    def result(self) -> tuple[Tensor, Tensor]:
        """Indices and values."""
        indices, values = (self._space.tensors[name][: self.count] for name in self._names)
        return indices, values

    def append(self, other: Chosen) -> None:
        """Another thread's, which come after these."""
        first, self.count = self.count, self.count + other.count
        for own, more in zip(self.result(), other.result(), strict=True):
            own[first:] = more


def joined(parts: list[Chosen]) -> tuple[Tensor, Tensor]:
    """All that was chosen, in the first one's buffers."""
    whole, *others = parts
    whole.grow(sum(part.count for part in parts))
    for other in others:
        whole.append(other)
    return whole.result()


Floats = NDArray[np.float32]


class CpuKernels(Operations):
    """On the host. Has no state: one is as good as another."""

    def measure(self, flat: Tensor) -> GradientStatistics:
        """A sum for each chunk, then of the chunks."""
        x, partial = floats(flat), _Partial(flat)

        def part(_: int, first: int, last: int) -> None:
            passes.measure(x[first:last], *partial.of(first, last))

        over(x.size, part)
        return partial.statistics()

    def add(self, first: Tensor, second: Tensor, out: Tensor) -> GradientStatistics:
        """As ``measure``, row by row after the addition."""
        a, b, p, partial = floats(first), floats(second), floats(out), _Partial(out)
        _same_size(a, b, p)

        def part(_: int, start: int, end: int) -> None:
            sums, tops = partial.of(start, end)
            passes.add(a[start:end], b[start:end], p[start:end], sums, tops)

        over(p.size, part)
        return partial.statistics()

    def moments(self, flat: Tensor, threshold: float = 0.0) -> Moments:
        """A row of sums for each chunk, then of the chunks."""
        x, least = floats(flat), as_float32(threshold)
        counts, sums = np.zeros((chunks(x.size), 2), np.int64), np.zeros((chunks(x.size), 3))

        def part(_: int, first: int, last: int) -> None:
            rows = slice(first // CHUNK, chunks(last))
            passes.moments(x[first:last], least, counts[rows], sums[rows])

        over(x.size, part)
        count, nonzero = counts.sum(axis=0)
        return Moments(int(count), int(nonzero), *(_total(column) for column in sums.T))

    def count_above(self, flat: Tensor, threshold: float) -> int:
        """Counts add up exactly."""
        x, least = floats(flat), as_float32(threshold)
        return sum(over(x.size, lambda _, first, last: passes.count(x[first:last], least)))

    def select_above(
        self, flat: Tensor, threshold: float, space: Workspace
    ) -> tuple[Tensor, Tensor]:
        """Each thread fills buffers of its own; the first one's are made longer by the others'."""
        x, least = floats(flat), as_float32(threshold)

        def part(number: int, first: int, last: int) -> Chosen:
            own = Chosen(space, number, last - first)
            own.take(x[first:last], least, first)
            return own

        return joined(over(x.size, part))

    def digit_counts(self, flat: Tensor, digit: int = 0, prefix: int = 0) -> Tensor:
        """Counts add up exactly."""
        bits = floats(flat).view(np.uint32)
        shift, width = DIGITS[digit]

        def part(_: int, first: int, last: int) -> NDArray[np.int64]:
            counts = np.zeros((1 if digit else passes.BESIDE, 1 << width), np.uint32)
            if digit:
                passes.below(bits[first:last], shift, width, prefix, counts)
            else:
                passes.first(bits[first:last], shift, counts)
            total: NDArray[np.int64] = counts.sum(axis=0, dtype=np.int64)
            return total

        return torch.from_numpy(np.sum(over(bits.size, part), axis=0))

    def subtract_at(
        self, flat: Tensor, indices: Tensor, values: Tensor, *, known: bool = False
    ) -> None:
        """Indices occur once: threads do not meet."""
        del known
        _scatter(passes.subtract_at, flat, indices, values)

    def add_at(self, flat: Tensor, indices: Tensor, values: Tensor, *, known: bool = False) -> None:
        """Indices occur once: threads do not meet."""
        del known
        _scatter(passes.add_at, flat, indices, values)


def floats(tensor: Tensor) -> Floats:
    """The memory of a float32 vector. Raises TypeError for anything else: loops are compiled for it
    alone."""
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

    def statistics(self) -> GradientStatistics:
        """Return the statistics of the whole vector."""
        if not self._sums.size:
            return GradientStatistics(0.0, 0.0)
        return GradientStatistics(_total(self._sums), float(self._tops.max().view(np.float32)))


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

    if any(over(at.size, part)):
        raise IndexError(f"indices outside a vector of {x.size} elements")
