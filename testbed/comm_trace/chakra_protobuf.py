"""Chakra's messages (``et_def.proto``, package ``ChakraProtoMsg``), as far as computations and
messages need them: a file is one GlobalMetadata, then Nodes, each behind its length.

Fields that say nothing of computations and messages (inputs, outputs, storage, lists) are not
declared, and so passed over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from io import BytesIO
from typing import Any

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClassesForFiles
from google.protobuf.proto import parse_length_prefixed, serialize_length_prefixed

from testbed.errors import InputError

Value = int | float | bool | str | bytes
_PACKAGE = "ChakraProtoMsg"
_SCALARS = (
    *("double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64"),
    *("fixed32", "fixed64", "sfixed32", "sfixed64", "bool", "string", "bytes"),
)
_MESSAGES = {
    "AttributeProto": {
        "name": (1, "string"),
        **{f"{kind}_val": (3 + 2 * index, kind) for index, kind in enumerate(_SCALARS)},
    },
    # of the first versions, the field of the version has the attributes
    "GlobalMetadata": {"version": (1, "bytes*"), "attr": (2, "AttributeProto*")},
    "Node": {
        "id": (1, "uint64"),
        "name": (2, "string"),
        "type": (3, "uint64"),
        "ctrl_deps": (4, "uint64*"),
        "data_deps": (5, "uint64*"),
        "start_time_micros": (6, "uint64"),
        "duration_micros": (7, "uint64"),
        "attr": (10, "AttributeProto*"),
    },
}
"""Fields of each message: number and type; ``*``: any number of them."""
WRITTEN_AS = dict.fromkeys(("comm_src", "comm_dst", "comm_tag"), "int32_val")
"""Fields for the attributes that simulators read so; other numbers are int64."""


def _classes() -> dict[str, Any]:
    schema = FileDescriptorProto(name="et_def.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = schema.message_type.add(name=name)
        for key, (number, text) in fields.items():
            kind, several = text.removesuffix("*"), text.endswith("*")
            entry = message.field.add(name=key, number=number, label=3 if several else 1)
            if kind in _MESSAGES:
                entry.type = FieldDescriptorProto.TYPE_MESSAGE
                entry.type_name = f".{_PACKAGE}.{kind}"
            else:
                entry.type = FieldDescriptorProto.Type.Value(f"TYPE_{kind.upper()}")
            if key.endswith("_val"):
                entry.oneof_index = 0
        if name == "AttributeProto":
            message.oneof_decl.add(name="value")
    pool = DescriptorPool()
    pool.Add(schema)
    return dict(GetMessageClassesForFiles([schema.name], pool))


_CLASSES = _classes()
_Attribute, _Metadata, _Node = (_CLASSES[f"{_PACKAGE}.{name}"] for name in _MESSAGES)


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


def read_file(data: bytes) -> tuple[dict[str, Value], list[ChakraNode]]:
    """The metadata's attributes and the nodes. Raises InputError for bytes that are none."""
    stream = BytesIO(data)
    try:
        head = parse_length_prefixed(_Metadata, stream)
        if head is None:
            raise InputError("it is empty")
        nodes = iter(lambda: parse_length_prefixed(_Node, stream), None)
        return _metadata(head), [_node(message) for message in nodes]
    except (DecodeError, EOFError, ValueError) as error:
        raise InputError(str(error)) from None


def write_file(version: str, attributes: Mapping[str, Value], nodes: Iterable[ChakraNode]) -> bytes:
    """The bytes of a file; all that a node comes after are data dependencies."""
    stream, head = BytesIO(), _Metadata(attr=_written(attributes))
    if version:
        head.version.append(version.encode())
    serialize_length_prefixed(head, stream)
    for node in nodes:
        message = _Node(
            id=node.id,
            name=node.name,
            type=node.type,
            data_deps=node.after,
            start_time_micros=node.start_us,
            duration_micros=node.duration_us,
            attr=_written(node.attributes),
        )
        serialize_length_prefixed(message, stream)
    return stream.getvalue()


def _metadata(message: Any) -> dict[str, Value]:
    attributes: dict[str, Value] = {}
    for text in message.version:
        try:
            attributes |= _read([_Attribute.FromString(text)])
        except DecodeError:
            attributes["version"] = text.decode()
    return attributes | _read(message.attr)


def _node(message: Any) -> ChakraNode:
    return ChakraNode(
        id=message.id,
        name=message.name,
        type=message.type,
        after=tuple(dict.fromkeys([*message.ctrl_deps, *message.data_deps])),
        start_us=message.start_time_micros,
        duration_us=message.duration_micros,
        attributes=_read(message.attr),
    )


def _read(attributes: Iterable[Any]) -> dict[str, Value]:
    """Values by name; lists are left out."""
    pairs = ((each, each.WhichOneof("value")) for each in attributes)
    return {each.name: getattr(each, kind) for each, kind in pairs if kind is not None}


def _written(attributes: Mapping[str, Value]) -> Iterator[Any]:
    """A value of 0 is written too: which of the fields is there is what it says."""
    for name, value in attributes.items():
        if isinstance(value, bool):
            yield _Attribute(name=name, bool_val=value)
        elif isinstance(value, int):
            yield _Attribute(name=name, **{WRITTEN_AS.get(name, "int64_val"): value})
        else:
            yield _Attribute(name=name, string_val=str(value))
