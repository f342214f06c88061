"""Levels from the least to the greatest element of each bucket, in few bits.

``values`` and ``kept`` are float32 (m,), scales float32 (⌈m/bucket⌉,), ``body`` the packed codes; parts of
a vector begin at a multiple of the bucket. Levels are worked out in float64: no scale is too small for
it, and whatever the rounding, the greatest level is kept exactly. Reading returns the first bucket that
nobody would have written, or −1.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from testbed.compress.kernels.grid import MAGNITUDE
from testbed.compress.kernels.jit import compiled
from testbed.compress.kernels.loops_pack import BLOCK, Bytes, pack, unpack
from testbed.compress.kernels.loops_random import fill

Floats = NDArray[np.float32]

_MAGNITUDE = np.int32(MAGNITUDE)


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
def write(
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
def read(body: Bytes, bucket: int, bits: int, lows: Floats, highs: Floats, out: Floats) -> int:
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


def _warm() -> None:
    values, lows, highs = np.ones(3, np.float32), np.ones(1, np.float32), np.ones(1, np.float32)
    body = np.zeros(2, np.uint8)
    write(values, 8, 4, False, np.uint64(1), 0, lows, highs, body, values)
    read(body, 8, 4, lows, highs, values)


WARM = (_warm,)
