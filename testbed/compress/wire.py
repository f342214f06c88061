"""The payload: a self-describing message that holds part of a flat vector. Little-endian throughout.

offset   size  field
0        4     magic "NRWG"
4        1     version (1)
5        1     index coding (``IndexCoding``)
6        1     value coding (``ValueCoding``)
7        1     reserved, 0
8        8     size of the vector, at most ``MAX_SIZE``
16       8     count of elements sent
24       4·m   values, float32, in ascending order of index
24+4·m   …     indices, as their coding has them (``indices``); to the end of the payload

The length of a payload follows from its header alone, so that it is checked before anything is
allocated. ``docs/wire.md`` describes every byte.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from testbed.compress.base import Sparse
from testbed.compress.indices import (
    Bytes,
    IndexCoding,
    Indices,
    can_index,
    cheapest,
    index_bytes,
    read,
    write,
)
from testbed.errors import WireError
from testbed.node import Buffer

MAGIC, VERSION = b"NRWG", 1
MAX_SIZE = 1 << 40
"""Longest vector in elements; keeps every sum over indices far inside 64 bits."""

_LAYOUT = struct.Struct("<4sBBBBQQ")
HEADER_BYTES = _LAYOUT.size


class ValueCoding(IntEnum):
    """How a value is written."""

    FP32 = 0


def payload_bytes(size: int, count: int, coding: IndexCoding | None = None) -> int:
    """Bytes of the payload that ``count`` of ``size`` elements make; it does not depend on which.

    ``coding`` None: the cheapest one, as ``encode`` chooses it.
    """
    coding = cheapest(size, count) if coding is None else coding
    values = size if coding is IndexCoding.DENSE else count
    return HEADER_BYTES + 4 * values + index_bytes(coding, size, count)


def encode(sparse: Sparse, coding: IndexCoding | None = None) -> bytearray:
    """The payload of ``sparse`` (any device) in one buffer; the cheapest index coding unless one is given.

    Raises WireError for what no payload can hold: indices that do not ascend, a vector too long.
    """
    size, count = sparse.size, sparse.count
    if sparse.values.dtype != torch.float32:
        raise WireError(f"{sparse.values.dtype} cannot be sent: float32 only")
    if coding is None:
        coding = cheapest(size, count)
    _check_size(size, coding)
    values = _host(sparse.values)
    indices = None if sparse.indices is None else _host(sparse.indices)
    if indices is None and (count != size or coding is not IndexCoding.DENSE):
        raise WireError(f"{count} of {size} elements have no indices: only all can be sent so")
    if indices is not None:
        check_indices(indices, size, count)
        if coding is IndexCoding.DENSE:
            values, indices, count = _spread(values, indices, size), None, size
    buffer = bytearray(payload_bytes(size, count, coding))
    _LAYOUT.pack_into(buffer, 0, MAGIC, VERSION, coding, ValueCoding.FP32, 0, size, count)
    body = np.frombuffer(buffer, np.uint8)[HEADER_BYTES:]
    body[: 4 * count].view("<f4")[:] = values
    if indices is not None:
        write(coding, body[4 * count :], indices, size)
    return buffer


def decode(buffer: Buffer) -> Sparse:
    """Read a payload into CPU tensors. Raises WireError for any bytes that are not exactly one payload.

    Values are not copied where ``buffer`` is writable and aligned: they then hold as long as it is
    left alone. Memory taken is at most some ten times the buffer's own length, whatever it says.
    """
    raw: Bytes = np.frombuffer(memoryview(buffer).cast("B"), np.uint8) if len(buffer) else _EMPTY
    coding, size, count = _header(raw)
    expected = payload_bytes(size, count, coding)
    if raw.size != expected:
        raise WireError(
            f"payload of {count} of {size} elements ({coding.name.lower()}) has {raw.size} B "
            f"instead of {expected}"
        )
    body = raw[HEADER_BYTES:]
    values = body[: 4 * count].view("<f4")
    if not (values.flags.writeable and values.flags.aligned):
        values = values.copy()
    indices = None
    if coding is not IndexCoding.DENSE:
        found = read(coding, body[4 * count :], size, count)
        check_indices(found, size, count)
        indices = torch.from_numpy(found)
    return Sparse(size, indices, torch.from_numpy(values))


def check_indices(indices: Indices, size: int, count: int) -> None:
    """Raise WireError unless there are ``count`` indices, strictly ascending, in [0, ``size``)."""
    if indices.shape != (count,):
        raise WireError(f"{indices.size} indices for {count} values")
    if count and (indices[0] < 0 or indices[-1] >= size):
        raise WireError(f"indices from {indices[0]} to {indices[-1]} for a vector of {size}")
    if count > 1 and not bool(np.all(indices[1:] > indices[:-1])):
        raise WireError("indices do not ascend")


_EMPTY: Bytes = np.empty(0, np.uint8)


def _header(raw: Bytes) -> tuple[IndexCoding, int, int]:
    """Index coding, size and count; everything in the header is checked."""
    if raw.size < HEADER_BYTES:
        raise WireError(f"a payload has at least {HEADER_BYTES} B, got {raw.size}")
    magic, version, index, value, reserved, size, count = _LAYOUT.unpack(
        raw[:HEADER_BYTES].tobytes()
    )
    if magic != MAGIC:
        raise WireError(f"not a payload: it begins with {magic!r} instead of {MAGIC!r}")
    if version != VERSION:
        raise WireError(f"payload version {version}, this side speaks {VERSION}")
    if index not in IndexCoding._value2member_map_:
        raise WireError(f"unknown index coding {index}")
    if value not in ValueCoding._value2member_map_ or reserved:
        raise WireError(f"unknown value coding {value} (reserved byte {reserved})")
    coding = IndexCoding(index)
    if count > size or (coding is IndexCoding.DENSE and count != size):
        raise WireError(f"{count} of {size} elements cannot be ({coding.name.lower()})")
    _check_size(size, coding)
    return coding, size, count


def _check_size(size: int, coding: IndexCoding) -> None:
    if size > MAX_SIZE or not can_index(coding, size):
        raise WireError(f"a vector of {size} elements is too long ({coding.name.lower()})")


def _host(tensor: torch.Tensor) -> NDArray[Any]:
    """A tensor as an array in the host's memory; only a tensor on another device is copied."""
    array: NDArray[Any] = tensor.detach().cpu().numpy()
    return array


def _spread(values: NDArray[np.float32], indices: Indices, size: int) -> NDArray[np.float32]:
    """All elements of the vector, zeros where nothing was sent."""
    full = np.zeros(size, np.float32)
    full[indices] = values
    return full
