"""Passes over a whole gradient: sums and maxima, moments, digit counts, selection at a threshold,
and additions at a few places.

Sums and greatest magnitudes, and the addition that comes before them.

Sums are kept in lanes (``compilation.LANES``): each adds up its elements of a chunk in order,
lanes are then added up in pairs. Bits instead of numbers give the maximum, which thus sees NaN as
well.

Count, sum, sum of squares and sum of logarithms of magnitudes, in one pass.

A logarithm for each element would take longer than all the rest. Here a lane multiplies its
elements' significands, in [1, 2), and adds up their exponents: Σ ln x = ln Π significands + ln 2 ·
Σ exponents. One logarithm then does for all elements that a lane has in a chunk.

A block of elements is compared at once (``simd``); its hits are then taken from the lowest bit
to the highest, so that elements that are not chosen cost next to nothing, whatever the density.
"""

from __future__ import annotations

from math import log

import numpy as np
from numpy.typing import NDArray

from testbed.compress.kernels import simd
from testbed.compress.kernels.compilation import BLOCK, CHUNK, LANES, MAGNITUDE, PIECE, compiled
from testbed.compress.kernels.simd import hits, lowest, ones

Floats = NDArray[np.float32]
Sums = NDArray[np.float64]
Tops = NDArray[np.int32]


@compiled
def fold(lanes: Sums) -> float:
    """The sum of ``LANES`` lanes, which are void afterwards."""
    width = LANES
    while width > 1:
        width //= 2
        for lane in range(width):
            lanes[lane] += lanes[width + lane]
    return float(lanes[0])


@compiled
def padded(rest: Floats, filling: np.float32) -> Floats:
    """A last row of fewer than ``LANES`` elements, made whole."""
    row = np.empty(LANES, np.float32)
    row[:] = filling
    for i in range(rest.size):
        row[i] = rest[i]
    return row


@compiled
def measure(flat: Floats, sums: Sums, tops: Tops) -> None:
    """Σ|x| and the bits of max|x| of each chunk of ``flat``."""
    lanes, tall = np.empty(LANES, np.float64), np.empty(LANES, np.int32)
    for chunk in range(sums.size):
        lanes[:], tall[:] = 0.0, 0
        part = flat[chunk * CHUNK : (chunk + 1) * CHUNK]
        simd.take_in(part, lanes, tall)
        rest = part[part.size // LANES * LANES :]
        if rest.size:
            simd.take_in(padded(rest, np.float32(0.0)), lanes, tall)
        sums[chunk], tops[chunk] = fold(lanes), tall.max()


@compiled
def add_piece(first: Floats, second: Floats, out: Floats, lanes: Sums, tall: Tops) -> None:
    """``out`` ← ``first`` + ``second``, and its magnitudes into the lanes."""
    simd.add(first, second, out, lanes, tall)
    whole = out.size // LANES * LANES
    for i in range(whole, out.size):
        out[i] = first[i] + second[i]
    if whole < out.size:
        simd.take_in(padded(out[whole:], np.float32(0.0)), lanes, tall)


@compiled
def add(first: Floats, second: Floats, out: Floats, sums: Sums, tops: Tops) -> None:
    """``out`` ← ``first`` + ``second``, and ``measure`` of it while it is at hand."""
    lanes, tall = np.empty(LANES, np.float64), np.empty(LANES, np.int32)
    for chunk in range(sums.size):
        lanes[:], tall[:] = 0.0, 0
        start, end = chunk * CHUNK, min((chunk + 1) * CHUNK, out.size)
        add_piece(first[start:end], second[start:end], out[start:end], lanes, tall)
        sums[chunk], tops[chunk] = fold(lanes), tall.max()


def _warm_sums() -> None:
    flat, sums, tops = np.ones(3, np.float32), np.zeros(1), np.zeros(1, np.int32)
    measure(flat, sums, tops)
    add(flat, flat, flat, sums, tops)


Counts = NDArray[np.int64]

_BITS = np.int64(52)
_SIGNIFICAND = np.int64((1 << 52) - 1)
_BIAS = np.int64(1023)
_ONE = np.int64(1023 << 52)
"""The bits of 1.0 in float64: an exponent of 0."""
_LN_2 = log(2.0)

COUNT, NONZERO = 0, 1
"""Columns of a chunk's counts."""
ABS, SQUARES, LOG = 0, 1, 2
"""Columns of a chunk's sums."""


@compiled
def _settle(products: Sums, exponents: Counts) -> None:
    """Products back to [1, 2): a piece multiplies fewer factors than float64 has room for, 1023."""
    bits = products.view(np.int64)
    for lane in range(LANES):
        exponents[lane] += (bits[lane] >> _BITS) - _BIAS
        bits[lane] = bits[lane] & _SIGNIFICAND | _ONE


@compiled
def _logarithms(products: Sums, exponents: Counts, nonzero: int) -> float:
    """The sum over all lanes; exponents come with float64's bias, once for each element that is not
    0."""
    total, power = 0.0, -_BIAS * nonzero
    for lane in range(LANES):
        total += log(products[lane])
        power += exponents[lane]
    return total + power * _LN_2


@compiled
def moments(flat: Floats, threshold: np.float32, counts: Counts, sums: Sums) -> None:
    """Fill a row of ``counts`` and ``sums`` per chunk for magnitudes at or above the threshold."""
    lanes, exponents = np.empty((3, LANES), np.float64), np.empty(LANES, np.int64)
    total, squares, products = lanes[ABS], lanes[SQUARES], lanes[LOG]
    for chunk in range(len(counts)):
        total[:], squares[:], products[:], exponents[:] = 0.0, 0.0, 1.0, 0
        count, nonzero = 0, 0
        end = min((chunk + 1) * CHUNK, flat.size)
        for start in range(chunk * CHUNK, end, PIECE):
            piece = flat[start : min(start + PIECE, end)]
            rest = piece[piece.size // LANES * LANES :]
            for part in (piece, padded(rest, np.float32(np.nan))[: LANES if rest.size else 0]):
                both = simd.add_moments(part, threshold, total, squares, products, exponents)
                count, nonzero = count + both[COUNT], nonzero + both[NONZERO]
            _settle(products, exponents)
        counts[chunk, COUNT], counts[chunk, NONZERO] = count, nonzero
        sums[chunk, ABS], sums[chunk, SQUARES] = fold(total), fold(squares)
        sums[chunk, LOG] = _logarithms(products, exponents, nonzero)


def _warm_moments() -> None:
    counts, sums = np.zeros((1, 2), np.int64), np.zeros((1, 3))
    moments(np.ones(3, np.float32), np.float32(0.5), counts, sums)


Bits = NDArray[np.uint32]
DigitCounts = NDArray[np.uint32]
"""Up to 2³² elements of a value; a vector of more would be 16 GiB."""

_MAGNITUDE = np.uint32(MAGNITUDE)
BESIDE = 4
"""Counts that are kept beside each other: most elements share a few values, and an increment has to
wait for the one before it in the same place."""
_ROW = 4096
"""Digits that are taken out at once, by vector instructions, before they are counted one by one."""


@compiled
def first(bits: Bits, shift: int, counts: DigitCounts) -> None:
    """Add to ``counts`` (``BESIDE``, values) those of the magnitudes' bits from ``shift`` on."""
    by, row = np.uint32(shift), np.empty(_ROW, np.uint32)
    for start in range(0, bits.size, _ROW):
        part = bits[start : start + _ROW]
        for i in range(part.size):
            row[i] = (part[i] & _MAGNITUDE) >> by
        whole = part.size // BESIDE * BESIDE
        for i in range(0, whole, BESIDE):
            digits = row[i : i + BESIDE]
            for lane in range(BESIDE):
                counts[lane, digits[lane]] += np.uint32(1)
        for i in range(whole, part.size):
            counts[0, row[i]] += np.uint32(1)


@compiled
def below(bits: Bits, shift: int, width: int, prefix: int, counts: DigitCounts) -> None:
    """Add to ``counts`` (1, values) those of ``width`` bits from ``shift`` on, below the bits
    ``prefix``."""
    by, above, wanted = np.uint32(shift), np.uint32(shift + width), np.uint32(prefix)
    mask = np.uint32((1 << width) - 1)
    for i in range(bits.size):
        magnitude = bits[i] & _MAGNITUDE
        if magnitude >> above == wanted:
            counts[0, (magnitude >> by) & mask] += np.uint32(1)


def _warm_digits() -> None:
    bits, counts = np.zeros(3, np.uint32), np.zeros((BESIDE, 2048), np.uint32)
    first(bits, 20, counts)
    below(bits, 9, 11, 0, counts)


Indices = NDArray[np.int64]


@compiled
def count(flat: Floats, threshold: np.float32) -> int:
    """How many |x| ≥ ``threshold``."""
    whole = flat.size // BLOCK * BLOCK
    total = 0
    for start in range(0, whole, BLOCK):
        total += ones(hits(flat, start, threshold))
    for i in range(whole, flat.size):
        total += abs(flat[i]) >= threshold
    return total


@compiled
def choose(
    flat: Floats, threshold: np.float32, base: int, indices: Indices, values: Floats, filled: int
) -> tuple[int, int]:
    """Append each |x| ≥ ``threshold`` of ``flat`` and its index, counted from ``base``.

    Returns how far it came and how many elements are filled: the end of ``flat``, or a multiple of
    ``BLOCK`` where the next block's hits might not have fitted.
    """
    whole = flat.size // BLOCK * BLOCK
    room = indices.size - BLOCK
    for start in range(0, whole, BLOCK):
        if filled > room:
            return start, filled
        mask = hits(flat, start, threshold)
        while mask != np.uint64(0):
            i = start + lowest(mask)
            indices[filled], values[filled] = base + i, flat[i]
            filled += 1
            mask &= mask - np.uint64(1)
    if filled > room:
        return whole, filled
    for i in range(whole, flat.size):
        if abs(flat[i]) >= threshold:
            indices[filled], values[filled] = base + i, flat[i]
            filled += 1
    return flat.size, filled


def _warm_choose() -> None:
    flat, least = np.ones(3, np.float32), np.float32(0.5)
    indices, values = np.zeros(2 * BLOCK, np.int64), np.zeros(2 * BLOCK, np.float32)
    count(flat, least)
    choose(flat, least, 0, indices, values, 0)


@compiled
def add_at(flat: Floats, indices: Indices, values: Floats) -> int:
    """``flat[indices] += values`` up to the first index outside; returns how many were inside."""
    size = np.uint64(flat.size)
    for i in range(indices.size):
        at = np.uint64(indices[i])  # below 0 becomes huge
        if at >= size:
            return i
        flat[at] += values[i]
    return indices.size


@compiled
def subtract_at(flat: Floats, indices: Indices, values: Floats) -> int:
    """``flat[indices] -= values``; otherwise as ``add_at``."""
    size = np.uint64(flat.size)
    for i in range(indices.size):
        at = np.uint64(indices[i])
        if at >= size:
            return i
        flat[at] -= values[i]
    return indices.size


def warm_sparse() -> None:
    """Call the additions at a few places once."""
    flat, indices = np.ones(3, np.float32), np.zeros(2, np.int64)
    add_at(flat, indices, flat[:2])
    subtract_at(flat, indices, flat[:2])


WARM = (_warm_sums, _warm_moments, _warm_digits, _warm_choose, warm_sparse)
