"""Indices in bits, one core, one pass each. 64-bit words, lowest bit first.

Indices are int64 (m,), strictly ascending in [0, size): what writes them says whether they were.
Nothing is written outside the arrays given, whatever is in them: they must only have the lengths
that are stated.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from testbed.compress.kernels.compilation import compiled
from testbed.compress.kernels.simd import lowest, ones

Words = NDArray[np.uint64]
Indices = NDArray[np.int64]


@compiled
def misplaced(indices: Indices, size: int) -> int:
    """Number of the first index that does not ascend in [0, ``size``); −1 if all do."""
    last = -1
    for position in range(indices.size):
        index = indices[position]
        if index <= last or index >= size:
            return position
        last = index
    return -1


@compiled
def count_ones(words: Words) -> int:
    """Bits that are 1."""
    total = 0
    for word in words:
        total += ones(word)
    return total


@compiled
def bitmap_write(indices: Indices, size: int, words: Words) -> bool:
    """Bit i of ``words`` (⌈size/64⌉) is 1 for every index i, else 0."""
    words[:] = 0
    last, at, word = -1, 0, np.uint64(0)
    for position in range(indices.size):
        index = indices[position]
        if index <= last or index >= size:
            return False
        last = index
        if index >> 6 != at:
            words[at] = word
            at, word = index >> 6, np.uint64(0)
        word |= np.uint64(1) << np.uint64(index & 63)
    if indices.size:
        words[at] = word
    return True


@compiled
def bitmap_read(words: Words, out: Indices) -> None:
    """Places of the bits that are 1, of which there are as many as ``out`` has room for."""
    position = 0
    for at in range(words.size):
        word = words[at]
        while word:
            out[position] = (at << 6) + lowest(word)
            word &= word - np.uint64(1)
            position += 1


@compiled
def bitmap_add(words: Words, indices: Indices, size: int) -> bool:
    """Set the bits of ``indices``, and leave the others."""
    last = -1
    for position in range(indices.size):
        index = indices[position]
        if index <= last or index >= size:
            return False
        last = index
        words[index >> 6] |= np.uint64(1) << np.uint64(index & 63)
    return True


@compiled
def elias_fano_write(indices: Indices, size: int, low: int, lows: Words, highs: Words) -> bool:
    """Both parts of ``elias_fano``, zeros behind them.

    ``lows``: ⌈low·m/64⌉ words or more; ``highs``: ⌈(m + ((size − m) >> low))/64⌉.
    """
    lows[:] = 0
    highs[:] = 0
    room = size - indices.size
    mask = (np.int64(1) << low) - 1
    last, at, word = 0, 0, np.uint64(0)
    filled, low_at, low_word = 0, 0, np.uint64(0)
    for position in range(indices.size):
        rest = indices[position] - position  # elements before it that are not sent
        if rest < last or rest > room:
            return False
        last = rest
        high = (rest >> low) + position
        if high >> 6 != at:
            highs[at] = word
            at, word = high >> 6, np.uint64(0)
        word |= np.uint64(1) << np.uint64(high & 63)
        bits = np.uint64(rest & mask)
        low_word |= bits << np.uint64(filled)
        filled += low
        if filled >= 64:
            lows[low_at] = low_word
            low_at += 1
            filled -= 64
            low_word = bits >> np.uint64(low - filled)
    if indices.size:
        highs[at] = word
    if filled:
        lows[low_at] = low_word
    return True


@compiled
def elias_fano_read(lows: Words, highs: Words, low: int, size: int, out: Indices) -> bool:
    """Read into ``out`` what ``elias_fano_write`` wrote.

    Returns False unless it ascends strictly in [0, ``size``).

    ``highs`` has as many ones as ``out`` has room for; ``lows`` has two words to spare.
    """
    room = size - out.size
    mask = (np.int64(1) << low) - 1
    position, last, rises = 0, np.int64(0), True
    for at in range(highs.size):
        word = highs[at]
        while word:
            high = (at << 6) + lowest(word) - position
            word &= word - np.uint64(1)
            bit = position * low
            begin, shift = bit >> 6, np.uint64(bit & 63)
            bits = lows[begin] >> shift
            bits |= (lows[begin + 1] << np.uint64(1)) << (np.uint64(63) - shift)
            rest = (high << low) | (np.int64(bits) & mask)
            if rest < last:
                rises = False
            last = rest
            out[position] = rest + position
            position += 1
    return bool(rises and last <= room)


def _warm() -> None:
    indices, words, lows = np.array([1, 5]), np.zeros(1, np.uint64), np.zeros(2, np.uint64)
    misplaced(indices, 6)
    bitmap_write(indices, 6, words)
    bitmap_add(words, indices, 6)
    bitmap_read(words, indices[: count_ones(words)])
    elias_fano_write(indices, 6, 0, lows, words)
    elias_fano_read(lows, words, 0, 6, indices)


WARM = (_warm,)
