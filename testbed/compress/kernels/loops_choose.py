"""What is at or above a threshold: how much, and where.

A block of elements is compared at once (``vectors``); its hits are then taken from the lowest bit to the
highest, so that elements that are not chosen cost next to nothing, whatever the density.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from testbed.compress.kernels.grid import BLOCK
from testbed.compress.kernels.jit import compiled
from testbed.compress.kernels.loops_measure import Floats
from testbed.compress.kernels.vectors import hits, lowest, ones

Indices = NDArray[np.int64]


@compiled
def count(flat: Floats, threshold: np.float32) -> int:
    """How many |x| ≥ ``threshold``."""
    whole = flat.size // BLOCK * BLOCK
    found = 0
    for start in range(0, whole, BLOCK):
        found += ones(hits(flat, start, threshold))
    for i in range(whole, flat.size):
        found += abs(flat[i]) >= threshold
    return found


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


def _warm() -> None:
    flat, least = np.ones(3, np.float32), np.float32(0.5)
    indices, values = np.zeros(2 * BLOCK, np.int64), np.zeros(2 * BLOCK, np.float32)
    count(flat, least)
    choose(flat, least, 0, indices, values, 0)


WARM = (_warm,)
