"""Loops that draw random numbers by position, and the permutation behind a seed's indices
(``testbed.compress.indices``).

Element i depends on the seed and on i alone. The stream of a seed is what splitmix64 (Steele, Lea,
Flood 2014) gives when it starts there:

    mix(seed + (i + 1) · 0x9E3779B97F4A7C15)        modulo 2⁶⁴

so that any part of it can be made anywhere, by any number of threads, with the same bits.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from testbed.compress.kernels.compilation import compiled

_STEP = np.uint64(0x9E37_79B9_7F4A_7C15)
_FIRST = np.uint64(0xBF58_476D_1CE4_E5B9)
_SECOND = np.uint64(0x94D0_49BB_1331_11EB)
_UNIT = np.float32(2.0**-24)


@compiled
def word_at(seed: np.uint64, index: np.uint64) -> np.uint64:
    """64 bits: element ``index`` of the stream of ``seed``."""
    z = seed + (index + np.uint64(1)) * _STEP
    z = (z ^ (z >> np.uint64(30))) * _FIRST
    z = (z ^ (z >> np.uint64(27))) * _SECOND
    return z ^ (z >> np.uint64(31))


@compiled
def uniform_at(seed: np.uint64, index: np.uint64) -> np.float32:
    """In [0, 1), a multiple of 2⁻²⁴, which float32 holds exactly."""
    return np.float32(word_at(seed, index) >> np.uint64(40)) * _UNIT


@compiled
def fill(seed: np.uint64, first: int, out: NDArray[np.float32]) -> None:
    """Elements ``first`` to ``first + out.size`` of the stream of ``seed``, uniform in [0, 1)."""
    for i in range(out.size):
        out[i] = uniform_at(seed, np.uint64(first + i))


Words = NDArray[np.uint64]
Indices = NDArray[np.int64]


@compiled
def fill_permuted(keys: Words, size: int, out: Indices) -> None:
    """Set ``out`` (at most ``size`` elements) to the permutation's values at 0, 1, 2, … ``size`` ≥
    2.

    ``keys``: one for each round, an even number.
    """
    bits = 0
    while size - 1 >> bits:
        bits += 1
    shift, end, unit = np.uint64(bits // 2), np.uint64(size), np.uint64(1)
    low_mask = (unit << shift) - unit
    high_mask = (unit << np.uint64(bits) - shift) - unit
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
    fill(np.uint64(1), 0, np.empty(3, np.float32))
    fill_permuted(np.zeros(2, np.uint64), 2, np.zeros(1, np.int64))


WARM = (_warm,)
