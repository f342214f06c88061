"""Stochastic levels of each bucket's 2-norm, in few bits.

``values`` and ``kept`` are float32 (m,), scales float32 (⌈m/bucket⌉,), ``body`` the packed codes; parts of
a vector begin at a multiple of the bucket. Levels are worked out in float64: no scale is too small for
it, and whatever the rounding, the greatest level is kept exactly. Reading returns the first bucket that
nobody would have written, or −1.
"""

from __future__ import annotations

from math import sqrt

import numpy as np
from numpy.typing import NDArray

from testbed.compress.kernels.jit import compiled
from testbed.compress.kernels.loops_pack import BLOCK, Bytes, pack, unpack
from testbed.compress.kernels.loops_random import fill

Floats = NDArray[np.float32]
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
def write(
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
def read(body: Bytes, bucket: int, top: int, bits: int, norms: Floats, out: Floats) -> int:
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
    values, norms, body = np.ones(3, np.float32), np.ones(1, np.float32), np.zeros(2, np.uint8)
    write(values, 8, 7, 4, np.uint64(1), 0, norms, body, values)
    read(body, 8, 7, 4, norms, values)


WARM = (_warm,)
