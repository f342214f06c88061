"""How the indices of the elements sent are written: a coding per message, the shortest one.

``m`` indices of a vector of ``n``, ascending. Every coding's length depends on n and m alone.

dense    nothing: all n values are sent
bitmap   n bits, first element in the lowest bit of the first byte
int32    m × 4 bytes
rice     gaps between indices, about log2(n/m) + 2 bits each (``rice``)
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from testbed.compress import rice
from testbed.errors import WireError

Bytes = NDArray[np.uint8]
Indices = NDArray[np.int64]


class IndexCoding(IntEnum):
    """Number on the wire."""

    DENSE = 0
    BITMAP = 1
    INT32 = 2
    RICE = 3


def cheapest(size: int, count: int) -> IndexCoding:
    """The coding that makes the shortest payload; of equal ones the simplest."""

    def cost(coding: IndexCoding) -> int:
        values = size if coding is IndexCoding.DENSE else count
        return 4 * values + index_bytes(coding, size, count)

    return min((coding for coding in IndexCoding if can_index(coding, size)), key=cost)


def can_index(coding: IndexCoding, size: int) -> bool:
    """Whether ``coding`` reaches every element of a vector of ``size``."""
    return coding is not IndexCoding.INT32 or size <= 2**31


def index_bytes(coding: IndexCoding, size: int, count: int) -> int:
    """Length of the index section."""
    match coding:
        case IndexCoding.DENSE:
            return 0
        case IndexCoding.BITMAP:
            return -(-size // 8)
        case IndexCoding.INT32:
            return 4 * count
        case IndexCoding.RICE:
            return rice.section_bytes(size, count)


def write(coding: IndexCoding, section: Bytes, indices: Indices, size: int) -> None:
    """Fill ``section`` (of ``index_bytes``, zeros) with ``indices``, which have been checked."""
    match coding:
        case IndexCoding.BITMAP:
            bits = np.zeros(size, np.bool_)
            bits[indices] = True
            section[:] = np.packbits(bits, bitorder="little")
        case IndexCoding.INT32:
            section.view("<i4")[:] = indices
        case IndexCoding.RICE:
            rice.write(section, indices, size)
        case IndexCoding.DENSE:
            raise ValueError("a dense payload has no indices")


def read(coding: IndexCoding, section: Bytes, size: int, count: int) -> Indices:
    """Indices, not yet checked for range and order; WireError when they cannot be ``count`` of them."""
    match coding:
        case IndexCoding.BITMAP:
            return set_bits(section, size, count)
        case IndexCoding.INT32:
            return section.view("<i4").astype(np.int64)
        case IndexCoding.RICE:
            return rice.read(section, size, count)
        case IndexCoding.DENSE:
            raise ValueError("a dense payload has no indices")


def set_bits(section: Bytes, bits: int, count: int) -> Indices:
    """Positions of the ``count`` ones among the first ``bits`` bits; the rest of the bytes must be 0."""
    unpacked = np.unpackbits(section, bitorder="little").view(np.bool_)
    found: Indices = np.flatnonzero(unpacked)
    if found.size != count or (count and found[-1] >= bits):
        raise WireError(f"{found.size} bits are set where {count} of the first {bits} should be")
    return found
