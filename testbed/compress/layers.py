"""Several payloads in one message, when every parameter is compressed by itself. Little-endian.

offset   size  field
0        4     magic "NRWL"
4        1     version (1)
5        3     reserved, 0
8        8·p   lengths of the payloads, in the order of the parameters
8+8·p    …     the payloads, one after the other

Both sides know the parameters, and so how many payloads there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch

from testbed.compress.base import Sparse
from testbed.compress.layout import Layout
from testbed.compress.payload import PayloadBuffer, Scratch
from testbed.compress.wire import Reader, decode
from testbed.errors import WireError
from testbed.node import Buffer

MAGIC, VERSION = b"NRWL", 1
_HEAD = MAGIC + bytes([VERSION, 0, 0, 0])


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
    found = []
    for length in lengths:
        found.append(view[begin : begin + length])
        begin += length
    return found


def decode_layers(message: Buffer, sizes: Sequence[int], scratch: Scratch | None = None) -> Sparse:
    """What a message says of a vector whose parts have ``sizes``. Raises WireError.

    Dense where every part is. With ``scratch`` the result lies in it, and holds until it is used again.
    """
    parts = split(message, len(sizes))
    readers = []
    for number, (payload, size) in enumerate(zip(parts, sizes, strict=True), 1):
        with _named(number, len(sizes)):
            readers.append(Reader(payload, size))
    scratch = scratch or Scratch()
    count = sum(reader.header.count for reader in readers)
    values = scratch.array("joined values", count, np.float32)
    whole = all(reader.dense for reader in readers)
    indices = None if whole else scratch.array("joined indices", count, np.int64)
    at = offset = 0
    for number, reader in enumerate(readers, 1):
        place = slice(at, at + reader.header.count)
        with _named(number, len(sizes)):
            read = reader.values(lambda _, place=place: values[place])  # type: ignore[misc]
            if not np.may_share_memory(read, values):  # it views the payload
                values[place] = read
            if indices is not None:
                reader.indices(indices[place], scratch)
                indices[place] += offset
        at, offset = place.stop, offset + reader.header.size
    found = None if indices is None else torch.from_numpy(indices)
    return Sparse(offset, found, torch.from_numpy(values))


def read_message(message: Buffer, layout: Layout, scratch: Scratch | None = None) -> Sparse:
    """A bucket's message, of one payload or of one for each parameter. Raises WireError.

    With ``scratch`` the result may lie in it, and holds until it is used again; values may view ``message``.
    """
    if bytes(memoryview(message).cast("B")[: len(MAGIC)]) == MAGIC:
        return decode_layers(message, [part.size for part in layout], scratch)
    return decode(message, layout.size, scratch)


@contextmanager
def _named(number: int, parts: int) -> Iterator[None]:
    """An error inside says which payload it is about."""
    try:
        yield
    except WireError as error:
        raise WireError(f"payload {number} of {parts}: {error}") from error
