"""Random numbers and indices that follow from a seed, computed in numpy: what loops are tested against."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from testbed.compress.indices import ROUNDS, SORTED, Indices, Words, keys, words
from testbed.compress.kernels import cpu, random_loops


def uniforms(seed: int, count: int) -> NDArray[np.float32]:
    """The first ``count`` elements of the stream, in [0, 1), in numpy."""
    return (words(seed, count) >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)


def uniforms_by_threads(seed: int, out: NDArray[np.float32]) -> None:
    """Set ``out`` to the stream's first elements, by loops that threads share out."""

    def part(_: int, first: int, last: int) -> None:
        random_loops.fill(np.uint64(seed), first, out[first:last])

    cpu.over(out.size, part)


def indices(size: int, count: int, seed: int) -> Indices:
    """What ``testbed.compress.indices.indices`` gives."""
    if size <= SORTED:
        return np.sort(np.argsort(words(seed, size), kind="stable")[:count].astype(np.int64))
    chosen = _permuted(np.arange(count, dtype=np.uint64), keys(seed), size)
    outside = np.flatnonzero(chosen >= size)
    while outside.size:
        chosen[outside] = _permuted(chosen[outside], keys(seed), size)
        outside = outside[chosen[outside] >= size]
    return np.sort(chosen.astype(np.int64))


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
