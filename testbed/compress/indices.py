"""How the indices of the elements sent are written: a coding per message, the shortest one.

``m`` indices of a vector of ``n``, strictly ascending. Every coding's length depends on n and m alone.

dense       nothing: all n values are sent
bitmap      n bits, first element in the lowest bit of the first byte
int32       m × 4 bytes
elias-fano  about log2(n/m) + 2 bits each (``elias_fano``)
seed        8 bytes, from which both sides work the indices out (``seeded``)
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from testbed.compress import elias_fano
from testbed.compress.base import Bytes
from testbed.compress.payload import Scratch
from testbed.errors import WireError

Indices = NDArray[np.int64]


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
        case IndexCoding.ELIAS_FANO:
            return elias_fano.section_bytes(size, count)
        case IndexCoding.SEED:
            return 8


def write(
    coding: IndexCoding, section: Bytes, indices: Indices, size: int, scratch: Scratch
) -> None:
    """Fill ``section``, which has ``index_bytes``. Raises WireError unless ``indices`` are as they must be."""
    from testbed.compress.kernels import loops_index

    match coding:
        case IndexCoding.BITMAP:
            words = scratch.array("high words", -(-size // 64), np.uint64)
            right = loops_index.bitmap_write(indices, size, words)
            section[:] = words.view(np.uint8)[: section.size]
        case IndexCoding.ELIAS_FANO:
            right = elias_fano.write(section, indices, size, scratch)
        case _:
            right = loops_index.misplaced(indices, size) < 0
    if not right:
        refuse(indices, size)
    if coding is IndexCoding.INT32:
        section.view("<i4")[:] = indices


def read(coding: IndexCoding, section: Bytes, size: int, out: Indices, scratch: Scratch) -> None:
    """Strictly ascending indices in [0, ``size``) into all of ``out``. Raises WireError for any other bytes."""
    from testbed.compress.kernels import loops_index

    match coding:
        case IndexCoding.DENSE:
            out[:1] = 0
            out[1:] = 1
            np.cumsum(out, out=out)
        case IndexCoding.BITMAP:
            words = scratch.array("high words", -(-size // 64), np.uint64)
            elias_fano.load(section, size, words)
            ones = loops_index.count_ones(words)
            if ones != out.size:
                raise WireError(f"{ones} bits are set where {out.size} should be")
            loops_index.bitmap_read(words, out)
        case IndexCoding.INT32:
            out[:] = section.view("<i4")
            if loops_index.misplaced(out, size) >= 0:
                refuse(out, size)
        case IndexCoding.ELIAS_FANO:
            elias_fano.read(section, size, out, scratch)
        case IndexCoding.SEED:
            from testbed.compress import seeded

            seeded.indices(size, out.size, seed_in(section), out)


def write_seed(section: Bytes, seed: int) -> None:
    """8 bytes, little-endian. Raises WireError for a seed that has no room in them."""
    if not 0 <= seed < 2**64:
        raise WireError(f"the seed {seed} is outside 0 to 2⁶⁴ − 1")
    section[:] = np.frombuffer(seed.to_bytes(8, "little"), np.uint8)


def seed_in(section: Bytes) -> int:
    """What ``write_seed`` wrote."""
    return int.from_bytes(section.tobytes(), "little")


def refuse(indices: Indices, size: int) -> NoReturn:
    """Raise WireError for the first of ``indices`` that is wrong; one must be."""
    from testbed.compress.kernels import loops_index

    place = loops_index.misplaced(indices, size)
    index = int(indices[place])
    if not 0 <= index < size:
        raise WireError(f"index {index} in a vector of {size}")
    raise WireError(f"indices do not ascend: {index} follows {indices[place - 1]}")
