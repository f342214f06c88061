"""Uniform levels within buckets: int8, max-min and QSGD. A bucket's scale, its levels and what is read
from them are made while the bucket is in the cache.

``values`` and ``kept`` are float32 (m,), scales float32 (⌈m/bucket⌉,), ``body`` the packed codes; parts of
a vector begin at a multiple of the bucket. Levels are worked out in float64: no scale is too small for
it, and whatever the rounding, the greatest level is kept exactly. Functions that read return the first
bucket that nobody would have written, or −1.
"""

from __future__ import annotations

from math import sqrt

import numpy as np
from numpy.typing import NDArray

from testbed.compress.kernels import loops_half, loops_lowrank, loops_signs, loops_ternary
from testbed.compress.kernels.grid import MAGNITUDE
from testbed.compress.kernels.jit import compiled
from testbed.compress.kernels.loops_pack import BLOCK, Bytes, pack, unpack
from testbed.compress.kernels.loops_pack import WARM as _PACK
from testbed.compress.kernels.loops_random import fill

Floats = NDArray[np.float32]
Levels = NDArray[np.int8]
Sums = NDArray[np.float64]

_MAGNITUDE = np.int32(MAGNITUDE)
_GREATEST = float(np.finfo(np.float32).max)
_LANES = 64
"""Sums beside each other within a bucket: element i belongs to lane i mod 64."""
INT8_TOP = 127


@compiled
def top_bits(row: Floats) -> np.int32:
    """The bits of the greatest magnitude."""
    bits = row.view(np.int32)
    greatest = np.int32(0)
    for i in range(row.size):
        greatest = max(greatest, np.int32(bits[i] & _MAGNITUDE))
    return greatest


@compiled
def int8_write(values: Floats, bucket: int, peaks: Floats, levels: Levels, kept: Floats) -> None:
    """Level round(127·x/max|x|), ties to even; read as level·max|x|/127."""
    tops = peaks.view(np.int32)
    for b in range(peaks.size):
        row = values[b * bucket : (b + 1) * bucket]
        out, held = levels[b * bucket : (b + 1) * bucket], kept[b * bucket : (b + 1) * bucket]
        tops[b] = top_bits(row)
        peak = np.float64(peaks[b])
        inverse = INT8_TOP / peak if peak > 0.0 else 0.0
        step = peak / INT8_TOP
        for i in range(row.size):
            level = np.rint(row[i] * inverse) + 0.0  # no −0, which an integer does not have
            out[i] = np.int8(level)
            held[i] = np.float32(level * step)


@compiled
def int8_read(levels: Levels, bucket: int, peaks: Floats, out: Floats) -> int:
    """The greatest element of a bucket has level ±127; those of a bucket of zeros have level 0."""
    for b in range(peaks.size):
        row, held = levels[b * bucket : (b + 1) * bucket], out[b * bucket : (b + 1) * bucket]
        step = np.float64(peaks[b]) / INT8_TOP
        greatest = np.int32(0)
        for i in range(row.size):
            greatest = max(greatest, abs(np.int32(row[i])))
        for i in range(row.size):
            held[i] = np.float32(np.int32(row[i]) * step)
        if greatest != (INT8_TOP if step > 0.0 else 0):
            return b
    return -1


@compiled
def _range(row: Floats) -> tuple[np.float32, np.float32]:
    """Least and greatest element, by their bits in an order that integers share; −0 counts as 0."""
    bits = row.view(np.int32)
    ends = np.empty(2, np.float32)
    least, greatest = np.int32(MAGNITUDE), np.int32(-MAGNITUDE)
    for i in range(row.size):
        word = bits[i]
        order = np.int32(word if word >= 0 else -(word & _MAGNITUDE))
        least, greatest = min(least, order), max(greatest, order)
    ends.view(np.int32)[0] = abs(least)
    ends.view(np.int32)[1] = abs(greatest)
    return (ends[0] if least >= 0 else -ends[0]), (ends[1] if greatest >= 0 else -ends[1])


@compiled
def maxmin_write(
    values: Floats,
    bucket: int,
    bits: int,
    draw: bool,
    seed: np.uint64,
    first: int,
    lows: Floats,
    highs: Floats,
    body: Bytes,
    kept: Floats,
) -> None:
    """Level (x − min)·top/(max − min), rounded to the nearest or, with ``draw``, stochastically."""
    codes, shares = np.empty(BLOCK, np.uint8), np.empty(BLOCK, np.float32)
    top = (1 << bits) - 1
    for b in range(lows.size):
        begin, end = b * bucket, min((b + 1) * bucket, values.size)
        lows[b], highs[b] = _range(values[begin:end])
        low = np.float64(lows[b])
        span = np.float64(highs[b]) - low
        inverse, step = (top / span if span > 0.0 else 0.0), span / top
        for at in range(begin, end, BLOCK):
            stop = min(at + BLOCK, end)
            row, held = values[at:stop], kept[at:stop]
            if draw:
                fill(seed, first + at, shares[: row.size])
                for i in range(row.size):
                    scaled = min((row[i] - low) * inverse, np.float64(top))
                    below = np.floor(scaled)
                    level = below + (1.0 if shares[i] < scaled - below else 0.0)
                    codes[i] = np.uint8(level)
                    held[i] = highs[b] if level == top else np.float32(low + level * step)
            else:
                for i in range(row.size):
                    level = np.rint((row[i] - low) * inverse)
                    codes[i] = np.uint8(level)
                    held[i] = highs[b] if level == top else np.float32(low + level * step)
            pack(codes, row.size, bits, body[at * bits // 8 : (stop * bits + 7) // 8])


@compiled
def maxmin_read(
    body: Bytes, bucket: int, bits: int, lows: Floats, highs: Floats, out: Floats
) -> int:
    """A bucket has levels 0 and the greatest, unless all its elements are equal: then all have level 0."""
    codes = np.empty(BLOCK, np.uint8)
    top = (1 << bits) - 1
    for b in range(lows.size):
        begin, end = b * bucket, min((b + 1) * bucket, out.size)
        low = np.float64(lows[b])
        step = (np.float64(highs[b]) - low) / top
        least, greatest = np.uint8(255), np.uint8(0)
        for at in range(begin, end, BLOCK):
            stop = min(at + BLOCK, end)
            held = out[at:stop]
            unpack(body[at * bits // 8 : (stop * bits + 7) // 8], held.size, bits, codes)
            for i in range(held.size):
                least, greatest = min(least, codes[i]), max(greatest, codes[i])
            for i in range(held.size):
                value = np.float32(low + np.int32(codes[i]) * step)
                held[i] = highs[b] if codes[i] == top else value
        if least != 0 or greatest != (top if step > 0.0 else 0):
            return b
    return -1


@compiled
def _norm(row: Floats, lanes: Sums) -> float:
    """√Σx², at most the greatest float32; every norm no less than max|x| is as unbiased."""
    lanes[:] = 0.0
    for at in range(0, row.size, _LANES):
        some = row[at : at + _LANES]
        for lane in range(some.size):
            lanes[lane] += np.float64(some[lane]) * np.float64(some[lane])
    width = _LANES
    while width > 1:
        width //= 2
        for lane in range(width):
            lanes[lane] += lanes[width + lane]
    return min(sqrt(lanes[0]), _GREATEST)


@compiled
def qsgd_write(
    values: Floats,
    bucket: int,
    top: int,
    bits: int,
    seed: np.uint64,
    first: int,
    norms: Floats,
    body: Bytes,
    kept: Floats,
) -> None:
    """Level top·|x|/norm, rounded up with a probability of its fraction; code top ± level."""
    codes, shares = np.empty(BLOCK, np.uint8), np.empty(BLOCK, np.float32)
    lanes = np.empty(_LANES, np.float64)
    for b in range(norms.size):
        begin, end = b * bucket, min((b + 1) * bucket, values.size)
        norms[b] = np.float32(_norm(values[begin:end], lanes))
        norm = np.float64(norms[b])
        inverse, step = (top / norm if norm > 0.0 else 0.0), norm / top
        for at in range(begin, end, BLOCK):
            stop = min(at + BLOCK, end)
            row, held = values[at:stop], kept[at:stop]
            fill(seed, first + at, shares[: row.size])
            for i in range(row.size):
                scaled = min(abs(row[i]) * inverse, np.float64(top))
                below = np.floor(scaled)
                level = below + (1.0 if shares[i] < scaled - below else 0.0)
                level = (level if row[i] > np.float32(0.0) else -level) + 0.0
                codes[i] = np.uint8(level + top)
                held[i] = np.float32(level * step)
            pack(codes, row.size, bits, body[at * bits // 8 : (stop * bits + 7) // 8])


@compiled
def qsgd_read(body: Bytes, bucket: int, top: int, bits: int, norms: Floats, out: Floats) -> int:
    """No level is above ``top``, and those of a bucket of norm 0 are 0."""
    codes = np.empty(BLOCK, np.uint8)
    for b in range(norms.size):
        begin, end = b * bucket, min((b + 1) * bucket, out.size)
        step = np.float64(norms[b]) / top
        limit = top if step > 0.0 else 0
        for at in range(begin, end, BLOCK):
            stop = min(at + BLOCK, end)
            held = out[at:stop]
            unpack(body[at * bits // 8 : (stop * bits + 7) // 8], held.size, bits, codes)
            greatest = np.int32(0)
            for i in range(held.size):
                greatest = max(greatest, abs(np.int32(codes[i]) - np.int32(top)))
            for i in range(held.size):
                held[i] = np.float32((np.int32(codes[i]) - np.int32(top)) * step)
            if greatest > limit:
                return b
    return -1


def _warm() -> None:
    values, scales, body = np.ones(3, np.float32), np.ones(1, np.float32), np.zeros(2, np.uint8)
    levels, others, seed = np.zeros(3, np.int8), np.ones(1, np.float32), np.uint64(1)
    top_bits(values)
    int8_write(values, 8, scales, levels, values)
    int8_read(levels, 8, scales, values)
    maxmin_write(values, 8, 4, False, seed, 0, scales, others, body, values)
    maxmin_read(body, 8, 4, scales, others, values)
    qsgd_write(values, 8, 7, 4, seed, 0, scales, body, values)
    qsgd_read(body, 8, 7, 4, scales, values)


WARM = (
    _warm,
    *_PACK,
    *loops_half.WARM,
    *loops_lowrank.WARM,
    *loops_signs.WARM,
    *loops_ternary.WARM,
)
"""Those of the other value codings too: this module stands for all of them."""
