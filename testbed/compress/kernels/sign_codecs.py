"""Loops that write signs with the means of both groups, and −1, 0 and 1 times a scale.

A vector is cut into segments by ``edges`` (int64 (s + 1,), ascending): rows of matrices, cut once
more where chunks begin. Parts of a vector begin at an edge, and at a multiple of 8.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from testbed.compress.kernels.bit_packing import (
    BLOCK,
    BLOCK_3,
    TRITS,
    Bytes,
    Codes,
    pack,
    pack_3,
    unpack,
    unpack_3,
)
from testbed.compress.kernels.compilation import CHUNK, LANES, MAGNITUDE, compiled
from testbed.compress.kernels.passes import fold
from testbed.compress.kernels.random_loops import fill

Floats = NDArray[np.float32]
Sums = NDArray[np.float64]
Counts = NDArray[np.int64]
Edges = NDArray[np.int64]

_LANES = 64
"""Sums beside each other within a segment: element i of a part belongs to lane i mod 64."""


@compiled
def _take_in(row: Floats, position: int, above: Sums, below: Sums) -> None:
    """Add the elements of ``row``, the first of which has ``position`` in its part, to the lanes of
    both groups."""
    lane = position % _LANES
    head = min(-position % _LANES, row.size)
    for i in range(head):
        above[lane + i] += row[i] if row[i] > np.float32(0.0) else np.float32(0.0)
        below[lane + i] += row[i] if row[i] < np.float32(0.0) else np.float32(0.0)
    for at in range(head, row.size, _LANES):
        some = row[at : at + _LANES]
        for i in range(some.size):
            above[i] += some[i] if some[i] > np.float32(0.0) else np.float32(0.0)
        for i in range(some.size):
            below[i] += some[i] if some[i] < np.float32(0.0) else np.float32(0.0)


@compiled
def _fold(lanes: Sums) -> float:
    """Their sum; they are 0 afterwards."""
    total = 0.0
    for lane in range(_LANES):
        total += lanes[lane]
        lanes[lane] = 0.0
    return total


@compiled
def _mark(row: Floats, codes: Codes) -> None:
    for i in range(row.size):
        codes[i] = np.uint8(row[i] < np.float32(0.0))


@compiled
def _ones(codes: Codes) -> int:
    total = np.uint32(0)
    for i in range(codes.size):
        total += codes[i]
    return int(total)


@compiled
def write(values: Floats, body: Bytes) -> None:
    """Bit 1 for every element below 0."""
    codes = np.empty(BLOCK, np.uint8)
    for start in range(0, values.size, BLOCK):
        row = values[start : start + BLOCK]
        _mark(row, codes)
        pack(codes, row.size, 1, body[start // 8 : (start + row.size + 7) // 8])


@compiled
def measure(
    values: Floats, first: int, edges: Edges, sums: Sums, counts: Counts, body: Bytes
) -> None:
    """``write``, and of each segment the two sums (s, 2) and how many elements are below 0 (s,).

    ``first``: index of the part's first element, which ``edges`` begin with.
    """
    codes = np.empty(BLOCK, np.uint8)
    above, below = np.zeros(_LANES, np.float64), np.zeros(_LANES, np.float64)
    segment, negative = 0, 0
    for start in range(0, values.size, BLOCK):
        stop = min(start + BLOCK, values.size)
        _mark(values[start:stop], codes)
        at = start
        while at < stop:
            end = min(edges[segment + 1] - first, stop)
            _take_in(values[at:end], at, above, below)
            negative += _ones(codes[at - start : end - start])
            at = end
            if at == edges[segment + 1] - first:
                sums[segment, 0], sums[segment, 1] = _fold(above), _fold(below)
                counts[segment] = negative
                segment, negative = segment + 1, 0
        pack(codes, stop - start, 1, body[start // 8 : (stop + 7) // 8])


@compiled
def read(body: Bytes, first: int, edges: Edges, means: Floats, counts: Counts, out: Floats) -> None:
    """Set ``out`` to ``means[segment, bit]``, float32 (s, 2), and count each segment's ones."""
    codes = np.empty(BLOCK, np.uint8)
    segment = 0
    counts[:] = 0
    for start in range(0, out.size, BLOCK):
        stop = min(start + BLOCK, out.size)
        unpack(body[start // 8 : (stop + 7) // 8], stop - start, 1, codes)
        at = start
        while at < stop:
            end = min(edges[segment + 1] - first, stop)
            above, below = means[segment, 0], means[segment, 1]
            target, marks = out[at:end], codes[at - start : end - start]
            for i in range(target.size):
                target[i] = below if marks[i] else above
            counts[segment] += _ones(marks)
            at = end
            if at == edges[segment + 1] - first:
                segment += 1


def _warm_signs() -> None:
    values, body, edges = np.ones(3, np.float32), np.zeros(1, np.uint8), np.array([0, 3])
    counts = np.zeros(1, np.int64)
    write(values, body)
    measure(values, 0, edges, np.zeros((1, 2)), counts, body)
    read(body, 0, edges, np.zeros((1, 2), np.float32), counts, values)


Tops = NDArray[np.int32]

_MAGNITUDE = np.int32(MAGNITUDE)


@compiled
def measure_ternary(flat: Floats, sums: Sums, tops: Tops) -> None:
    """Σx² and the bits of max|x| of each chunk of ``flat``."""
    lanes = np.empty(LANES, np.float64)
    for chunk in range(sums.size):
        part = flat[chunk * CHUNK : (chunk + 1) * CHUNK]
        lanes[:] = 0.0
        greatest = np.int32(0)
        for start in range(0, part.size, LANES):
            row = part[start : start + LANES]
            bits = row.view(np.int32)
            for lane in range(row.size):
                lanes[lane] += np.float64(row[lane]) * np.float64(row[lane])
            for lane in range(row.size):
                greatest = max(greatest, np.int32(bits[lane] & _MAGNITUDE))
        sums[chunk], tops[chunk] = fold(lanes), greatest


@compiled
def write_ternary(
    values: Floats, scale: np.float32, seed: np.uint64, first: int, body: Bytes, kept: Floats
) -> None:
    """Digit 1 for +scale, 2 for −scale with probability |x|/scale (1 above it), else 0.

    ``first``: index of the part's first element, a multiple of 5.
    """
    codes, shares = np.empty(BLOCK_3, np.uint8), np.empty(BLOCK_3, np.float32)
    for start in range(0, values.size, BLOCK_3):
        row, target = values[start : start + BLOCK_3], kept[start : start + BLOCK_3]
        fill(seed, first + start, shares[: row.size])
        for i in range(row.size):
            # exact in float64: 24 bits times 24 bits
            sent = np.float64(shares[i]) * scale < abs(row[i])
            negative = row[i] < np.float32(0.0)
            codes[i] = np.uint8((2 if negative else 1) if sent else 0)
            target[i] = (-scale if negative else scale) if sent else np.float32(0.0)
        begin = start // TRITS
        pack_3(codes, row.size, body[begin : begin + (row.size + TRITS - 1) // TRITS])


@compiled
def read_ternary(body: Bytes, scale: np.float32, out: Floats) -> bool:
    """Read ``body`` into ``out``; return whether every byte is one that is written.

    The digits left over in the last byte are checked too.
    """
    codes = np.empty(BLOCK_3, np.uint8)
    right = True
    for start in range(0, out.size, BLOCK_3):
        target = out[start : start + BLOCK_3]
        begin, length = start // TRITS, (target.size + TRITS - 1) // TRITS
        right &= unpack_3(body[begin : begin + length], codes)
        for i in range(target.size):
            sign = np.float32(np.int32(codes[i] & 1) - np.int32(codes[i] >> 1))
            target[i] = sign * scale + np.float32(0.0)
        for i in range(target.size, length * TRITS):
            right &= codes[i] == 0
    return right


def _warm_ternary() -> None:
    values, scale, body = np.ones(3, np.float32), np.float32(1.0), np.zeros(1, np.uint8)
    measure_ternary(values, np.zeros(1), np.zeros(1, np.int32))
    write_ternary(values, scale, np.uint64(1), 0, body, values)
    read_ternary(body, scale, values)


WARM = (_warm_signs, _warm_ternary)
