"""The permutation behind a seed's indices: see ``seeded``."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from testbed.compress.kernels.jit import compiled
from testbed.compress.kernels.loops_random import word_at

Words = NDArray[np.uint64]
Indices = NDArray[np.int64]


@compiled
def fill(keys: Words, size: int, out: Indices) -> None:
    """Set ``out`` (at most ``size`` elements) to the permutation's values at 0, 1, 2, … ``size`` ≥ 2.

    ``keys``: one for each round, an even number.
    """
    bits = 0
    while size - 1 >> bits:
        bits += 1
    shift, end, one = np.uint64(bits // 2), np.uint64(size), np.uint64(1)
    low_mask = (one << shift) - one
    high_mask = (one << np.uint64(bits) - shift) - one
    for i in range(out.size):
        element = np.uint64(i)
        while True:
            high, low = element >> shift, element & low_mask
            for r in range(0, keys.size, 2):
                high ^= word_at(keys[r], low) & high_mask
                low ^= word_at(keys[r + 1], high) & low_mask
            element = high << shift | low
            if element < end:
                break
        out[i] = np.int64(element)


def _warm() -> None:
    fill(np.zeros(2, np.uint64), 2, np.zeros(1, np.int64))


WARM = (_warm,)
