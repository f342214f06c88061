"""A compressed message as bytes: header, values, indices; or several such in one, when every
parameter is compressed by itself. Little-endian.

offset   size  field
0        4     magic "NRWG"
4        1     version (2)
5        1     index coding (``IndexCoding``)
6        1     value coding (``Values.code``)
7        1     reserved, 0
8        8     n, size of the vector, at most ``MAX_SIZE``
16       8     m, count of values sent
24       8     v, length of the value section

offset   size  field
0        32    header, with v, the length of the value section (``header``)
32       v     values, as their coding has them, in ascending order of index
32+v     …     indices, as their coding has them (``indices``); to the end of the payload

The receiver knows the size that it waits for and refuses any other, so that no bytes can make it
allocate more than it must anyway. ``docs/reference/wire.md`` describes every byte.

offset   size  field
0        4     magic "NRWL"
4        1     version (1)
5        3     reserved, 0
8        8·p   lengths of the payloads, in the order of the parameters
8+8·p    …     the payloads, one after the other

Both sides know the parameters, and so how many payloads there are.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from testbed.compress.base import (
    Allocator,
    BufferPool,
    Bytes,
    Floats,
    PayloadBuffer,
    Sparse,
    Values,
    allocate,
    as_bytes,
)
from testbed.compress.builtin import coding_of
from testbed.compress.indices import (
    IndexCoding,
    Indices,
    can_index,
    decode_indices,
    encode_indices,
    index_bytes,
    seed_in,
    shortest,
    write_seed,
)
from testbed.compress.layout import Layout
from testbed.compress.values.floats import Fp32
from testbed.errors import WireError
from testbed.node import Buffer

__all__ = [
    "HEADER_BYTES",
    "MAX_SIZE",
    "Encoded",
    "PayloadReader",
    "decode",
    "encode",
    "payload_bytes",
]


MAGIC, VERSION = b"NRWG", 2
MAX_SIZE = 1 << 40
"""Longest vector in elements; keeps every sum over indices far inside 64 bits."""

_LAYOUT = struct.Struct("<4sBBBBQQQ")
HEADER_BYTES = _LAYOUT.size


@dataclass(frozen=True, slots=True)
class PayloadHeader:
    """``count`` of ``size`` elements; ``values``: the value coding's number, ``length``: of its
    section."""

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
            payload,
            0,
            MAGIC,
            VERSION,
            self.coding,
            self.values,
            0,
            self.size,
            self.count,
            self.length,
        )

    @classmethod
    def read(cls, payload: Bytes, size: int) -> PayloadHeader:
        """Read the header of the payload of a vector of ``size``.

        Raises WireError unless all of it is right, the length too.

        Nothing is allocated by what a header says before this has been checked.
        """
        if payload.size < HEADER_BYTES:
            raise WireError(f"a payload has at least {HEADER_BYTES} B, got {payload.size}")
        magic, version, index, values, reserved, stated, count, length = _LAYOUT.unpack_from(
            payload.data
        )
        if magic != MAGIC:
            raise WireError(f"not a payload: it begins with {magic!r} instead of {MAGIC!r}")
        if version != VERSION:
            raise WireError(f"payload version {version}, this side speaks {VERSION}")
        if reserved:
            raise WireError(f"the reserved byte is {reserved} instead of 0")
        if stated != size:
            raise WireError(f"payload for {stated} elements where {size} are needed")
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


_EXACT = Fp32(Layout(()))


@dataclass(frozen=True, slots=True)
class Encoded:
    """A payload, and what its receiver will read: float32 (m,), in the order of the indices sent.

    Both hold until the buffer or the value coding is used again.
    """

    payload: memoryview
    values: torch.Tensor


def payload_bytes(
    size: int,
    count: int,
    value_bytes: Callable[[int], int] | None = None,
    *,
    keeps_zero: bool = True,
    seeded: bool = False,
) -> int:
    """Bytes of the payload that ``count`` of ``size`` elements make, or at most make where their
    values are written in as many bits as they need; it does not depend on which.

    ``value_bytes``, ``keeps_zero``: of the value coding; float32 without them. ``seeded``: the
    indices follow from a seed.
    """
    section = value_bytes or _EXACT.section_bytes
    coding = shortest(size, count, section, keeps_zero=keeps_zero, seeded=seeded)
    values = size if coding is IndexCoding.DENSE else count
    return HEADER_BYTES + section(values) + index_bytes(coding, size, count)


def encode(
    sparse: Sparse,
    values: Values[Any] = _EXACT,
    rng: Random | None = None,
    buffer: PayloadBuffer | None = None,
    coding: IndexCoding | None = None,
) -> Encoded:
    """The payload of ``sparse`` (on the host); the shortest index coding unless one is given.

    It lies in ``buffer`` and holds until that is used again. Raises WireError for what no payload
    can hold: indices that do not ascend, a vector too long.
    """
    given, indices = _checked(sparse)
    header = _header(sparse, values, coding)
    buffer = buffer or PayloadBuffer()
    payload = buffer.take(header.payload_bytes)
    header.write(payload)
    body = as_bytes(payload)[HEADER_BYTES:]
    section, rest = body[: header.length], body[header.length :]
    if indices is not None:
        encode_indices(header.coding, rest, indices, sparse.size, buffer.scratch)
    if header.coding is IndexCoding.SEED and sparse.seed is not None:
        write_seed(rest, sparse.seed)
    spread = indices is not None and header.count > sparse.count
    full = _spread(given, indices, header.count, buffer.scratch) if spread else given
    kept = values.write(full, section, rng or Random(0))
    if (used := values.written_bytes(section)) < header.length:
        body[used : used + rest.size] = rest
        header = replace(header, length=used)
        header.write(payload)
        payload = payload[: header.payload_bytes]
    if kept is full:
        return Encoded(payload, sparse.values)
    if spread and indices is not None:
        room = buffer.scratch.array("kept", sparse.count, np.float32)
        kept = np.take(kept, indices, out=room, mode="clip")  # other modes make a copy
    return Encoded(payload, torch.from_numpy(kept))


class PayloadReader:
    """One payload of a vector of ``size``, its header read. Raises WireError for other bytes."""

    def __init__(self, payload: Buffer, size: int) -> None:
        raw = as_bytes(memoryview(payload).cast("B"))
        self.header = PayloadHeader.read(raw, size)
        self._body: Bytes = raw[HEADER_BYTES:]

    @property
    def dense(self) -> bool:
        """Return whether all elements are in it."""
        return self.header.coding is IndexCoding.DENSE

    @property
    def seed(self) -> int | None:
        """The seed that the indices follow from, if they do."""
        seeded = self.header.coding is IndexCoding.SEED
        return seed_in(self._body[self.header.length :]) if seeded else None

    def values(self, room: Allocator = allocate) -> Floats:
        """All of them, (m,), in the payload itself or in ``room``. Raises WireError."""
        header = self.header
        return coding_of(header.values).read(self._body[: header.length], header.count, room)

    def indices(self, out: Indices, scratch: BufferPool) -> None:
        """All of them into ``out`` (m,). Raises WireError unless they ascend strictly in [0, n)."""
        header = self.header
        decode_indices(header.coding, self._body[header.length :], header.size, out, scratch)


def decode(payload: Buffer, size: int, scratch: BufferPool | None = None) -> Sparse:
    """Read the payload of a vector of ``size`` into CPU tensors. Raises WireError for any other
    bytes.

    With ``scratch`` the result lies in it, and holds until it is used again. Values may view
    ``payload`` where that is writable: they then hold as long as it is left alone.
    """
    reader, scratch = PayloadReader(payload, size), scratch or BufferPool()
    values = torch.from_numpy(reader.values(scratch.room("values")))
    if reader.dense:
        return Sparse(size, None, values)
    indices = scratch.array("indices", reader.header.count, np.int64)
    reader.indices(indices, scratch)
    return Sparse(size, torch.from_numpy(indices), values, reader.seed)


def _checked(sparse: Sparse) -> tuple[Floats, Indices | None]:
    """Values and indices as arrays of the right form; their contents are not looked at yet."""
    if sparse.values.dtype != torch.float32:
        raise WireError(f"{sparse.values.dtype} cannot be sent: float32 only")
    values = _host(sparse.values)
    if sparse.indices is None:
        if sparse.count != sparse.size:
            raise WireError(
                f"{sparse.count} of {sparse.size} elements have no indices: only all can be sent so"
            )
        return values, None
    if sparse.indices.dtype != torch.int64 or sparse.indices.shape != sparse.values.shape:
        raise WireError(
            f"indices {sparse.indices.dtype} {tuple(sparse.indices.shape)} for {sparse.count} "
            "values"
        )
    return values, _host(sparse.indices)


def _host(tensor: torch.Tensor) -> NDArray[Any]:
    return np.ascontiguousarray(tensor.detach().numpy())


def _header(sparse: Sparse, values: Values[Any], coding: IndexCoding | None) -> PayloadHeader:
    """For the coding given, or the shortest one. Raises WireError for a coding that cannot be."""
    size, seeded = sparse.size, sparse.seed is not None
    if coding is None:
        coding = shortest(
            size, sparse.count, values.section_bytes, keeps_zero=values.keeps_zero, seeded=seeded
        )
    _check_coding(sparse, values, coding)
    count = size if coding is IndexCoding.DENSE else sparse.count
    header = PayloadHeader(coding, values.code, size, count, values.section_bytes(count))
    header.check()
    return header


def _check_coding(sparse: Sparse, values: Values[Any], coding: IndexCoding) -> None:
    name = coding.name.lower()
    if coding is IndexCoding.DENSE:
        if sparse.count < sparse.size and not values.keeps_zero:
            raise WireError(
                "a value coding that cannot write zeros cannot send what was not chosen"
            )
    elif sparse.indices is None or (coding is IndexCoding.SEED and sparse.seed is None):
        raise WireError(f"what has no indices, or none from a seed, cannot be sent as {name}")


def _spread(values: Floats, indices: Indices | None, size: int, scratch: BufferPool) -> Floats:
    """The whole vector, with zeros where nothing is sent; the indices have been checked."""
    full = scratch.array("full", size, np.float32)
    full.fill(0.0)
    full[indices] = values
    return full


LAYERS_MAGIC, LAYERS_VERSION = b"NRWL", 1
_HEAD = LAYERS_MAGIC + bytes([LAYERS_VERSION, 0, 0, 0])


def join(payloads: Sequence[Buffer], buffer: PayloadBuffer) -> memoryview:
    """One message of them all, in ``buffer``."""
    lengths = [len(payload) for payload in payloads]
    table = b"".join(length.to_bytes(8, "little") for length in lengths)
    message = buffer.take(len(_HEAD) + len(table) + sum(lengths))
    end = 0
    for piece in (_HEAD, table, *payloads):
        begin, end = end, end + len(piece)
        message[begin:end] = piece
    return message


def split(message: Buffer, count: int) -> list[memoryview]:
    """The ``count`` payloads of a message. Raises WireError for any other bytes."""
    view = memoryview(message).cast("B")
    begin = len(_HEAD) + 8 * count
    if len(view) < begin or bytes(view[: len(_HEAD)]) != _HEAD:
        raise WireError(f"this is not a message of {count} payloads")
    lengths = [int.from_bytes(view[at : at + 8], "little") for at in range(len(_HEAD), begin, 8)]
    if begin + sum(lengths) != len(view):
        raise WireError(f"{count} payloads of {sum(lengths)} B in a message of {len(view)} B")
    payloads = []
    for length in lengths:
        payloads.append(view[begin : begin + length])
        begin += length
    return payloads


def decode_layers(
    message: Buffer, sizes: Sequence[int], scratch: BufferPool | None = None
) -> Sparse:
    """Read a message of a vector whose parts have ``sizes``. Raises WireError.

    Dense where every part is. With ``scratch`` the result lies in it, and holds until it is used
    again.
    """
    parts = split(message, len(sizes))
    readers = []
    for number, (payload, size) in enumerate(zip(parts, sizes, strict=True), 1):
        with _named(number, len(sizes)):
            readers.append(PayloadReader(payload, size))
    scratch = scratch or BufferPool()
    count = sum(reader.header.count for reader in readers)
    values = scratch.array("joined values", count, np.float32)
    whole = all(reader.dense for reader in readers)
    indices = None if whole else scratch.array("joined indices", count, np.int64)
    at = offset = 0
    for number, reader in enumerate(readers, 1):
        own = slice(at, at + reader.header.count)
        with _named(number, len(sizes)):
            read = reader.values(lambda _, own=own: values[own])  # type: ignore[misc]
            if not np.may_share_memory(read, values):  # it views the payload
                values[own] = read
            if indices is not None:
                reader.indices(indices[own], scratch)
                indices[own] += offset
        at, offset = own.stop, offset + reader.header.size
    chosen = None if indices is None else torch.from_numpy(indices)
    return Sparse(offset, chosen, torch.from_numpy(values))


def read_message(message: Buffer, layout: Layout, scratch: BufferPool | None = None) -> Sparse:
    """A bucket's message, of one payload or of one for each parameter. Raises WireError.

    With ``scratch`` the result may lie in it, and holds until it is used again; values may view
    ``message``.
    """
    if bytes(memoryview(message).cast("B")[: len(LAYERS_MAGIC)]) == LAYERS_MAGIC:
        return decode_layers(message, [part.size for part in layout], scratch)
    return decode(message, layout.size, scratch)


@contextmanager
def _named(number: int, parts: int) -> Iterator[None]:
    """An error inside says which payload it is about."""
    try:
        yield
    except WireError as error:
        raise WireError(f"payload {number} of {parts}: {error}") from error
