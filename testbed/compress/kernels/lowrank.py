"""Products of a matrix M (rows, cols) with r vectors, kept as the rows of float64 or float32
arrays.

Sums are float64: no entry is too great or too small for them.
"""

from __future__ import annotations

from math import sqrt

import numpy as np
from numpy.typing import NDArray

from testbed.compress.kernels.compilation import compiled

Matrix = NDArray[np.float32]
Doubles = NDArray[np.float64]

_LANES = 64
"""Sums beside each other within a row: column j belongs to lane j mod 64."""
_DEPENDENT = 1e-10
"""Share of a vector's length that is left when float64 cannot tell it from those before it."""


@compiled
def times(matrix: Matrix, right: Doubles, left: Doubles) -> None:
    """``left`` (r, rows) ← M · ``right`` (r, cols), vector by vector."""
    lanes = np.empty(_LANES, np.float64)
    for i in range(matrix.shape[0]):
        row = matrix[i]
        for k in range(right.shape[0]):
            vector = right[k]
            lanes[:] = 0.0
            for at in range(0, row.size, _LANES):
                some, others = row[at : at + _LANES], vector[at : at + _LANES]
                for lane in range(some.size):
                    lanes[lane] += some[lane] * others[lane]
            total = 0.0
            for lane in range(min(_LANES, row.size)):
                total += lanes[lane]
            left[k, i] = total


@compiled
def orthonormal(vectors: Doubles) -> None:
    """Gram–Schmidt, one vector after the other; those that depend on earlier ones become 0."""
    for k in range(vectors.shape[0]):
        vector = vectors[k]
        before = _length(vector)
        for j in range(k):
            other, shared = vectors[j], 0.0
            for i in range(vector.size):
                shared += other[i] * vector[i]
            for i in range(vector.size):
                vector[i] -= shared * other[i]
        after = _length(vector)
        scale = 1.0 / after if after > _DEPENDENT * before else 0.0
        for i in range(vector.size):
            vector[i] *= scale


@compiled
def _length(vector: Doubles) -> float:
    total = 0.0
    for i in range(vector.size):
        total += vector[i] * vector[i]
    return sqrt(total)


@compiled
def times_transposed(matrix: Matrix, left: Matrix, right: Doubles) -> None:
    """``right`` (r, cols) ← Mᵀ · ``left`` (r, rows), vector by vector."""
    right[:] = 0.0
    for i in range(matrix.shape[0]):
        row = matrix[i]
        for k in range(left.shape[0]):
            sums, factor = right[k], np.float64(left[k, i])
            for j in range(row.size):
                sums[j] += factor * row[j]


@compiled
def product(left: Matrix, right: Matrix, out: Matrix) -> None:
    """``out`` (rows, cols) ← Σ ``left[k]`` ``right[k]``ᵀ, added up in the order of k in float32."""
    for i in range(out.shape[0]):
        row = out[i]
        row[:] = np.float32(0.0)
        for k in range(left.shape[0]):
            factor, vector = left[k, i], right[k]
            for j in range(row.size):
                row[j] += factor * vector[j]


def _warm() -> None:
    matrix, doubles = np.ones((2, 2), np.float32), np.ones((1, 2))
    times(matrix, doubles, np.ones((1, 2)))
    orthonormal(doubles)
    times_transposed(matrix, matrix[:1], doubles)
    product(matrix[:1], matrix[:1], matrix)


WARM = (_warm,)
