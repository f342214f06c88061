"""Adding a few elements to a vector, and taking them away again."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from testbed.compress.kernels.jit import compiled

Floats = NDArray[np.float32]
Indices = NDArray[np.int64]


@compiled
def add_at(flat: Floats, indices: Indices, values: Floats) -> int:
    """``flat[indices] += values`` up to the first index that is outside; returns how many were inside."""
    size = np.uint64(flat.size)
    for i in range(indices.size):
        at = np.uint64(indices[i])  # below 0 becomes huge
        if at >= size:
            return i
        flat[at] += values[i]
    return indices.size


@compiled
def take_away(flat: Floats, indices: Indices, values: Floats) -> int:
    """``flat[indices] -= values``; otherwise as ``add_at``."""
    size = np.uint64(flat.size)
    for i in range(indices.size):
        at = np.uint64(indices[i])
        if at >= size:
            return i
        flat[at] -= values[i]
    return indices.size


def _warm() -> None:
    flat, indices = np.ones(3, np.float32), np.zeros(2, np.int64)
    add_at(flat, indices, flat[:2])
    take_away(flat, indices, flat[:2])


WARM = (_warm,)
