"""Fewer bits of each number's own form: binary16, bfloat16 and powers of two.

``words`` are the uint32 bits of float32 numbers (m,), ``halves`` uint16 (m,), ``codes`` uint8 (m,).
Functions that read binary16 or bfloat16 say whether every number is finite.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from testbed.compress.kernels.grid import MAGNITUDE
from testbed.compress.kernels.jit import compiled
from testbed.compress.kernels.loops_pack import BLOCK
from testbed.compress.kernels.loops_random import fill

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
            one = _ONE if size < _ONE else np.uint32(0)
            words[i] = size + _REBIAS + one
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

    2^e·(1 + f) becomes 2^(e+1) with probability f. Below the least power there is, x becomes that power
    with probability x/power, and else 0. The expected value is x in both cases.
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


def _warm() -> None:
    values, halves, codes = np.ones(3, np.float32), np.zeros(3, np.uint16), np.zeros(3, np.uint8)
    fp16_write(values, halves, values)
    fp16_read(halves, values)
    bf16_write(values, halves, values)
    bf16_read(halves, values)
    natural_write(values, 1, np.uint64(1), 0, codes, values)
    natural_read(codes, 1, values)


WARM = (_warm,)
