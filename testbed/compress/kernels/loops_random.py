"""Random numbers by position, for loops: see ``random``."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from testbed.compress.kernels.jit import compiled

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


WARM = (lambda: fill(np.uint64(1), 0, np.empty(3, np.float32)),)
