"""Golomb–Rice coding of the gaps between indices, with a length that depends on n and m alone.

A gap g is the number of elements skipped before an index. Its low b bits are stored as they are, in b
bit planes of m bits each (plane j holds bit j of every gap; each plane begins at a byte). After them come
the high parts q = g >> b in unary: q zeros and a one, for all gaps one after the other. There are at most
(n − m) >> b zeros in all, and that many are provided for, so a message's length can be predicted.
b is the one that makes the section shortest, the smaller of two equal ones: both sides work it out.

With random indices this is at most 11 % above their entropy, n·H(m/n) bits.
(S. Golomb 1966; R. Rice 1979. The fixed length is P. Elias' of 1974.)
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from testbed.errors import WireError

Bytes = NDArray[np.uint8]
Indices = NDArray[np.int64]

_PARAMETERS = range(41)
"""Low bits that are considered: up to the length of the longest vector."""


def parameter(size: int, count: int) -> int:
    """b: how many low bits of a gap are stored as they are."""
    return min(
        _PARAMETERS, key=lambda low: _plane_bytes(low, count) + _unary_bytes(size, count, low)
    )


def section_bytes(size: int, count: int) -> int:
    """Length of the section for ``count`` indices of a vector of ``size``."""
    low = parameter(size, count)
    return _plane_bytes(low, count) + _unary_bytes(size, count, low)


def write(section: Bytes, indices: Indices, size: int) -> None:
    """Fill ``section``, which has ``section_bytes``, with ascending ``indices`` in [0, ``size``)."""
    count = indices.size
    low = parameter(size, count)
    gaps = np.diff(indices, prepend=-1) - 1
    plane = -(-count // 8)
    for bit in range(low):
        section[bit * plane : (bit + 1) * plane] = np.packbits(
            (gaps >> bit & 1).astype(np.bool_), bitorder="little"
        )
    unary = np.zeros(_unary_bits(size, count, low), np.bool_)
    unary[np.cumsum((gaps >> low) + 1) - 1] = True
    section[low * plane :] = np.packbits(unary, bitorder="little")


def read(section: Bytes, size: int, count: int) -> Indices:
    """Indices, strictly ascending from 0 on but perhaps beyond ``size``. Raises WireError otherwise.

    The zeros in the unary part bound the sum of the high parts by n, and b by its definition the sum
    of the low parts by little more: no bytes can make an index overflow.
    """
    low = parameter(size, count)
    plane = -(-count // 8)
    ends = _ones(section[low * plane :], count)
    gaps: Indices = np.diff(ends, prepend=-1) - 1
    if int(gaps.sum()) > (size - count) >> low:
        raise WireError("the high parts of the gaps go beyond the vector")
    gaps <<= low
    for bit in range(low):
        bits = np.unpackbits(section[bit * plane : (bit + 1) * plane], bitorder="little")
        if bits[count:].any():
            raise WireError("a bit plane is not followed by zeros")
        gaps |= bits[:count].astype(np.int64) << bit
    indices: Indices = np.cumsum(gaps + 1) - 1
    return indices


def _ones(section: Bytes, count: int) -> Indices:
    """Positions of the ones that end the unary numbers."""
    ends: Indices = np.flatnonzero(np.unpackbits(section, bitorder="little").view(np.bool_))
    if ends.size != count:
        raise WireError(f"{ends.size} gaps for {count} values")
    return ends


def _plane_bytes(low: int, count: int) -> int:
    return low * (-(-count // 8))


def _unary_bits(size: int, count: int, low: int) -> int:
    return count + ((size - count) >> low)


def _unary_bytes(size: int, count: int, low: int) -> int:
    return -(-_unary_bits(size, count, low) // 8)
