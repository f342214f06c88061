"""The payload: a self-describing message that holds part of a flat vector. Little-endian throughout.

offset   size  field
0        32    header, with v, the length of the value section (``header``)
32       v     values, as their coding has them, in ascending order of index
32+v     …     indices, as their coding has them (``indices``); to the end of the payload

The receiver knows the size that it waits for and refuses any other, so that no bytes can make it
allocate more than it must anyway. ``docs/wire.md`` describes every byte.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from testbed.compress.base import Bytes, Floats, Room, Sparse, Values, fresh
from testbed.compress.codes import coding_of
from testbed.compress.header import HEADER_BYTES, MAX_SIZE, Header
from testbed.compress.indices import (
    IndexCoding,
    Indices,
    index_bytes,
    read,
    seed_in,
    shortest,
    write,
    write_seed,
)
from testbed.compress.layout import Layout
from testbed.compress.payload import PayloadBuffer, Scratch, as_bytes
from testbed.compress.values.fp32 import Fp32
from testbed.errors import WireError
from testbed.node import Buffer

__all__ = ["HEADER_BYTES", "MAX_SIZE", "Encoded", "Reader", "decode", "encode", "payload_bytes"]

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
    """Bytes of the payload that ``count`` of ``size`` elements make; it does not depend on which.

    ``value_bytes``, ``keeps_zero``: of the value coding; float32 without them. ``seeded``: the indices
    follow from a seed.
    """
    section = value_bytes or _EXACT.section_bytes
    coding = shortest(size, count, section, keeps_zero=keeps_zero, seeded=seeded)
    values = size if coding is IndexCoding.DENSE else count
    return HEADER_BYTES + section(values) + index_bytes(coding, size, count)


def encode(
    sparse: Sparse,
    values: Values = _EXACT,
    rng: Random | None = None,
    buffer: PayloadBuffer | None = None,
    coding: IndexCoding | None = None,
) -> Encoded:
    """The payload of ``sparse`` (on the host); the shortest index coding unless one is given.

    It lies in ``buffer`` and holds until that is used again. Raises WireError for what no payload can
    hold: indices that do not ascend, a vector too long.
    """
    given, indices = _checked(sparse)
    header = _header(sparse, values, coding)
    buffer = buffer or PayloadBuffer()
    payload = buffer.take(header.payload_bytes)
    header.write(payload)
    body = as_bytes(payload)[HEADER_BYTES:]
    section, rest = body[: header.length], body[header.length :]
    if indices is not None:
        write(header.coding, rest, indices, sparse.size, buffer.scratch)
    if header.coding is IndexCoding.SEED and sparse.seed is not None:
        write_seed(rest, sparse.seed)
    spread = indices is not None and header.count > sparse.count
    full = _spread(given, indices, header.count, buffer.scratch) if spread else given
    kept = values.write(full, section, rng or Random(0))
    if kept is full:
        return Encoded(payload, sparse.values)
    if spread and indices is not None:
        room = buffer.scratch.array("kept", sparse.count, np.float32)
        kept = np.take(kept, indices, out=room, mode="clip")  # other modes make a copy
    return Encoded(payload, torch.from_numpy(kept))


class Reader:
    """One payload, of a vector of ``size``, whose header has been read. Raises WireError for any other bytes."""

    def __init__(self, payload: Buffer, size: int) -> None:
        raw = as_bytes(memoryview(payload).cast("B"))
        self.header = Header.read(raw, size)
        self._body: Bytes = raw[HEADER_BYTES:]

    @property
    def dense(self) -> bool:
        """Whether all elements are in it."""
        return self.header.coding is IndexCoding.DENSE

    @property
    def seed(self) -> int | None:
        """What the indices follow from, if they do."""
        seeded = self.header.coding is IndexCoding.SEED
        return seed_in(self._body[self.header.length :]) if seeded else None

    def values(self, room: Room = fresh) -> Floats:
        """All of them, (m,), in the payload itself or in ``room``. Raises WireError."""
        header = self.header
        return coding_of(header.values).read(self._body[: header.length], header.count, room)

    def indices(self, out: Indices, scratch: Scratch) -> None:
        """All of them into ``out`` (m,). Raises WireError unless they ascend strictly in [0, n)."""
        header = self.header
        read(header.coding, self._body[header.length :], header.size, out, scratch)


def decode(payload: Buffer, size: int, scratch: Scratch | None = None) -> Sparse:
    """Read the payload of a vector of ``size`` into CPU tensors. Raises WireError for any other bytes.

    With ``scratch`` the result lies in it, and holds until it is used again. Values may view ``payload``
    where that is writable: they then hold as long as it is left alone.
    """
    reader, scratch = Reader(payload, size), scratch or Scratch()
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
            f"indices {sparse.indices.dtype} {tuple(sparse.indices.shape)} for {sparse.count} values"
        )
    return values, _host(sparse.indices)


def _host(tensor: torch.Tensor) -> NDArray[Any]:
    return np.ascontiguousarray(tensor.detach().numpy())


def _header(sparse: Sparse, values: Values, coding: IndexCoding | None) -> Header:
    """For the coding given, or the shortest one. Raises WireError for a coding that cannot be."""
    size, seeded = sparse.size, sparse.seed is not None
    if coding is None:
        coding = shortest(
            size, sparse.count, values.section_bytes, keeps_zero=values.keeps_zero, seeded=seeded
        )
    _check_coding(sparse, values, coding)
    count = size if coding is IndexCoding.DENSE else sparse.count
    header = Header(coding, values.code, size, count, values.section_bytes(count))
    header.check()
    return header


def _check_coding(sparse: Sparse, values: Values, coding: IndexCoding) -> None:
    name = coding.name.lower()
    if coding is IndexCoding.DENSE:
        if sparse.count < sparse.size and not values.keeps_zero:
            raise WireError(
                "a value coding that cannot write zeros cannot send what was not chosen"
            )
    elif sparse.indices is None or (coding is IndexCoding.SEED and sparse.seed is None):
        raise WireError(f"what has no indices, or none from a seed, cannot be sent as {name}")


def _spread(values: Floats, indices: Indices | None, size: int, scratch: Scratch) -> Floats:
    """The whole vector, with zeros where nothing is sent; the indices have been checked."""
    full = scratch.array("full", size, np.float32)
    full.fill(0.0)
    full[indices] = values
    return full
