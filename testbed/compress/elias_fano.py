"""Elias–Fano coding of ascending indices, with a length that depends on n and m alone.

Index i_j, the j-th of m in a vector of n, comes after i_j − j elements that are not sent. These numbers
y_j do not descend and are at most n − m. Their low b bits are stored as they are, one after the other. Of
the high parts, one bit in each place (y_j >> b) + j is 1: in m + ((n − m) >> b) bits. b is the smallest for
which (n − m) >> b is at most 2m, which makes both together shortest: about log2(n/m) + 2 bits an index.

With random indices this is at most 11 % above their entropy, n·H(m/n) bits.
(P. Elias, "Efficient storage and retrieval by content and address of static files", J. ACM 1974;
R. Fano 1971. The same length as Golomb–Rice coding of the gaps, but no index waits for the one before it.)
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from testbed.compress.base import Bytes
from testbed.compress.payload import Scratch
from testbed.errors import WireError

Indices = NDArray[np.int64]


def low_bits(size: int, count: int) -> int:
    """b: how many bits of a number are stored as they are."""
    low = 0
    while (size - count) >> low > 2 * count:
        low += 1
    return low


def bits(size: int, count: int) -> tuple[int, int]:
    """Length of the part of the low bits and of that of the high ones, in bits."""
    low = low_bits(size, count)
    return low * count, count + ((size - count) >> low)


def section_bytes(size: int, count: int) -> int:
    """Length of the section for ``count`` indices of a vector of ``size``; each part begins at a byte."""
    lows, highs = bits(size, count)
    return -(-lows // 8) + -(-highs // 8)


def write(section: Bytes, indices: Indices, size: int, scratch: Scratch) -> bool:
    """Fill ``section``, which has ``section_bytes``; False for indices that do not ascend in [0, ``size``)."""
    from testbed.compress.kernels import loops_index

    lows, highs = _words(size, indices.size, scratch)
    low = low_bits(size, indices.size)
    right = loops_index.elias_fano_write(indices, size, low, lows, highs)
    middle = -(-low * indices.size // 8)
    section[:middle] = lows.view(np.uint8)[:middle]
    section[middle:] = highs.view(np.uint8)[: section.size - middle]
    return right


def read(section: Bytes, size: int, out: Indices, scratch: Scratch) -> None:
    """Strictly ascending indices in [0, ``size``) into all of ``out``. Raises WireError for any other bytes."""
    from testbed.compress.kernels import loops_index

    count = out.size
    lows, highs = _words(size, count, scratch)
    low_length, high_length = bits(size, count)
    middle = -(-low_length // 8)
    load(section[:middle], low_length, lows)
    load(section[middle:], high_length, highs)
    ones = loops_index.count_ones(highs)
    if ones != count:
        raise WireError(f"{ones} high parts for {count} indices")
    if not loops_index.elias_fano_read(lows, highs, low_bits(size, count), size, out):
        raise WireError(f"indices do not ascend, or lie beyond a vector of {size}")


def load(section: Bytes, used: int, words: NDArray[np.uint64]) -> None:
    """Bytes of ``used`` bits into words that are aligned and zero behind them. Raises WireError for filling."""
    if used % 8 and section[-1] >> used % 8:
        raise WireError("the unused bits of a last byte are not zero")
    words[section.size // 8 :] = 0
    words.view(np.uint8)[: section.size] = section


def _words(
    size: int, count: int, scratch: Scratch
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Room for both parts; the low one has two words to spare: each number is read from two, without a branch."""
    lows, highs = bits(size, count)
    return (
        scratch.array("low words", -(-lows // 64) + 2, np.uint64),
        scratch.array("high words", -(-highs // 64), np.uint64),
    )
