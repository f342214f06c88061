"""Count, sum, sum of squares and sum of logarithms of magnitudes, in one pass.

A logarithm for each element would take longer than all the rest. Here a lane multiplies its elements'
significands, in [1, 2), and adds up their exponents: Σ ln x = ln Π significands + ln 2 · Σ exponents. One
logarithm then does for all elements that a lane has in a chunk.
"""

from __future__ import annotations

from math import log

import numpy as np
from numpy.typing import NDArray

from testbed.compress.kernels import vectors
from testbed.compress.kernels.grid import CHUNK, LANES, PIECE
from testbed.compress.kernels.jit import compiled
from testbed.compress.kernels.loops_measure import Floats, Sums, fold, padded

Counts = NDArray[np.int64]

_BITS = np.int64(52)
_SIGNIFICAND = np.int64((1 << 52) - 1)
_BIAS = np.int64(1023)
_ONE = np.int64(1023 << 52)
"""The bits of 1.0 in float64: an exponent of 0."""
_LN_2 = log(2.0)

COUNT, NONZERO = 0, 1
"""Columns of a chunk's counts."""
ABS, SQUARES, LOG = 0, 1, 2
"""Columns of a chunk's sums."""


@compiled
def _settle(products: Sums, exponents: Counts) -> None:
    """Products back to [1, 2): a piece multiplies fewer factors than float64 has room for, 1023."""
    bits = products.view(np.int64)
    for lane in range(LANES):
        exponents[lane] += (bits[lane] >> _BITS) - _BIAS
        bits[lane] = bits[lane] & _SIGNIFICAND | _ONE


@compiled
def _logarithms(products: Sums, exponents: Counts, nonzero: int) -> float:
    """The sum over all lanes; exponents come with float64's bias, once for each element that is not 0."""
    total, power = 0.0, -_BIAS * nonzero
    for lane in range(LANES):
        total += log(products[lane])
        power += exponents[lane]
    return total + power * _LN_2


@compiled
def moments(flat: Floats, threshold: np.float32, counts: Counts, sums: Sums) -> None:
    """Of the magnitudes at or above the threshold, a row of ``counts`` and of ``sums`` for each chunk."""
    lanes, exponents = np.empty((3, LANES), np.float64), np.empty(LANES, np.int64)
    total, squares, products = lanes[ABS], lanes[SQUARES], lanes[LOG]
    for chunk in range(len(counts)):
        total[:], squares[:], products[:], exponents[:] = 0.0, 0.0, 1.0, 0
        count, nonzero = 0, 0
        end = min((chunk + 1) * CHUNK, flat.size)
        for start in range(chunk * CHUNK, end, PIECE):
            piece = flat[start : min(start + PIECE, end)]
            rest = piece[piece.size // LANES * LANES :]
            for part in (piece, padded(rest, np.float32(np.nan))[: LANES if rest.size else 0]):
                found = vectors.add_moments(part, threshold, total, squares, products, exponents)
                count, nonzero = count + found[COUNT], nonzero + found[NONZERO]
            _settle(products, exponents)
        counts[chunk, COUNT], counts[chunk, NONZERO] = count, nonzero
        sums[chunk, ABS], sums[chunk, SQUARES] = fold(total), fold(squares)
        sums[chunk, LOG] = _logarithms(products, exponents, nonzero)


WARM = (
    lambda: moments(
        np.ones(3, np.float32), np.float32(0.5), np.zeros((1, 2), np.int64), np.zeros((1, 3))
    ),
)
