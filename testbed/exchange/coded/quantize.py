"""Gradients as 32-bit fixed point, in which sums are exact whatever their order (Li et al., CSSGD, section 3.1).

    ±10  ↔  0x7FFFFFFF / 0x80000001        a step is 20 / (2³² − 2) = 4.66e-9

Rounded to nearest, ties to even; what is beyond ±10 is cut off there and counted. 0x80000000 stands for no number.
The paper bounds the sum over a block, so that larger blocks are cut off sooner. Here sums are divided by the mean number of
samples in a block, the same for all blocks: what is bounded is about the gradient of a mean sample, whatever the redundancy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LIMIT = 10.0
MOST = 0x7FFFFFFF
POISON = -0x80000000
"""What NaN and infinity become: no sum of it means anything."""
_SCALE = MOST / LIMIT
_CHUNK = 1 << 15
"""Elements taken at a time: they stay in the cache from one pass to the next."""

Floats = NDArray[np.float32]
Fixed = NDArray[np.int32]
Sums = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Counted:
    """Elements that could not be written as they were."""

    saturated: int
    poisoned: int


def quantize(gradient: Floats, into: Fixed, over: float = 1.0) -> Counted:
    """Write ``gradient`` / ``over`` (float32 (size,)) to ``into`` (int32 (size,)).

    The caller refuses a gradient of which elements were poisoned: here nobody knows its parameters' names.
    """
    scratch = np.empty(min(_CHUNK, len(gradient)), np.float64)
    saturated = poisoned = 0
    for begin in range(0, len(gradient), _CHUNK):
        values = gradient[begin : begin + _CHUNK]
        scaled = np.multiply(values, _SCALE / over, out=scratch[: len(values)], dtype=np.float64)
        np.rint(scaled, out=scaled)
        # a comparison with NaN is false, so that one lands here too
        if not (scaled.min() >= -MOST and scaled.max() <= MOST):
            counted = _cut_off(values, scaled)
            saturated, poisoned = saturated + counted.saturated, poisoned + counted.poisoned
        into[begin : begin + _CHUNK] = scaled
    return Counted(saturated, poisoned)


def mean(total: Sums, many: float) -> Floats:
    """The mean gradient, float32 (size,), of which ``total`` (int64 (size,)) is ``many`` times as much."""
    found = np.empty(len(total), np.float32)
    scale = LIMIT / MOST / many
    for begin in range(0, len(total), _CHUNK):
        found[begin : begin + _CHUNK] = total[begin : begin + _CHUNK] * scale
    return found


def narrowed(sums: Sums, bits: int) -> Fixed:
    """``sums`` (int64, of at most 2**bits blocks) divided by 2**bits, halves up: these fit into 32 bits again."""
    if not bits:
        return sums.astype(np.int32)
    return ((sums + (1 << (bits - 1))) >> bits).astype(np.int32)


def _cut_off(values: Floats, scaled: NDArray[np.float64]) -> Counted:
    """Bring ``scaled`` into the range, in place."""
    wrong = ~np.isfinite(values)
    beyond = (np.abs(scaled) > MOST) & ~wrong
    np.clip(scaled, -MOST, MOST, out=scaled)
    scaled[wrong] = POISON
    return Counted(int(beyond.sum()), int(wrong.sum()))
