"""The first 32 bytes of a payload: what is in it, and how long it is.

offset   size  field
0        4     magic "NRWG"
4        1     version (2)
5        1     index coding (``IndexCoding``)
6        1     value coding (``Values.code``)
7        1     reserved, 0
8        8     n, size of the vector, at most ``MAX_SIZE``
16       8     m, count of values sent
24       8     v, length of the value section
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from testbed.compress.base import Bytes
from testbed.compress.indices import IndexCoding, can_index, index_bytes
from testbed.errors import WireError

MAGIC, VERSION = b"NRWG", 2
MAX_SIZE = 1 << 40
"""Longest vector in elements; keeps every sum over indices far inside 64 bits."""

_LAYOUT = struct.Struct("<4sBBBBQQQ")
HEADER_BYTES = _LAYOUT.size


@dataclass(frozen=True, slots=True)
class Header:
    """``count`` of ``size`` elements; ``values``: the value coding's number, ``length``: of its section."""

    coding: IndexCoding
    values: int
    size: int
    count: int
    length: int

    @property
    def payload_bytes(self) -> int:
        """Length of the whole payload."""
        return HEADER_BYTES + self.length + index_bytes(self.coding, self.size, self.count)

    def write(self, payload: memoryview) -> None:
        """Into the beginning of ``payload``."""
        _LAYOUT.pack_into(
            payload, 0, MAGIC, VERSION, self.coding, self.values, 0, self.size, self.count, self.length
        )  # fmt: skip

    @classmethod
    def read(cls, payload: Bytes, size: int) -> Header:
        """Of the payload of a vector of ``size``. Raises WireError unless all of it is right, the length too.

        Nothing is allocated by what a header says before this has been checked.
        """
        if payload.size < HEADER_BYTES:
            raise WireError(f"a payload has at least {HEADER_BYTES} B, got {payload.size}")
        magic, version, index, values, reserved, told, count, length = _LAYOUT.unpack_from(
            payload.data
        )
        if magic != MAGIC:
            raise WireError(f"not a payload: it begins with {magic!r} instead of {MAGIC!r}")
        if version != VERSION:
            raise WireError(f"payload version {version}, this side speaks {VERSION}")
        if reserved:
            raise WireError(f"the reserved byte is {reserved} instead of 0")
        if told != size:
            raise WireError(f"payload for {told} elements where {size} are needed")
        header = cls(_coding(index), values, size, count, length)
        header.check()
        if payload.size != header.payload_bytes:
            raise WireError(
                f"payload of {count} of {size} elements ({header.coding.name.lower()}) has "
                f"{payload.size} B instead of {header.payload_bytes}"
            )
        return header

    def check(self) -> None:
        """Raise WireError for numbers that cannot be."""
        size, coding, name = self.size, self.coding, self.coding.name.lower()
        if size > MAX_SIZE or not can_index(coding, size):
            raise WireError(f"a vector of {size} elements is too long ({name})")
        if self.count > size or (coding is IndexCoding.DENSE and self.count != size):
            raise WireError(f"{self.count} of {size} elements cannot be ({name})")


def _coding(number: int) -> IndexCoding:
    try:
        return IndexCoding(number)
    except ValueError:
        raise WireError(f"unknown index coding {number}") from None
