"""A random set of indices that follows from a seed alone: the same for all machines and versions.

Up to ``SORTED`` elements: those with the least words of the seed's stream (``kernels.random``), of equal
words the first. Beyond: the first ``count`` elements of a random permutation of [0, n), made without
a table: a Feistel network on the least power of two that holds n, 2^b, applied again until the result is
below n ("cycle walking", Black and Rogaway 2002). With l = ⌊b/2⌋ lower bits L and the b − l upper ones H,
and W(s, i) for element i of the stream of s, the rounds r = 0, 2, 4 are

    H ← H xor (W(W(seed, r), L) mod 2^(b−l))        L ← L xor (W(W(seed, r+1), H) mod 2^l)
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from testbed.compress.kernels.random import words

Indices = NDArray[np.int64]
Words = NDArray[np.uint64]

SORTED = 4096
"""Longest vector whose words are sorted; a Feistel network on few bits would not be random enough."""
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
        from testbed.compress.kernels import loops_seeded

        loops_seeded.fill(keys(seed), size, out)
    out.sort()
    return out


def reference(size: int, count: int, seed: int) -> Indices:
    """What ``indices`` gives, in numpy: what the loops are tested against."""
    if size <= SORTED:
        return np.sort(_least(size, count, seed))
    found = _permuted(np.arange(count, dtype=np.uint64), keys(seed), size)
    outside = np.flatnonzero(found >= size)
    while outside.size:
        found[outside] = _permuted(found[outside], keys(seed), size)
        outside = outside[found[outside] >= size]
    return np.sort(found.astype(np.int64))


def keys(seed: int) -> Words:
    """One for each round."""
    return words(seed, ROUNDS)


def _least(size: int, count: int, seed: int) -> Indices:
    return np.argsort(words(seed, size), kind="stable")[:count].astype(np.int64)


def _permuted(elements: Words, rounds: Words, size: int) -> Words:
    """The network once, on the numbers below 2^b."""
    bits = (size - 1).bit_length()
    shift = np.uint64(bits // 2)
    high_mask, low_mask = np.uint64((1 << bits - bits // 2) - 1), np.uint64((1 << bits // 2) - 1)
    high, low = elements >> shift, elements & low_mask
    for r in range(0, ROUNDS, 2):
        high = high ^ (_word(rounds[r], low) & high_mask)
        low = low ^ (_word(rounds[r + 1], high) & low_mask)
    return high << shift | low


def _word(seed: np.uint64, index: Words) -> Words:
    """Element ``index`` of the stream of ``seed``."""
    z = seed + (index + np.uint64(1)) * np.uint64(0x9E37_79B9_7F4A_7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58_476D_1CE4_E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D0_49BB_1331_11EB)
    mixed: Words = z ^ (z >> np.uint64(31))
    return mixed
