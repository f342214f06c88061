"""What ``loops_index`` does, in plain numpy: what it is tested against and compared with."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from testbed.compress.elias_fano import low_bits

Bytes = NDArray[np.uint8]
Indices = NDArray[np.int64]


def bitmap_write(indices: Indices, size: int) -> Bytes:
    """A mask, packed."""
    mask = np.zeros(size, np.bool_)
    mask[indices] = True
    return np.packbits(mask, bitorder="little")


def bitmap_read(section: Bytes) -> Indices:
    """Places of the ones."""
    places: Indices = np.flatnonzero(np.unpackbits(section, bitorder="little").view(np.bool_))
    return places


def int32_write(indices: Indices) -> Bytes:
    """A cast."""
    return indices.astype("<i4").view(np.uint8)


def int32_read(section: Bytes) -> Indices:
    """The cast back."""
    return section.view("<i4").astype(np.int64)


def elias_fano_write(indices: Indices, size: int) -> Bytes:
    """Low bits from a matrix (m, b) of bits, high parts from a mask."""
    count = indices.size
    low = low_bits(size, count)
    rests = indices - np.arange(count)
    bits = (rests[:, None] >> np.arange(low) & 1).astype(np.uint8)
    marks = np.zeros(count + ((size - count) >> low), np.bool_)
    marks[(rests >> low) + np.arange(count)] = True
    parts = [np.packbits(part, bitorder="little") for part in (bits.ravel(), marks)]
    return np.concatenate(parts)


def elias_fano_read(section: Bytes, size: int, count: int) -> Indices:
    """Of bytes that ``elias_fano_write`` made."""
    low = low_bits(size, count)
    middle = -(-low * count // 8)
    bits = np.unpackbits(section[:middle], count=low * count, bitorder="little")
    lows = bits.reshape(count, low).astype(np.int64) @ (1 << np.arange(low))
    order = np.arange(count)
    highs = bitmap_read(section[middle:]) - order
    indices: Indices = (highs << low | lows) + order
    return indices
