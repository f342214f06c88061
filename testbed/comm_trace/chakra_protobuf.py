"""Protocol buffers, as far as Chakra's execution traces need them.

A message is fields: a key (number × 8 + wire type) and a value, which is a varint (0), 8 bytes (1),
a length and as many bytes (2) or 4 bytes (5); of a field that may come several times, numbers may
be packed into one of type 2. (protobuf.dev, "Encoding".) Whoever reads passes over what is not
known.

Chakra's messages (``et_def.proto``, package ``ChakraProtoMsg``): a file is one GlobalMetadata, then
Nodes.

Fields that say nothing of computations and messages (inputs, outputs, storage, lists) are passed
over.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from testbed.errors import InputError

VARINT, EIGHT, BYTES, FOUR = 0, 1, 2, 5
_MOST_VARINT = 10
_MASK = (1 << 64) - 1

Field = tuple[int, int, int | bytes]
"""Number, wire type and value; of fixed sizes the bytes."""


def varint(value: int) -> bytes:
    """``value`` in groups of seven bits, the lowest first; negative ones as 64 bits in two's
    complement."""
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
    """Return the number that ``value`` stands for in fields of type sint32 and sint64."""
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
    """Return the numbers at one place of a repeated field of varints: a single one, or packed
    ones."""
    if isinstance(value, int):
        return [value]
    found, at = list[int](), 0
    while at < len(value):
        one, at = read_varint(value, at)
        found.append(one)
    return found


def fixed(form: str, value: int | bytes) -> int | float:
    """A number of fixed size; ``form`` as ``struct`` has it. Raises InputError for one of another
    size."""
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


Value = int | float | bool | str | bytes


class NodeType(IntEnum):
    """The type of a node."""

    INVALID_NODE = 0
    METADATA_NODE = 1
    MEM_LOAD_NODE = 2
    MEM_STORE_NODE = 3
    COMP_NODE = 4
    COMM_SEND_NODE = 5
    COMM_RECV_NODE = 6
    COMM_COLL_NODE = 7
    STORAGE_NODE = 8
    BATCH_NODE = 9
    CHECKPOINT_NODE = 10


class Collective(IntEnum):
    """The attribute ``comm_type`` of a COMM_COLL_NODE."""

    ALL_REDUCE = 0
    REDUCE = 1
    ALL_GATHER = 2
    GATHER = 3
    SCATTER = 4
    BROADCAST = 5
    ALL_TO_ALL = 6
    REDUCE_SCATTER = 7
    REDUCE_SCATTER_BLOCK = 8
    BARRIER = 9


@dataclass(frozen=True, slots=True)
class ChakraNode:
    """A node. Times in microseconds."""

    id: int
    name: str
    type: int
    after: tuple[int, ...] = ()
    """Data and control dependencies: nodes' ids."""
    start_us: int = 0
    duration_us: int = 0
    attributes: Mapping[str, Value] = field(default_factory=dict)


def _whole(value: int | bytes) -> int:
    if not isinstance(value, int):
        raise InputError("a number was expected, and there are bytes")
    return value


def _octets(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise InputError("bytes were expected, and there is a number")
    return value


def _string(value: int | bytes) -> str:
    try:
        return _octets(value).decode()
    except UnicodeDecodeError as error:
        raise InputError(f"a string is not UTF-8: {error}") from None


_VALUES: Mapping[int, Callable[[int | bytes], Value]] = {
    3: lambda value: fixed("<d", value),
    5: lambda value: fixed("<f", value),
    7: lambda value: signed(_whole(value)),
    9: lambda value: signed(_whole(value)),
    11: _whole,
    13: _whole,
    15: lambda value: zigzag(_whole(value)),
    17: lambda value: zigzag(_whole(value)),
    19: lambda value: fixed("<I", value),
    21: lambda value: fixed("<Q", value),
    23: lambda value: fixed("<i", value),
    25: lambda value: fixed("<q", value),
    27: lambda value: bool(_whole(value)),
    29: _string,
    31: _octets,
}
"""Readers of AttributeProto's values, by field.

The fields: double, float, int32, int64, uint32, uint64, sint32, sint64, fixed32, fixed64, sfixed32,
sfixed64, bool, string and bytes.
"""
_INT32, _INT64, _BOOL, _STRING = 7, 9, 27, 29
WRITTEN_AS = {
    "comm_size": _INT64,
    "comm_type": _INT64,
    "comm_src": _INT32,
    "comm_dst": _INT32,
    "comm_tag": _INT32,
}
"""Fields for the attributes that simulators read; other numbers are int64."""


def read_node(data: bytes) -> ChakraNode:
    """A Node. Raises InputError for bytes that are none."""
    known: dict[str, int | str] = {}
    after, attributes = list[int](), dict[str, Value]()
    names = {1: "id", 3: "type", 6: "start_us", 7: "duration_us"}
    for number, _, value in fields(data):
        if number in names:
            known[names[number]] = _whole(value)
        elif number == 2:
            known["name"] = _string(value)
        elif number in (4, 5):
            after += varints(value)
        elif number == 10:
            attributes.update(_attribute(_octets(value)))
    given = {"id": 0, "name": "", "type": 0, **known}
    return ChakraNode(**given, after=tuple(dict.fromkeys(after)), attributes=attributes)  # type: ignore[arg-type]


def write_node(node: ChakraNode) -> bytes:
    """``node`` with all that it comes after as data dependencies."""
    return b"".join(
        [
            number(1, node.id),
            text(2, node.name),
            number(3, node.type),
            packed(5, node.after),
            number(6, node.start_us),
            number(7, node.duration_us),
            *(text(10, _written(*pair)) for pair in node.attributes.items()),
        ]
    )


def read_metadata(data: bytes) -> dict[str, Value]:
    """A GlobalMetadata's attributes; of the first versions, they had the number that the version
    has now."""
    found: dict[str, Value] = {}
    for number, _, value in fields(data):
        if number == 2:
            found.update(_attribute(_octets(value)))
        elif number == 1:
            try:
                found.update(_attribute(_octets(value)))
            except InputError:
                found["version"] = _string(value)
    return found


def write_metadata(version: str, attributes: Mapping[str, Value]) -> bytes:
    """A GlobalMetadata."""
    written = (text(2, _written(*pair)) for pair in attributes.items())
    return text(1, version) + b"".join(written)


def _attribute(data: bytes) -> dict[str, Value]:
    """Its name and its value; nothing for a list."""
    name, found = "", list[Value]()
    for number, _, value in fields(data):
        if number == 1:
            name = _string(value)
        elif number in _VALUES:
            found.append(_VALUES[number](value))
    return {name: found[-1]} if found else {}


def _written(name: str, value: Value) -> bytes:
    """An AttributeProto. A value of 0 is written too: which of the fields is there is what it
    says."""
    head = text(1, name)
    if isinstance(value, bool):
        return head + varint(_BOOL << 3) + varint(value)
    if isinstance(value, int):
        return head + varint(WRITTEN_AS.get(name, _INT64) << 3) + varint(value)
    data = str(value).encode()
    return head + varint(_STRING << 3 | BYTES) + varint(len(data)) + data
