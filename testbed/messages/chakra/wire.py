"""Protocol buffers on the wire, as far as Chakra's messages need them.

A message is fields: a key (number × 8 + wire type) and a value, which is a varint (0), 8 bytes (1), a length and as many
bytes (2) or 4 bytes (5); of a field that may come several times, numbers may be packed into one of type 2.
(protobuf.dev, "Encoding".) Whoever reads passes over what is not known.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from testbed.errors import InputError

VARINT, EIGHT, BYTES, FOUR = 0, 1, 2, 5
_MOST_VARINT = 10
_MASK = (1 << 64) - 1

Field = tuple[int, int, int | bytes]
"""Number, wire type and value; of fixed sizes the bytes."""


def varint(value: int) -> bytes:
    """``value`` in groups of seven bits, the lowest first; negative ones as 64 bits in two's complement."""
    value &= _MASK
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The value at ``at``, and where it ends. Raises InputError where there is none."""
    value = 0
    for place in range(_MOST_VARINT):
        if at + place >= len(data):
            break
        octet = data[at + place]
        value |= (octet & 0x7F) << 7 * place
        if octet < 0x80:
            return value & _MASK, at + place + 1
    raise InputError(f"byte {at}: a number is cut off, or longer than 64 bits")


def signed(value: int) -> int:
    """64 bits as a number that may be negative."""
    return value - (1 << 64) if value >> 63 else value


def zigzag(value: int) -> int:
    """What sint32 and sint64 mean by ``value``."""
    return (value >> 1) ^ -(value & 1)


def number(field: int, value: int) -> bytes:
    """A field of type varint; nothing for 0, which is what a missing one means."""
    return varint(field << 3 | VARINT) + varint(value) if value else b""


def text(field: int, value: str | bytes) -> bytes:
    """A field of bytes: a string, or a message within; nothing for an empty string."""
    data = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | BYTES) + varint(len(data)) + data if data else b""


def packed(field: int, values: Iterable[int]) -> bytes:
    """A field of several varints."""
    return text(field, b"".join(map(varint, values)))


def fields(data: bytes) -> Iterator[Field]:
    """All fields of a message. Raises InputError where ``data`` is none."""
    at = 0
    while at < len(data):
        key, at = read_varint(data, at)
        field, kind = key >> 3, key & 7
        if kind == VARINT:
            value, at = read_varint(data, at)
            yield field, kind, value
            continue
        if kind == BYTES:
            size, at = read_varint(data, at)
        elif kind in (EIGHT, FOUR):
            size = 8 if kind == EIGHT else 4
        else:
            raise InputError(f"byte {at}: a field of wire type {kind}, which nothing has")
        if at + size > len(data):
            raise InputError(f"byte {at}: a field of {size} bytes is cut off")
        yield field, kind, data[at : at + size]
        at += size


def varints(value: int | bytes) -> list[int]:
    """What a repeated field of varints holds at one place: one of them, or several packed ones."""
    if isinstance(value, int):
        return [value]
    found, at = list[int](), 0
    while at < len(value):
        one, at = read_varint(value, at)
        found.append(one)
    return found


def fixed(form: str, value: int | bytes) -> int | float:
    """A number of fixed size; ``form`` as ``struct`` has it. Raises InputError for one of another size."""
    if not isinstance(value, bytes) or len(value) != struct.calcsize(form):
        raise InputError(f"a number of {struct.calcsize(form)} bytes was expected")
    (found,) = struct.unpack(form, value)
    return found  # type: ignore[no-any-return]


def delimited(messages: Iterable[bytes]) -> bytes:
    """Messages one after the other, each behind its length."""
    return b"".join(varint(len(message)) + message for message in messages)


def undelimited(data: bytes) -> Iterator[bytes]:
    """And back. Raises InputError where the last one is cut off."""
    at = 0
    while at < len(data):
        size, at = read_varint(data, at)
        if at + size > len(data):
            raise InputError(f"byte {at}: a message of {size} bytes is cut off")
        yield data[at : at + size]
        at += size
