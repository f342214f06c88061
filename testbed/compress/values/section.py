"""Common parts of value sections: options, scales, packed codes, and the checks of a reader."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from testbed.compress.base import Bytes, Floats, whole_number
from testbed.errors import InputError, WireError

WORD = 4
"""Bytes of a float32 and of a uint32."""
LARGEST_BUCKET = 1 << 18
"""Chunks that threads share out are whole buckets."""


def bucket_size(coding: str, value: object) -> int:
    """An option. Raises InputError unless it is a power of two from 8 on: buckets begin with a
    byte."""
    size = whole_number(f"value coding {coding!r}: bucket", value, 8, LARGEST_BUCKET)
    if size & (size - 1):
        raise InputError(
            f"value coding {coding!r}: bucket {size} is not a power of two",
            hint=f"Write for example {1 << size.bit_length() - 1}",
        )
    return size


def pieces(count: int, size: int) -> int:
    """How many buckets of ``size`` (or bytes of so many) hold ``count``; the last one may be
    short."""
    return -(-count // size)


def numbers(section: Bytes, at: int, count: int) -> list[int]:
    """``count`` uint32 from byte ``at`` on. Raises WireError where the section ends before."""
    if section.size < at + WORD * count:
        raise WireError(f"a value section of {section.size} B ends within its parameters")
    found: list[int] = section[at : at + WORD * count].view("<u4").tolist()
    return found


def bucket_in(section: Bytes) -> int:
    """The size of buckets, which the section begins with. Raises WireError for an impossible
    one."""
    (size,) = numbers(section, 0, 1)
    if not 8 <= size <= LARGEST_BUCKET or size & (size - 1):
        raise WireError(f"buckets of {size} values")
    return size


def expect(section: Bytes, length: int, count: int) -> None:
    """Raise WireError unless the section has ``length`` bytes."""
    if section.size != length:
        raise WireError(f"a value section of {section.size} B where {count} values take {length}")


def put(section: Bytes, at: int, array: NDArray[Any]) -> int:
    """Write float32 or uint32 from byte ``at`` on, wherever that lies in memory; returns the
    end."""
    end = at + array.nbytes
    section[at:end].view(array.dtype.newbyteorder("<"))[:] = array
    return end


def scales(section: Bytes, at: int, count: int, *, signed: bool = False) -> Floats:
    """``count`` float32 from byte ``at`` on. Raises WireError for NaN, infinity, −0, and below 0 if
    not ``signed``."""
    found = section[at : at + WORD * count].view("<f4").astype(np.float32)
    if not np.isfinite(found).all():
        raise WireError("a scale is not finite")
    below = np.signbit(found)
    if (below & (found == 0.0)).any() if signed else below.any():
        raise WireError("a scale is below 0")
    return found


def usable(array: NDArray[Any], kind: DTypeLike) -> NDArray[Any]:
    """The same elements as loops are compiled for: contiguous, aligned, writable. Copied only if
    need be."""
    return np.require(array, kind, ["C", "A", "W"])


def no_remainder(body: Bytes, bits: int) -> None:
    """Raise WireError unless all bits of ``body`` after the first ``bits`` are 0; it has no byte
    too many."""
    if bits % 8 and body[-1] >> bits % 8:
        raise WireError("bits after the last value are set")


def all_right(found: Iterable[int]) -> None:
    """Raise WireError unless every part of a vector said −1: no bucket is wrong."""
    if any(bucket >= 0 for bucket in found):
        raise WireError("levels do not fit their bucket's scale")
