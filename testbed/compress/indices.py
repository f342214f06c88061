"""How indices of the elements that are sent are written: a coding per message, the shortest of
bitmap, int32, Elias–Fano, or a seed.

Index i_j, the j-th of m in a vector of n, comes after i_j − j elements that are not sent. These
numbers y_j do not descend and are at most n − m. Their low b bits are stored as they are, one after
the other. Of the high parts, one bit in each place (y_j >> b) + j is 1: in m + ((n − m) >> b) bits.
b is the smallest for which (n − m) >> b is at most 2m, which makes both together shortest: about
log2(n/m) + 2 bits an index.

With random indices this is at most 11 % above their entropy, n·H(m/n) bits. (P. Elias, "Efficient
storage and retrieval by content and address of static files", J. ACM 1974; R. Fano 1971. The same
length as Golomb–Rice coding of the gaps, but no index waits for the one before it.)

``m`` indices of a vector of ``n``, strictly ascending. Every coding's length depends on n and m
alone.

dense       nothing: all n values are sent
bitmap      n bits, first element in the lowest bit of the first byte
int32       m × 4 bytes
elias-fano  about log2(n/m) + 2 bits each (below)
seed        8 bytes, from which both sides work the indices out (below)

Up to ``SORTED`` elements: those with the least words of the seed's stream (``words``), of equal
words the first. Beyond: the first ``count`` elements of a random permutation of [0, n), made
without a table: a Feistel network on the least power of two that holds n, 2^b, applied again until
the result is below n ("cycle walking", Black and Rogaway 2002). With l = ⌊b/2⌋ lower bits L and the
b − l upper ones H, and W(s, i) for element i of the stream of s, the rounds r = 0, 2, 4 are

    H ← H xor (W(W(seed, r), L) mod 2^(b−l))        L ← L xor (W(W(seed, r+1), H) mod 2^l)
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from testbed.compress.base import BufferPool, Bytes
from testbed.errors import WireError

Indices = NDArray[np.int64]
Words = NDArray[np.uint64]
_STEP, _MIX = 0x9E37_79B9_7F4A_7C15, ((30, 0xBF58_476D_1CE4_E5B9), (27, 0x94D0_49BB_1331_11EB))
_LAST = 31


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
    """Length of the section for ``count`` indices of a vector of ``size``; parts begin at bytes."""
    lows, highs = bits(size, count)
    return -(-lows // 8) + -(-highs // 8)


def write(section: Bytes, indices: Indices, size: int, scratch: BufferPool) -> bool:
    """Fill ``section``, which has ``section_bytes``; False for indices that do not ascend in [0,
    ``size``)."""
    from testbed.compress.kernels import index_codecs

    lows, highs = _words(size, indices.size, scratch)
    low = low_bits(size, indices.size)
    right = index_codecs.elias_fano_write(indices, size, low, lows, highs)
    middle = -(-low * indices.size // 8)
    section[:middle] = lows.view(np.uint8)[:middle]
    section[middle:] = highs.view(np.uint8)[: section.size - middle]
    return right


def read(section: Bytes, size: int, out: Indices, scratch: BufferPool) -> None:
    """Strictly ascending indices in [0, ``size``) into all of ``out``. Raises WireError for any
    other bytes."""
    from testbed.compress.kernels import index_codecs

    count = out.size
    lows, highs = _words(size, count, scratch)
    low_length, high_length = bits(size, count)
    middle = -(-low_length // 8)
    load(section[:middle], low_length, lows)
    load(section[middle:], high_length, highs)
    ones = index_codecs.count_ones(highs)
    if ones != count:
        raise WireError(f"{ones} high parts for {count} indices")
    if not index_codecs.elias_fano_read(lows, highs, low_bits(size, count), size, out):
        raise WireError(f"indices do not ascend, or lie beyond a vector of {size}")


def load(section: Bytes, used: int, words: NDArray[np.uint64]) -> None:
    """Bytes of ``used`` bits into aligned words, zero behind them. Raises WireError for filling."""
    if used % 8 and section[-1] >> used % 8:
        raise WireError("the unused bits of a last byte are not zero")
    words[section.size // 8 :] = 0
    words.view(np.uint8)[: section.size] = section


def _words(
    size: int, count: int, scratch: BufferPool
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Room for both parts; the low one has two words to spare: each number is read from two,
    without a branch."""
    lows, highs = bits(size, count)
    return (
        scratch.array("low words", -(-lows // 64) + 2, np.uint64),
        scratch.array("high words", -(-highs // 64), np.uint64),
    )


class IndexCoding(IntEnum):
    """Number on the wire."""

    DENSE = 0
    BITMAP = 1
    INT32 = 2
    ELIAS_FANO = 3
    SEED = 4


def shortest(
    size: int, count: int, values: Callable[[int], int], *, keeps_zero: bool, seeded: bool
) -> IndexCoding:
    """The coding that makes the payload shortest; of equal ones the first.

    ``values``: length of a value section. ``keeps_zero``: the elements that are not chosen can be
    sent as zeros. ``seeded``: the indices follow from a seed.
    """
    section = values(count)
    lengths = {
        coding: section + index_bytes(coding, size, count)
        for coding in IndexCoding
        if coding is not IndexCoding.DENSE and can_index(coding, size)
    }
    if not seeded:
        del lengths[IndexCoding.SEED]
    best = min(lengths, key=lengths.__getitem__)
    if count == size or (keeps_zero and values(size) <= lengths[best]):
        return IndexCoding.DENSE
    return best


def can_index(coding: IndexCoding, size: int) -> bool:
    """Return whether ``coding`` reaches every element of a vector of ``size``."""
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
        case IndexCoding.ELIAS_FANO:
            return section_bytes(size, count)
        case IndexCoding.SEED:
            return 8


def encode_indices(
    coding: IndexCoding, section: Bytes, indices: Indices, size: int, scratch: BufferPool
) -> None:
    """Fill ``section``, which has ``index_bytes``. Raises WireError unless ``indices`` are as they
    must be."""
    from testbed.compress.kernels import index_codecs

    match coding:
        case IndexCoding.BITMAP:
            words = scratch.array("high words", -(-size // 64), np.uint64)
            right = index_codecs.bitmap_write(indices, size, words)
            section[:] = words.view(np.uint8)[: section.size]
        case IndexCoding.ELIAS_FANO:
            right = write(section, indices, size, scratch)
        case _:
            right = index_codecs.misplaced(indices, size) < 0
    if not right:
        refuse(indices, size)
    if coding is IndexCoding.INT32:
        section.view("<i4")[:] = indices


def decode_indices(
    coding: IndexCoding, section: Bytes, size: int, out: Indices, scratch: BufferPool
) -> None:
    """Strictly ascending indices in [0, ``size``) into all of ``out``. Raises WireError for any
    other bytes."""
    from testbed.compress.kernels import index_codecs

    match coding:
        case IndexCoding.DENSE:
            out[:1] = 0
            out[1:] = 1
            np.cumsum(out, out=out)
        case IndexCoding.BITMAP:
            words = scratch.array("high words", -(-size // 64), np.uint64)
            load(section, size, words)
            ones = index_codecs.count_ones(words)
            if ones != out.size:
                raise WireError(f"{ones} bits are set where {out.size} should be")
            index_codecs.bitmap_read(words, out)
        case IndexCoding.INT32:
            out[:] = section.view("<i4")
            if index_codecs.misplaced(out, size) >= 0:
                refuse(out, size)
        case IndexCoding.ELIAS_FANO:
            read(section, size, out, scratch)
        case IndexCoding.SEED:
            indices(size, out.size, seed_in(section), out)


def write_seed(section: Bytes, seed: int) -> None:
    """8 bytes, little-endian. Raises WireError for a seed that has no room in them."""
    if not 0 <= seed < 2**64:
        raise WireError(f"the seed {seed} is outside 0 to 2⁶⁴ − 1")
    section[:] = np.frombuffer(seed.to_bytes(8, "little"), np.uint8)


def seed_in(section: Bytes) -> int:
    """Return the seed that ``write_seed`` wrote."""
    return int.from_bytes(section.tobytes(), "little")


def refuse(indices: Indices, size: int) -> NoReturn:
    """Raise WireError for the first of ``indices`` that is wrong; one must be."""
    from testbed.compress.kernels import index_codecs

    first = index_codecs.misplaced(indices, size)
    index = int(indices[first])
    if not 0 <= index < size:
        raise WireError(f"index {index} in a vector of {size}")
    raise WireError(f"indices do not ascend: {index} follows {indices[first - 1]}")


SORTED = 4096
"""Longest vector whose words are sorted; a Feistel network on few bits would not be random
enough."""
ROUNDS = 6


def indices(size: int, count: int, seed: int, out: Indices | None = None) -> Indices:
    """``count`` different indices of [0, ``size``), int64 ascending; memory for ``count`` of them.

    ``seed``: 0 to 2⁶⁴ − 1. They are written to ``out`` (contiguous), where it is given.
    """
    if not 0 <= count <= size:
        raise ValueError(f"{count} of {size} elements")
    if out is None:
        out = np.empty(count, np.int64)
    if count == size:
        out[:] = np.arange(size)
    elif size <= SORTED:
        out[:] = _least(size, count, seed)
    else:
        from testbed.compress.kernels import random_loops

        random_loops.fill_permuted(keys(seed), size, out)
    out.sort()
    return out


def words(seed: int, count: int) -> Words:
    """The first ``count`` elements of the stream of ``seed``: those of ``random_loops``, in
    numpy."""
    z = np.uint64(seed) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_STEP)
    for shift, factor in _MIX:
        z = (z ^ (z >> np.uint64(shift))) * np.uint64(factor)
    return z ^ (z >> np.uint64(_LAST))


def keys(seed: int) -> Words:
    """One for each round."""
    return words(seed, ROUNDS)


def _least(size: int, count: int, seed: int) -> Indices:
    return np.argsort(words(seed, size), kind="stable")[:count].astype(np.int64)
