"""−1, 0 and 1 times a scale, five to a byte."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from testbed.compress.kernels.grid import CHUNK, LANES, MAGNITUDE
from testbed.compress.kernels.jit import compiled
from testbed.compress.kernels.loops_measure import fold
from testbed.compress.kernels.loops_pack import BLOCK_3, TRITS, Bytes, pack_3, unpack_3
from testbed.compress.kernels.loops_random import fill

Floats = NDArray[np.float32]
Sums = NDArray[np.float64]
Tops = NDArray[np.int32]

_MAGNITUDE = np.int32(MAGNITUDE)


@compiled
def measure(flat: Floats, sums: Sums, tops: Tops) -> None:
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
def write(
    values: Floats, scale: np.float32, seed: np.uint64, first: int, body: Bytes, kept: Floats
) -> None:
    """Digit 1 for +scale, 2 for −scale with probability |x|/scale (1 above it), else 0.

    ``first``: index of the part's first element, a multiple of 5.
    """
    codes, shares = np.empty(BLOCK_3, np.uint8), np.empty(BLOCK_3, np.float32)
    for start in range(0, values.size, BLOCK_3):
        row, held = values[start : start + BLOCK_3], kept[start : start + BLOCK_3]
        fill(seed, first + start, shares[: row.size])
        for i in range(row.size):
            # exact in float64: 24 bits times 24 bits
            sent = np.float64(shares[i]) * scale < abs(row[i])
            negative = row[i] < np.float32(0.0)
            codes[i] = np.uint8((2 if negative else 1) if sent else 0)
            held[i] = (-scale if negative else scale) if sent else np.float32(0.0)
        begin = start // TRITS
        pack_3(codes, row.size, body[begin : begin + (row.size + TRITS - 1) // TRITS])


@compiled
def read(body: Bytes, scale: np.float32, out: Floats) -> bool:
    """Whether every byte is one that is written, the digits left over in the last one included."""
    codes = np.empty(BLOCK_3, np.uint8)
    right = True
    for start in range(0, out.size, BLOCK_3):
        held = out[start : start + BLOCK_3]
        begin, length = start // TRITS, (held.size + TRITS - 1) // TRITS
        right &= unpack_3(body[begin : begin + length], codes)
        for i in range(held.size):
            sign = np.float32(np.int32(codes[i] & 1) - np.int32(codes[i] >> 1))
            held[i] = sign * scale + np.float32(0.0)
        for i in range(held.size, length * TRITS):
            right &= codes[i] == 0
    return right


def _warm() -> None:
    values, scale, body = np.ones(3, np.float32), np.float32(1.0), np.zeros(1, np.uint8)
    measure(values, np.zeros(1), np.zeros(1, np.int32))
    write(values, scale, np.uint64(1), 0, body, values)
    read(body, scale, values)


WARM = (_warm,)
