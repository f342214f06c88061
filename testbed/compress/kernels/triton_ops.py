"""The operations on a CUDA device as kernels that Triton compiles: each reads a vector once.

Programs are as many for every device. Each takes every so many tiles of the vector, and leaves
sums of its own; these few go to the host, which adds them in order: the same result every time,
with one wait. Nothing is assumed of where a vector begins in memory: each kernel is compiled once.
"""

from __future__ import annotations

import os

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.errors import TritonError

from testbed.compress.kernels import compilation
from testbed.compress.kernels.base import Fetching, GradientStatistics, Moments, Workspace
from testbed.compress.kernels.compilation import DIGITS, as_float32
from testbed.compress.kernels.torch_ops import CudaKernels
from testbed.compress.kernels.triton_selection import (
    LONG_TILE,
    SHORT_TILE,
    kernel,
    launch,
    left_of,
    select_above,
    size_of,
)

PROGRAMS, TILE = 1024, 2048
"""Most programs of a launch; elements that a program handles at once (``SHORT_TILE`` where it keeps
many sums beside each other)."""
COPIES = 64
"""Histograms that programs share out among them: fewer meet at one counter."""

_WINDOW, _ABOVE = tl.constexpr(256), tl.constexpr(16)
"""Values of the first digit that are counted without meeting (32 octaves), and those of them above
the greatest of a program's first tile."""


@kernel
def _magnitudes(flat: tl.tensor, at: tl.tensor, left: tl.tensor) -> tl.tensor:
    """float32; from ``left`` on −∞, which is at or above no threshold."""
    return tl.where(at < left, tl.abs(tl.load(flat + at, at < left, 0.0)), -float("inf"))


@kernel
def _digits(
    flat: tl.tensor, at: tl.tensor, left: tl.tensor, first: tl.tensor, shift: tl.tensor
) -> tl.tensor:
    """int32: a digit of the magnitudes, the least of which with the right bits above is ``first``:
    below 0 for smaller ones, and from ``left`` on."""
    bits = _magnitudes(flat, at, left).to(tl.int32, bitcast=True)
    return tl.where(at < left, (bits - first) >> shift, -1)


@kernel
def _summed(
    first: tl.tensor,
    second: tl.tensor,
    out: tl.tensor,
    rows: tl.tensor,
    size: tl.tensor,
    adds: tl.constexpr,
    tile: tl.constexpr,
) -> None:
    """``out`` ← ``first`` + ``second``, where ``adds``; Σ|out| and the bits of max|out| of each
    program."""
    own, programs = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    each = tl.arange(0, tile)
    total, top = tl.zeros((tile,), tl.float64), tl.zeros((tile,), tl.int32)
    for number in range(own, tl.cdiv(size, tile), programs):
        start = number * tile
        inside = each < left_of(size, start, tile)
        x = tl.load(first + start + each, inside, 0.0)
        if adds:
            x += tl.load(second + start + each, inside, 0.0)
            tl.store(out + start + each, x, inside)
        total += tl.abs(x).to(tl.float64)
        top = tl.maximum(top, tl.abs(x).to(tl.int32, bitcast=True))
    tl.store(rows + own, tl.sum(total, 0))
    tl.store(rows + programs + own, tl.max(top, 0).to(tl.float64))


@kernel
def _counted(
    flat: tl.tensor, counts: tl.tensor, threshold: tl.tensor, size: tl.tensor, tile: tl.constexpr
) -> None:
    """How many magnitudes of each program are ≥ ``threshold``."""
    own = tl.program_id(0).to(tl.int64)
    each = tl.arange(0, tile)
    count = tl.zeros((tile,), tl.int32)
    for number in range(own, tl.cdiv(size, tile), tl.num_programs(0)):
        x = _magnitudes(flat + number * tile, each, left_of(size, number * tile, tile))
        count += (x >= threshold).to(tl.int32)
    tl.store(counts + own, tl.sum(count, 0))


@kernel
def _moments(
    flat: tl.tensor, rows: tl.tensor, threshold: tl.tensor, size: tl.tensor, tile: tl.constexpr
) -> None:
    """Five sums of each program, in the order of ``Moments``."""
    own, programs = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    each = tl.arange(0, tile)
    count, nonzero = tl.zeros((tile,), tl.int32), tl.zeros((tile,), tl.int32)
    total, squares = tl.zeros((tile,), tl.float64), tl.zeros((tile,), tl.float64)
    logs = tl.zeros((tile,), tl.float64)
    for number in range(own, tl.cdiv(size, tile), programs):
        x = _magnitudes(flat + number * tile, each, left_of(size, number * tile, tile))
        chosen = x >= threshold
        above = chosen & (x > 0)
        kept = tl.where(chosen, x, 0.0).to(tl.float64)
        count += chosen.to(tl.int32)
        nonzero += above.to(tl.int32)
        total += kept
        squares += kept * kept
        logs += tl.log(tl.where(above, kept, 1.0))
    rows += own
    tl.store(rows, tl.sum(count, 0).to(tl.float64))
    tl.store(rows + programs, tl.sum(nonzero, 0).to(tl.float64))
    tl.store(rows + 2 * programs, tl.sum(total, 0))
    tl.store(rows + 3 * programs, tl.sum(squares, 0))
    tl.store(rows + 4 * programs, tl.sum(logs, 0))


@kernel
def _first_digits(
    flat: tl.tensor,
    counts: tl.tensor,
    copies: tl.tensor,
    size: tl.tensor,
    shift: tl.tensor,
    bins: tl.tensor,
    tile: tl.constexpr,
) -> None:
    """Counts of the first digit. Most values are near the greatest, or 0: these are counted in
    registers; each other one where all are."""
    own, programs = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    each = tl.arange(0, tile)
    counts += own % copies * bins
    top = tl.max(_digits(flat + own * tile, each, left_of(size, own * tile, tile), 0, shift), 0)
    low = tl.maximum(top + _ABOVE - _WINDOW, 0)
    near, zeros = tl.zeros((_WINDOW,), tl.int32), tl.zeros((tile,), tl.int32)
    for number in range(own, tl.cdiv(size, tile), programs):
        start = number * tile
        digit = _digits(flat + start, each, left_of(size, start, tile), 0, shift)
        inside = (digit >= low) & (digit < low + _WINDOW)
        near += tl.histogram(digit - low, _WINDOW, mask=inside)
        zeros += ((digit == 0) & (low > 0)).to(tl.int32)
        apart = (digit > 0) & (inside == 0)
        tl.atomic_add(counts + digit, apart.to(tl.int32), mask=apart, sem="relaxed")
    value = low + tl.arange(0, _WINDOW)
    tl.atomic_add(counts + value, near, mask=(value < bins) & (near > 0), sem="relaxed")
    tl.atomic_add(counts, tl.sum(zeros, 0), sem="relaxed")


@kernel
def _later_digits(
    flat: tl.tensor,
    counts: tl.tensor,
    copies: tl.tensor,
    size: tl.tensor,
    shift: tl.tensor,
    bins: tl.tensor,
    first: tl.tensor,
    tile: tl.constexpr,
) -> None:
    """Counts of a digit of the magnitudes from ``first`` on that have the same leading bits."""
    own = tl.program_id(0).to(tl.int64)
    each = tl.arange(0, tile)
    counts += own % copies * bins
    for number in range(own, tl.cdiv(size, tile), tl.num_programs(0)):
        start = number * tile
        digit = _digits(flat + start, each, left_of(size, start, tile), first, shift)
        counted = (digit >= 0) & (digit < bins)
        tl.atomic_add(counts + digit, counted.to(tl.int32), mask=counted, sem="relaxed")


@kernel
def _shifted(
    flat: tl.tensor,
    indices: tl.tensor,
    values: tl.tensor,
    sign: tl.tensor,
    size: tl.tensor,
    count: tl.tensor,
    tile: tl.constexpr,
) -> None:
    """``flat[indices] += sign * values``; indices occur once. Those outside are left out."""
    own = tl.program_id(0).to(tl.int64)
    each = tl.arange(0, tile)
    for number in range(own, tl.cdiv(count, tile), tl.num_programs(0)):
        i = number * tile + each
        at = tl.load(indices + i, i < count, -1)
        inside = (at >= 0) & (at < size)
        value = sign * tl.load(values + i, i < count, 0.0)
        tl.store(flat + at, tl.load(flat + at, inside, 0.0) + value, inside)


class TritonKernels(CudaKernels):
    """On a CUDA device, on its current stream. Has no state."""

    def warm(self, device: torch.device) -> None:
        """Compile every kernel, or load it, and see that it runs; quick after the first time.

        Raises RuntimeError, or what a missing or failing C compiler does: OSError or
        SubprocessError.
        """
        os.environ.setdefault("TRITON_CACHE_DIR", str(compilation.directory() / "triton"))
        ones, space = torch.ones(2, device=device), Workspace()
        try:
            with compilation.alone():
                statistics = self.add(ones, ones, torch.empty_like(ones)), self.measure(ones)
                indices, values = self.select_above(ones, 0.5, space)
                self.subtract_at(ones, indices, values)
                counts = [int(self.digit_counts(ones, digit)[0]) for digit in range(len(DIGITS))]
                numbers = self.count_above(ones, 0.5), self.moments(ones).count, *counts
        except TritonError as error:
            raise RuntimeError(f"Triton: {error}") from error
        if [each.sum_abs for each in statistics] != [4.0, 2.0] or numbers != (0, 2, 2, 2, 2):
            raise RuntimeError(f"Triton's kernels give {statistics}, {numbers}")

    def measuring(self, flat: Tensor) -> Fetching[GradientStatistics]:
        """As ``adding``, which reads one vector more and writes one."""
        return _statistics(flat, flat, flat, adds=False)

    def adding(self, first: Tensor, second: Tensor, out: Tensor) -> Fetching[GradientStatistics]:
        """A sum and a maximum of each program, then of all."""
        return _statistics(first, second, out, adds=True)

    def moments(self, flat: Tensor, threshold: float = 0.0) -> Moments:
        """Five sums of each program, then of all."""
        size, programs = size_of(flat), _programs(flat, SHORT_TILE)
        rows = flat.new_empty((5, programs), dtype=torch.float64)
        launch(_moments, programs, flat, rows, float(as_float32(threshold)), size, tile=SHORT_TILE)
        count, nonzero, *totals = rows.cpu().numpy().sum(axis=1).tolist()
        return Moments(int(count), int(nonzero), *totals)  # exact up to 2⁵³

    def count_above(self, flat: Tensor, threshold: float) -> int:
        """A number of each program, then of all."""
        size, programs = size_of(flat), _programs(flat, TILE)
        counts = flat.new_empty(programs, dtype=torch.int32)
        launch(_counted, programs, flat, counts, float(as_float32(threshold)), size, tile=TILE)
        return int(counts.cpu().numpy().sum(dtype=np.int64))

    def select_above(
        self, flat: Tensor, threshold: float, space: Workspace
    ) -> tuple[Tensor, Tensor]:
        """Picked elements of each program, put one behind the other."""
        return select_above(flat, threshold, space)

    def counting_digits(self, flat: Tensor, digit: int, prefix: int) -> Fetching[Tensor]:
        """In several histograms, which are added: integers, in whatever order."""
        size, programs = size_of(flat), _programs(flat, LONG_TILE)
        shift, width = DIGITS[digit]
        counts = flat.new_zeros((COPIES, 1 << width), dtype=torch.int32)
        arguments = (flat, counts, COPIES, size, shift, 1 << width)
        if digit:
            launch(_later_digits, programs, *arguments, prefix << shift + width, tile=LONG_TILE)
        else:
            launch(_first_digits, programs, *arguments, tile=LONG_TILE)
        (total,) = yield [counts.sum(dim=0, dtype=torch.int64)]
        return total

    def subtract_at(
        self, flat: Tensor, indices: Tensor, values: Tensor, *, known: bool = False
    ) -> None:
        """Indices occur once: programs do not meet."""
        _shift(flat, indices, values, -1.0, known)

    def add_at(self, flat: Tensor, indices: Tensor, values: Tensor, *, known: bool = False) -> None:
        """Indices occur once: programs do not meet."""
        _shift(flat, indices, values, 1.0, known)


def _statistics(
    first: Tensor, second: Tensor, out: Tensor, *, adds: bool
) -> Fetching[GradientStatistics]:
    sizes = {size_of(first), size_of(second), size_of(out)}
    if len(sizes) != 1:
        raise ValueError(f"vectors of {', '.join(map(str, sorted(sizes)))} elements")
    programs = _programs(out, TILE)
    if not programs:
        return GradientStatistics(0.0, 0.0)
    rows = out.new_empty((2, programs), dtype=torch.float64)
    launch(_summed, programs, first, second, out, rows, sizes.pop(), adds=adds, tile=TILE)
    (host,) = yield [rows]
    sums, tops = host.numpy()
    return GradientStatistics(float(sums.sum()), float(np.int32(tops.max()).view(np.float32)))


def _shift(flat: Tensor, indices: Tensor, values: Tensor, sign: float, known: bool) -> None:
    size, count = size_of(flat), size_of(values)
    if indices.shape != values.shape or indices.dtype != torch.int64 or indices.stride() != (1,):
        raise ValueError(f"{indices.dtype} {tuple(indices.shape)} indices for {count} values")
    if not count:
        return
    programs = _programs(values, SHORT_TILE)
    launch(_shifted, programs, flat, indices, values, sign, size, count, tile=SHORT_TILE)
    if known:
        return
    first, last = torch.stack((indices[0], indices[-1])).tolist()
    if first < 0 or last >= size:
        raise IndexError(f"indices outside a vector of {size} elements")


def _programs(flat: Tensor, tile: int) -> int:
    return int(min(PROGRAMS, triton.cdiv(flat.numel(), tile)))
