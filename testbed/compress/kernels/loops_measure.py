"""Sums and greatest magnitudes, and the addition that comes before them.

Sums are kept in lanes (``grid``): each adds up its elements of a chunk in order, lanes are then added up
in pairs. Bits instead of numbers give the maximum, which thus sees NaN as well.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from testbed.compress.kernels import vectors
from testbed.compress.kernels.grid import CHUNK, LANES
from testbed.compress.kernels.jit import compiled

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
        vectors.take_in(part, lanes, tall)
        rest = part[part.size // LANES * LANES :]
        if rest.size:
            vectors.take_in(padded(rest, np.float32(0.0)), lanes, tall)
        sums[chunk], tops[chunk] = fold(lanes), tall.max()


@compiled
def add_piece(first: Floats, second: Floats, out: Floats, lanes: Sums, tall: Tops) -> None:
    """``out`` ← ``first`` + ``second``, and its magnitudes into the lanes."""
    vectors.add(first, second, out, lanes, tall)
    whole = out.size // LANES * LANES
    for i in range(whole, out.size):
        out[i] = first[i] + second[i]
    if whole < out.size:
        vectors.take_in(padded(out[whole:], np.float32(0.0)), lanes, tall)


@compiled
def add(first: Floats, second: Floats, out: Floats, sums: Sums, tops: Tops) -> None:
    """``out`` ← ``first`` + ``second``, and ``measure`` of it while it is at hand."""
    lanes, tall = np.empty(LANES, np.float64), np.empty(LANES, np.int32)
    for chunk in range(sums.size):
        lanes[:], tall[:] = 0.0, 0
        start, end = chunk * CHUNK, min((chunk + 1) * CHUNK, out.size)
        add_piece(first[start:end], second[start:end], out[start:end], lanes, tall)
        sums[chunk], tops[chunk] = fold(lanes), tall.max()


def _warm() -> None:
    flat, sums, tops = np.ones(3, np.float32), np.zeros(1), np.zeros(1, np.int32)
    measure(flat, sums, tops)
    add(flat, flat, flat, sums, tops)


WARM = (_warm,)
