"""Chakra's messages (``et_def.proto``, package ``ChakraProtoMsg``): a file is one GlobalMetadata, then Nodes.

Fields that say nothing of computations and messages (inputs, outputs, storage, lists) are passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from testbed.errors import InputError
from testbed.messages.chakra import wire

Value = int | float | bool | str | bytes


class NodeType(IntEnum):
    """What a node is."""

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
class Node:
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
    3: lambda value: wire.fixed("<d", value),
    5: lambda value: wire.fixed("<f", value),
    7: lambda value: wire.signed(_whole(value)),
    9: lambda value: wire.signed(_whole(value)),
    11: _whole,
    13: _whole,
    15: lambda value: wire.zigzag(_whole(value)),
    17: lambda value: wire.zigzag(_whole(value)),
    19: lambda value: wire.fixed("<I", value),
    21: lambda value: wire.fixed("<Q", value),
    23: lambda value: wire.fixed("<i", value),
    25: lambda value: wire.fixed("<q", value),
    27: lambda value: bool(_whole(value)),
    29: _string,
    31: _octets,
}
"""Of AttributeProto, by field: double, float, int32, int64, uint32, uint64, sint32, sint64, fixed32, fixed64, sfixed32,
sfixed64, bool, string and bytes."""
_INT32, _INT64, _BOOL, _STRING = 7, 9, 27, 29
WRITTEN_AS = {
    "comm_size": _INT64, "comm_type": _INT64, "comm_src": _INT32, "comm_dst": _INT32, "comm_tag": _INT32,
}  # fmt: skip
"""Fields for the attributes that simulators read; other numbers are int64."""


def read_node(data: bytes) -> Node:
    """A Node. Raises InputError for bytes that are none."""
    known: dict[str, int | str] = {}
    after, attributes = list[int](), dict[str, Value]()
    names = {1: "id", 3: "type", 6: "start_us", 7: "duration_us"}
    for number, _, value in wire.fields(data):
        if number in names:
            known[names[number]] = _whole(value)
        elif number == 2:
            known["name"] = _string(value)
        elif number in (4, 5):
            after += wire.varints(value)
        elif number == 10:
            attributes.update(_attribute(_octets(value)))
    given = {"id": 0, "name": "", "type": 0, **known}
    return Node(**given, after=tuple(dict.fromkeys(after)), attributes=attributes)  # type: ignore[arg-type]


def write_node(node: Node) -> bytes:
    """``node`` with all that it comes after as data dependencies."""
    return b"".join(
        [
            wire.number(1, node.id),
            wire.text(2, node.name),
            wire.number(3, node.type),
            wire.packed(5, node.after),
            wire.number(6, node.start_us),
            wire.number(7, node.duration_us),
            *(wire.text(10, _written(*pair)) for pair in node.attributes.items()),
        ]
    )


def read_metadata(data: bytes) -> dict[str, Value]:
    """A GlobalMetadata's attributes; of the first versions, they had the number that the version has now."""
    found: dict[str, Value] = {}
    for number, _, value in wire.fields(data):
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
    written = (wire.text(2, _written(*pair)) for pair in attributes.items())
    return wire.text(1, version) + b"".join(written)


def _attribute(data: bytes) -> dict[str, Value]:
    """Its name and its value; nothing for a list."""
    name, found = "", list[Value]()
    for number, _, value in wire.fields(data):
        if number == 1:
            name = _string(value)
        elif number in _VALUES:
            found.append(_VALUES[number](value))
    return {name: found[-1]} if found else {}


def _written(name: str, value: Value) -> bytes:
    """An AttributeProto. A value of 0 is written too: which of the fields is there is what it says."""
    head = wire.text(1, name)
    if isinstance(value, bool):
        return head + wire.varint(_BOOL << 3) + wire.varint(value)
    if isinstance(value, int):
        return head + wire.varint(WRITTEN_AS.get(name, _INT64) << 3) + wire.varint(value)
    data = str(value).encode()
    return head + wire.varint(_STRING << 3 | wire.BYTES) + wire.varint(len(data)) + data
