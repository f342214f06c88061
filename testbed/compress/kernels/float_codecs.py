"""Loops of value codings that write floats in few bits: half and bfloat16, int8 per bucket, min-
max levels, and QSGD.

``words`` are the uint32 bits of float32 numbers (m,), ``halves`` uint16 (m,), ``codes`` uint8 (m,).
Functions that read binary16 or bfloat16 say whether every number is finite.

Stochastic levels of each bucket's 2-norm, in few bits.
"""

from __future__ import annotations

from math import sqrt

import numpy as np
from numpy.typing import NDArray

from testbed.compress.kernels.bit_packing import BLOCK, Bytes, pack, unpack
from testbed.compress.kernels.compilation import MAGNITUDE, compiled
from testbed.compress.kernels.random_loops import fill

Floats = NDArray[np.float32]
Halves = NDArray[np.uint16]
Codes = NDArray[np.uint8]

_MAGNITUDE, _SIGN = np.uint32(MAGNITUDE), np.uint32(0x8000_0000)
_FRACTION, _SIGN_BIT = 0x007F_FFFF, -0x8000_0000
_UNIT = np.float32(2.0**-23)

_LARGEST_16 = np.uint32(0x477F_E000)
"""65504, the greatest number of binary16."""
_NORMAL_16 = np.uint32(0x3880_0000)
"""2⁻¹⁴, its least normal one."""
_REBIAS = np.uint32((127 - 15) << 23)
_ONE = np.uint32(1 << 23)
"""The implicit 1 of a float32, as its least exponent has it."""
_PER_LEAST_16 = np.float32(2.0**24)

_LARGEST_B16 = np.uint32(0x7F7F_0000)
"""The greatest number of bfloat16."""


@compiled
def fp16_write(values: Floats, halves: Halves, kept: Floats) -> None:
    """To the nearest, ties to even, at most ±65504."""
    for start in range(0, values.size, BLOCK):
        row, own = values[start : start + BLOCK], halves[start : start + BLOCK]
        words = row.view(np.uint32)
        for i in range(row.size):
            size = min(words[i] & _MAGNITUDE, _LARGEST_16)
            sign = words[i] & _SIGN
            steps = np.int32(np.rint(abs(row[i]) * _PER_LEAST_16)) if size < _NORMAL_16 else 0
            odd = (size >> np.uint32(13)) & np.uint32(1)
            half = np.uint32((size - _REBIAS + np.uint32(0xFFF) + odd) >> np.uint32(13))
            half = np.uint32(steps) if size < _NORMAL_16 else half
            own[i] = np.uint16((sign >> np.uint32(16)) | half)
        fp16_read(own, kept[start : start + BLOCK])


@compiled
def fp16_read(halves: Halves, out: Floats) -> bool:
    """Exact; infinity and NaN are not written."""
    greatest = np.uint32(0)
    for start in range(0, out.size, BLOCK):
        row, own = out[start : start + BLOCK], halves[start : start + BLOCK]
        words = row.view(np.uint32)
        for i in range(row.size):
            size = np.uint32((own[i] & np.uint32(0x7FFF)) << np.uint32(13))
            greatest = max(greatest, size)
            # below 2⁻¹⁴ the implicit 1 is added, to be taken away as a number
            implicit = _ONE if size < _ONE else np.uint32(0)
            words[i] = size + _REBIAS + implicit
        for i in range(row.size):
            low = (own[i] & np.uint16(0x7FFF)) < np.uint16(1 << 10)
            number = row[i] - (np.float32(2.0**-14) if low else np.float32(0.0))
            row[i] = -number if own[i] >= np.uint16(0x8000) else number
    return bool(greatest < np.uint32(0x7C00 << 13))


@compiled
def bf16_write(values: Floats, halves: Halves, kept: Floats) -> None:
    """To the nearest, ties to even, at most the greatest finite one."""
    words, out = values.view(np.uint32), kept.view(np.uint32)
    for i in range(values.size):
        word = words[i]
        odd = (word >> np.uint32(16)) & np.uint32(1)
        size = np.uint32((word & _MAGNITUDE) + np.uint32(0x7FFF) + odd)
        size = min(size, _LARGEST_B16) & np.uint32(0xFFFF_0000)
        out[i] = (word & _SIGN) | size
        halves[i] = np.uint16(out[i] >> np.uint32(16))


@compiled
def bf16_read(halves: Halves, out: Floats) -> bool:
    """Exact; infinity and NaN are not written."""
    words = out.view(np.uint32)
    greatest = np.uint32(0)
    for i in range(out.size):
        word = np.uint32(halves[i]) << np.uint32(16)
        greatest = max(greatest, word & _MAGNITUDE)
        words[i] = word
    return bool(greatest <= _LARGEST_B16)


@compiled
def natural_write(
    values: Floats, floor: int, seed: np.uint64, first: int, codes: Codes, kept: Floats
) -> None:
    """Up or down to a power of two; the biased exponent less ``floor`` is the code, 0 stands for 0.

    2^e·(1 + f) becomes 2^(e+1) with probability f. Below the least power there is, x becomes that
    power with probability x/power, and else 0. The expected value is x in both cases.
    """
    shares = np.empty(BLOCK, np.float32)
    per_least = np.float32(2.0 ** (126 - floor))
    for start in range(0, values.size, BLOCK):
        row, marks = values[start : start + BLOCK], codes[start : start + BLOCK]
        fill(seed, first + start, shares[: row.size])
        words, out = row.view(np.int32), kept[start : start + BLOCK].view(np.int32)
        for i in range(row.size):
            size = words[i] & MAGNITUDE
            exponent = size >> 23
            fraction = np.float32(np.int32(size & _FRACTION)) * _UNIT
            low = exponent <= floor
            limit = abs(row[i]) * per_least if low else fraction
            code = (0 if low else exponent - floor) + (1 if shares[i] < limit else 0)
            code = min(code, 127)  # nothing is above 2¹²⁷
            sign = (words[i] >> 31) if code else 0  # all ones for those below 0
            marks[i] = np.uint8(code | (sign & 128))
            out[i] = np.int32(((code + floor) << 23 if code else 0) | (sign & _SIGN_BIT))


@compiled
def natural_read(codes: Codes, floor: int, out: Floats) -> int:
    """The greatest power's code; −1 where there is a −0, which is not written."""
    words = out.view(np.uint32)
    base = np.uint32(floor)
    greatest, zeros = np.uint32(0), 0
    for i in range(out.size):
        code = np.uint32(codes[i]) & np.uint32(127)
        sign = np.uint32(codes[i] >> np.uint8(7)) << np.uint32(31)
        greatest = max(greatest, code)
        zeros += codes[i] == np.uint8(128)
        words[i] = (sign | (code + base) << np.uint32(23)) if code else np.uint32(0)
    return -1 if zeros else int(greatest)


def _warm_floats() -> None:
    values, halves, codes = np.ones(3, np.float32), np.zeros(3, np.uint16), np.zeros(3, np.uint8)
    fp16_write(values, halves, values)
    fp16_read(halves, values)
    bf16_write(values, halves, values)
    bf16_read(halves, values)
    natural_write(values, 1, np.uint64(1), 0, codes, values)
    natural_read(codes, 1, values)


Levels = NDArray[np.int8]

_MAGNITUDE_BITS = np.int32(MAGNITUDE)
TOP = 127


@compiled
def top_bits(row: Floats) -> np.int32:
    """The bits of the greatest magnitude."""
    bits = row.view(np.int32)
    greatest = np.int32(0)
    for i in range(row.size):
        greatest = max(greatest, np.int32(bits[i] & _MAGNITUDE_BITS))
    return greatest


@compiled
def write(values: Floats, bucket: int, peaks: Floats, levels: Levels, kept: Floats) -> None:
    """Level round(127·x/max|x|), ties to even; read as level·max|x|/127."""
    tops = peaks.view(np.int32)
    for b in range(peaks.size):
        row = values[b * bucket : (b + 1) * bucket]
        out, target = levels[b * bucket : (b + 1) * bucket], kept[b * bucket : (b + 1) * bucket]
        tops[b] = top_bits(row)
        peak = np.float64(peaks[b])
        inverse = TOP / peak if peak > 0.0 else 0.0
        step = peak / TOP
        for i in range(row.size):
            level = np.rint(row[i] * inverse) + 0.0  # no −0, which an integer does not have
            out[i] = np.int8(level)
            target[i] = np.float32(level * step)


@compiled
def read(levels: Levels, bucket: int, peaks: Floats, out: Floats) -> int:
    """The greatest element of a bucket has level ±127; those of a bucket of zeros have level 0."""
    for b in range(peaks.size):
        row, target = levels[b * bucket : (b + 1) * bucket], out[b * bucket : (b + 1) * bucket]
        step = np.float64(peaks[b]) / TOP
        greatest = np.int32(0)
        for i in range(row.size):
            greatest = max(greatest, abs(np.int32(row[i])))
        for i in range(row.size):
            target[i] = np.float32(np.int32(row[i]) * step)
        if greatest != (TOP if step > 0.0 else 0):
            return b
    return -1


def _warm_int8() -> None:
    values, scales, levels = np.ones(3, np.float32), np.ones(1, np.float32), np.zeros(3, np.int8)
    top_bits(values)
    write(values, 8, scales, levels, values)
    read(levels, 8, scales, values)


@compiled
def _range(row: Floats) -> tuple[np.float32, np.float32]:
    """Least and greatest element, by their bits in an order that integers share; −0 counts as 0."""
    bits = row.view(np.int32)
    ends = np.empty(2, np.float32)
    least, greatest = np.int32(MAGNITUDE), np.int32(-MAGNITUDE)
    for i in range(row.size):
        word = bits[i]
        order = np.int32(word if word >= 0 else -(word & _MAGNITUDE_BITS))
        least, greatest = min(least, order), max(greatest, order)
    ends.view(np.int32)[0] = abs(least)
    ends.view(np.int32)[1] = abs(greatest)
    return (ends[0] if least >= 0 else -ends[0]), (ends[1] if greatest >= 0 else -ends[1])


@compiled
def write_maxmin(
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
            row, target = values[at:stop], kept[at:stop]
            if draw:
                fill(seed, first + at, shares[: row.size])
                for i in range(row.size):
                    scaled = min((row[i] - low) * inverse, np.float64(top))
                    below = np.floor(scaled)
                    level = below + (1.0 if shares[i] < scaled - below else 0.0)
                    codes[i] = np.uint8(level)
                    target[i] = highs[b] if level == top else np.float32(low + level * step)
            else:
                for i in range(row.size):
                    level = np.rint((row[i] - low) * inverse)
                    codes[i] = np.uint8(level)
                    target[i] = highs[b] if level == top else np.float32(low + level * step)
            pack(codes, row.size, bits, body[at * bits // 8 : (stop * bits + 7) // 8])


@compiled
def read_maxmin(
    body: Bytes, bucket: int, bits: int, lows: Floats, highs: Floats, out: Floats
) -> int:
    """A bucket has levels 0 and the greatest, unless all its elements are equal: then 0 alone."""
    codes = np.empty(BLOCK, np.uint8)
    top = (1 << bits) - 1
    for b in range(lows.size):
        begin, end = b * bucket, min((b + 1) * bucket, out.size)
        low = np.float64(lows[b])
        step = (np.float64(highs[b]) - low) / top
        least, greatest = np.uint8(255), np.uint8(0)
        for at in range(begin, end, BLOCK):
            stop = min(at + BLOCK, end)
            target = out[at:stop]
            unpack(body[at * bits // 8 : (stop * bits + 7) // 8], target.size, bits, codes)
            for i in range(target.size):
                least, greatest = min(least, codes[i]), max(greatest, codes[i])
            for i in range(target.size):
                value = np.float32(low + np.int32(codes[i]) * step)
                target[i] = highs[b] if codes[i] == top else value
        if least != 0 or greatest != (top if step > 0.0 else 0):
            return b
    return -1


def _warm_maxmin() -> None:
    values, lows, highs = np.ones(3, np.float32), np.ones(1, np.float32), np.ones(1, np.float32)
    body = np.zeros(2, np.uint8)
    write_maxmin(values, 8, 4, False, np.uint64(1), 0, lows, highs, body, values)
    read_maxmin(body, 8, 4, lows, highs, values)


Sums = NDArray[np.float64]

_GREATEST = float(np.finfo(np.float32).max)
_LANES = 64
"""Sums beside each other within a bucket: element i belongs to lane i mod 64."""


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
def write_qsgd(
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
            row, target = values[at:stop], kept[at:stop]
            fill(seed, first + at, shares[: row.size])
            for i in range(row.size):
                scaled = min(abs(row[i]) * inverse, np.float64(top))
                below = np.floor(scaled)
                level = below + (1.0 if shares[i] < scaled - below else 0.0)
                level = (level if row[i] > np.float32(0.0) else -level) + 0.0
                codes[i] = np.uint8(level + top)
                target[i] = np.float32(level * step)
            pack(codes, row.size, bits, body[at * bits // 8 : (stop * bits + 7) // 8])


@compiled
def read_qsgd(body: Bytes, bucket: int, top: int, bits: int, norms: Floats, out: Floats) -> int:
    """No level is above ``top``, and those of a bucket of norm 0 are 0."""
    codes = np.empty(BLOCK, np.uint8)
    for b in range(norms.size):
        begin, end = b * bucket, min((b + 1) * bucket, out.size)
        step = np.float64(norms[b]) / top
        limit = top if step > 0.0 else 0
        for at in range(begin, end, BLOCK):
            stop = min(at + BLOCK, end)
            target = out[at:stop]
            unpack(body[at * bits // 8 : (stop * bits + 7) // 8], target.size, bits, codes)
            greatest = np.int32(0)
            for i in range(target.size):
                greatest = max(greatest, abs(np.int32(codes[i]) - np.int32(top)))
            for i in range(target.size):
                target[i] = np.float32((np.int32(codes[i]) - np.int32(top)) * step)
            if greatest > limit:
                return b
    return -1


def _warm_qsgd() -> None:
    values, norms, body = np.ones(3, np.float32), np.ones(1, np.float32), np.zeros(2, np.uint8)
    write_qsgd(values, 8, 7, 4, np.uint64(1), 0, norms, body, values)
    read_qsgd(body, 8, 7, 4, norms, values)


@compiled
def write_levels(values: Floats, levels: Floats, bits: int, body: Bytes, kept: Floats) -> None:
    """± the greatest of ``levels`` (ascending) that a magnitude reaches, or 0."""
    codes, top = np.empty(BLOCK, np.uint8), levels.size
    for at in range(0, values.size, BLOCK):
        stop = min(at + BLOCK, values.size)
        row, target = values[at:stop], kept[at:stop]
        for i in range(row.size):
            number = 0
            for level in levels:
                number += 1 if abs(row[i]) >= level else 0
            magnitude = levels[number - 1] if number else np.float32(0.0)
            below = row[i] < np.float32(0.0) and number > 0
            codes[i] = np.uint8(top - number if below else top + number)
            target[i] = -magnitude if below else magnitude
        pack(codes, row.size, bits, body[at * bits // 8 : (stop * bits + 7) // 8])


@compiled
def read_levels(body: Bytes, levels: Floats, bits: int, out: Floats) -> bool:
    """Read what ``write_levels`` kept; False where a code is above the greatest."""
    codes, top, greatest = np.empty(BLOCK, np.uint8), levels.size, np.uint8(0)
    signed = np.zeros(256, np.float32)
    signed[:top] = -levels[::-1]
    signed[top + 1 : 2 * top + 1] = levels
    for at in range(0, out.size, BLOCK):
        stop = min(at + BLOCK, out.size)
        unpack(body[at * bits // 8 : (stop * bits + 7) // 8], stop - at, bits, codes)
        for i in range(stop - at):
            greatest = max(greatest, codes[i])
            out[at + i] = signed[codes[i]]
    return bool(greatest <= 2 * top)


def _warm_levels() -> None:
    values, body = np.ones(3, np.float32), np.zeros(1, np.uint8)
    write_levels(values, values[:1].copy(), 2, body, values)
    read_levels(body, values[:1].copy(), 2, values)


WARM = (_warm_floats, _warm_int8, _warm_maxmin, _warm_qsgd, _warm_levels)
