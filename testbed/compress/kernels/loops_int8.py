"""Eight-bit levels of each bucket's greatest magnitude. A bucket's scale, its levels and what is read from
them are made while the bucket is in the cache.

``values`` and ``kept`` are float32 (m,), scales float32 (⌈m/bucket⌉,); parts of
a vector begin at a multiple of the bucket. Levels are worked out in float64: no scale is too small for
it, and whatever the rounding, the greatest level is kept exactly. Reading returns the first bucket that
nobody would have written, or −1.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from testbed.compress.kernels.grid import MAGNITUDE
from testbed.compress.kernels.jit import compiled

Floats = NDArray[np.float32]
Levels = NDArray[np.int8]

_MAGNITUDE = np.int32(MAGNITUDE)
TOP = 127


@compiled
def top_bits(row: Floats) -> np.int32:
    """The bits of the greatest magnitude."""
    bits = row.view(np.int32)
    greatest = np.int32(0)
    for i in range(row.size):
        greatest = max(greatest, np.int32(bits[i] & _MAGNITUDE))
    return greatest


@compiled
def write(values: Floats, bucket: int, peaks: Floats, levels: Levels, kept: Floats) -> None:
    """Level round(127·x/max|x|), ties to even; read as level·max|x|/127."""
    tops = peaks.view(np.int32)
    for b in range(peaks.size):
        row = values[b * bucket : (b + 1) * bucket]
        out, held = levels[b * bucket : (b + 1) * bucket], kept[b * bucket : (b + 1) * bucket]
        tops[b] = top_bits(row)
        peak = np.float64(peaks[b])
        inverse = TOP / peak if peak > 0.0 else 0.0
        step = peak / TOP
        for i in range(row.size):
            level = np.rint(row[i] * inverse) + 0.0  # no −0, which an integer does not have
            out[i] = np.int8(level)
            held[i] = np.float32(level * step)


@compiled
def read(levels: Levels, bucket: int, peaks: Floats, out: Floats) -> int:
    """The greatest element of a bucket has level ±127; those of a bucket of zeros have level 0."""
    for b in range(peaks.size):
        row, held = levels[b * bucket : (b + 1) * bucket], out[b * bucket : (b + 1) * bucket]
        step = np.float64(peaks[b]) / TOP
        greatest = np.int32(0)
        for i in range(row.size):
            greatest = max(greatest, abs(np.int32(row[i])))
        for i in range(row.size):
            held[i] = np.float32(np.int32(row[i]) * step)
        if greatest != (TOP if step > 0.0 else 0):
            return b
    return -1


def _warm() -> None:
    values, scales, levels = np.ones(3, np.float32), np.ones(1, np.float32), np.zeros(3, np.int8)
    top_bits(values)
    write(values, 8, scales, levels, values)
    read(levels, 8, scales, values)


WARM = (_warm,)
