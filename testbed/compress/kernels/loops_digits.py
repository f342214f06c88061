"""Counts of the values of some bits of each magnitude: what a radix select asks for."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from testbed.compress.kernels.grid import MAGNITUDE
from testbed.compress.kernels.jit import compiled

Bits = NDArray[np.uint32]
Counts = NDArray[np.uint32]
"""Up to 2³² elements of a value; a vector of more would be 16 GiB."""

_MAGNITUDE = np.uint32(MAGNITUDE)
BESIDE = 4
"""Counts that are kept beside each other: most elements share a few values, and an increment has to
wait for the one before it in the same place."""
_ROW = 4096
"""Digits that are taken out at once, by vector instructions, before they are counted one by one."""


@compiled
def first(bits: Bits, shift: int, counts: Counts) -> None:
    """Add to ``counts`` (``BESIDE``, values) those of the magnitudes' bits from ``shift`` on."""
    by, row = np.uint32(shift), np.empty(_ROW, np.uint32)
    for start in range(0, bits.size, _ROW):
        part = bits[start : start + _ROW]
        for i in range(part.size):
            row[i] = (part[i] & _MAGNITUDE) >> by
        whole = part.size // BESIDE * BESIDE
        for i in range(0, whole, BESIDE):
            digits = row[i : i + BESIDE]
            for place in range(BESIDE):
                counts[place, digits[place]] += np.uint32(1)
        for i in range(whole, part.size):
            counts[0, row[i]] += np.uint32(1)


@compiled
def below(bits: Bits, shift: int, width: int, prefix: int, counts: Counts) -> None:
    """Add to ``counts`` (1, values) those of ``width`` bits from ``shift`` on, below the bits ``prefix``."""
    by, above, wanted = np.uint32(shift), np.uint32(shift + width), np.uint32(prefix)
    mask = np.uint32((1 << width) - 1)
    for i in range(bits.size):
        magnitude = bits[i] & _MAGNITUDE
        if magnitude >> above == wanted:
            counts[0, (magnitude >> by) & mask] += np.uint32(1)


def _warm() -> None:
    bits, counts = np.zeros(3, np.uint32), np.zeros((BESIDE, 2048), np.uint32)
    first(bits, 20, counts)
    below(bits, 9, 11, 0, counts)


WARM = (_warm,)
