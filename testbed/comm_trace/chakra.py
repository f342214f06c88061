"""Traces of messages as Chakra execution traces, and back: a file for every node,
``<stem>.<rank>.et``.

A file is one GlobalMetadata of Chakra's (``et_def.proto``, package ``ChakraProtoMsg``), then Nodes,
each behind its length. Fields that say nothing of computations and messages (inputs, outputs,
storage, lists) are not declared, and so passed over.

Computations become COMP_NODE, messages COMM_SEND_NODE and COMM_RECV_NODE, what they wait for data
dependencies. Names, steps and the source are attributes of ours, which other readers pass over.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from graphlib import CycleError, TopologicalSorter
from heapq import heapify, heappop, heappush
from io import BytesIO
from pathlib import Path
from typing import Any

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClassesForFiles
from google.protobuf.proto import parse_length_prefixed, serialize_length_prefixed

from testbed.comm_trace.from_records import hops, pass_round
from testbed.comm_trace.trace import Kind, MessageTrace, NodeLog, TraceOperation, check
from testbed.errors import InputError
from testbed.user_files import data_of

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
        return _metadata(head), [_decoded(message) for message in nodes]
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


def _decoded(message: Any) -> ChakraNode:
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


SCHEMA = "1.0.0"
"""Version of the schema that is written."""
_TYPES = {
    "compute": NodeType.COMP_NODE,
    "send": NodeType.COMM_SEND_NODE,
    "receive": NodeType.COMM_RECV_NODE,
}


def write_chakra(trace: MessageTrace, stem: Path) -> list[Path]:
    """Write all files; returns their paths by rank. Raises InputError where that is impossible."""
    paths = [stem.with_name(f"{stem.name}.{rank}.et") for rank in range(len(trace.nodes))]
    for path, name in zip(paths, trace.nodes, strict=True):
        try:
            path.write_bytes(chakra_of(trace, name))
        except OSError as error:
            raise InputError(f"cannot be written: {error.strerror}", where=str(path)) from None
    return paths


def chakra_of(trace: MessageTrace, name: str) -> bytes:
    """One node's file."""
    ranks = {node: rank for rank, node in enumerate(trace.nodes)}
    about = {"node": name, "role": trace.roles.get(name, ""), "source": trace.source}
    nodes = (_node(i, each, ranks, name) for i, each in enumerate(trace.operations[name]))
    return write_file(SCHEMA, {key: value for key, value in about.items() if value}, nodes)


def _node(number: int, own: TraceOperation, ranks: Mapping[str, int], name: str) -> ChakraNode:
    attributes: dict[str, Value] = {"is_cpu_op": False}
    if own.kind != "compute":
        source, sink = (name, own.peer) if own.kind == "send" else (own.peer, name)
        attributes |= {"comm_src": ranks[source], "comm_dst": ranks[sink]}
        attributes |= {"comm_tag": own.tag, "comm_size": own.bytes}
    if own.step is not None:
        attributes["step"] = own.step
    if own.begin_s is not None:
        attributes["begin_us"] = _us(own.begin_s)
    return ChakraNode(
        id=number,
        name=f"{_TYPES[own.kind].name}_{number}",
        type=_TYPES[own.kind],
        after=own.after,
        start_us=_us(own.begin_s or 0.0),
        duration_us=_us(own.seconds),
        attributes=attributes,
    )


def _us(seconds: float) -> int:
    return round(seconds * 1e6)


MAX_BYTES = 1 << 30
_GZIP = b"\x1f\x8b"
_COLLECTIVE_TAGS = 1 << 20
"""Messages of collectives have tags from here on."""


@dataclass
class _File:
    """One rank's nodes, and what has become of them."""

    path: Path
    name: str
    metadata: Mapping[str, Value]
    nodes: list[ChakraNode]
    log: NodeLog = field(default_factory=NodeLog)
    ends: dict[int, list[int]] = field(default_factory=dict)
    """Operations that whoever waits for a node has to wait for, keyed by the node's id."""
    collectives: int = 0


def read_chakra(paths: Sequence[Path]) -> MessageTrace:
    """The trace in ``paths``, by rank. An all-reduce goes round as a ring among all ranks.

    Raises InputError with file and node for what is not such a trace, or cannot be had from it.
    """
    files = [_file(path, rank) for rank, path in enumerate(paths)]
    names = [file.name for file in files]
    if len(set(names)) != len(names):
        raise InputError(f"two files are of one node: {', '.join(names)}")
    for rank, file in enumerate(files):
        for node in _in_order(file):
            try:
                _add(file, node, rank, names)
            except InputError as error:
                where = f"{file.path}: node {node.id} ({node.name})"
                raise InputError(error.message, where=where, hint=error.hint) from None
    roles = {file.name: str(file.metadata["role"]) for file in files if "role" in file.metadata}
    sources = [str(file.metadata["source"]) for file in files if "source" in file.metadata]
    source = sources[0] if sources else ", ".join(path.name for path in paths[:8])
    return MessageTrace({file.name: tuple(file.log.operations) for file in files}, roles, source)


def _file(path: Path, rank: int) -> _File:
    data = data_of(path, MAX_BYTES)
    try:
        if data.startswith(_GZIP):
            data = gzip.decompress(data)
        metadata, nodes = read_file(data)
    except (InputError, OSError, EOFError, zlib.error) as error:
        why = error.message if isinstance(error, InputError) else str(error)
        raise InputError(f"no Chakra execution trace: {why}", where=str(path)) from None
    return _File(path, str(metadata.get("node", f"node-{rank}")), metadata, nodes)


def _in_order(file: _File) -> list[ChakraNode]:
    """Nodes behind those that they wait for, otherwise as they stand in the file."""
    places = {node.id: index for index, node in enumerate(file.nodes)}
    if len(places) != len(file.nodes):
        raise InputError("two nodes have one id", where=str(file.path))
    for node in file.nodes:
        if any(earlier not in places for earlier in node.after):
            raise InputError(
                f"node {node.id} waits for one that is not there", where=str(file.path)
            )
    sorter = TopologicalSorter(
        {places[node.id]: [places[earlier] for earlier in node.after] for node in file.nodes}
    )
    try:
        sorter.prepare()
    except CycleError:
        raise InputError("some nodes wait for themselves", where=str(file.path)) from None
    order, ready = list[ChakraNode](), list(sorter.get_ready())
    heapify(ready)
    while ready:
        index = heappop(ready)
        order.append(file.nodes[index])
        sorter.done(index)
        for other in sorter.get_ready():
            heappush(ready, other)
    return order


def _add(file: _File, node: ChakraNode, rank: int, names: Sequence[str]) -> None:
    """Add what ``node`` stands for to its rank's operations."""
    after = sorted({index for earlier in node.after for index in file.ends[earlier]})
    add = _ADD.get(node.type)
    if add is None:
        raise InputError(f"a {_type(node)} cannot be replayed as computations and messages")
    before = len(file.log.operations)
    file.ends[node.id] = add(file, node, after, (rank, names))
    for operation in file.log.operations[before:]:
        check(operation)


def _type(node: ChakraNode) -> str:
    return NodeType(node.type).name if node.type in set(NodeType) else f"node of type {node.type}"


_Ranks = tuple[int, Sequence[str]]
"""One's own, and all names."""


def _nothing(file: _File, node: ChakraNode, after: list[int], ranks: _Ranks) -> list[int]:  # noqa: ARG001
    """Add no operation: a node that describes others takes no time."""
    return after


def _compute(file: _File, node: ChakraNode, after: list[int], ranks: _Ranks) -> list[int]:  # noqa: ARG001
    if not node.duration_us and node.attributes.get("num_ops"):
        raise InputError(
            "it says how many operations it computes, and not how long that takes",
            hint="`duration_micros` is read",
        )
    return [file.log.compute(node.duration_us / 1e6, after, _begin(node), _step(node))]


def _message(kind: Kind) -> Callable[[_File, ChakraNode, list[int], _Ranks], list[int]]:
    own, other = ("comm_src", "comm_dst") if kind == "send" else ("comm_dst", "comm_src")

    def add(file: _File, node: ChakraNode, after: list[int], ranks: _Ranks) -> list[int]:
        rank, names = ranks
        peer, size = _number(node, other), _number(node, "comm_size")
        if _number(node, own, rank) != rank or not 0 <= peer < len(names):
            raise InputError(
                f"{own} and {other} are not {rank} and another of {len(names)} ranks",
                hint="Give the files of all ranks, in their order",
            )
        tag, begin_s = _number(node, "comm_tag", 0), _begin(node) if kind == "send" else None
        return [file.log.message(kind, names[peer], size, tag, after, _step(node), begin_s)]

    return add


def _collective(file: _File, node: ChakraNode, after: list[int], ranks: _Ranks) -> list[int]:
    rank, names = ranks
    kind, group = _number(node, "comm_type"), node.attributes.get("pg_name")
    if kind != Collective.ALL_REDUCE:
        name = Collective(kind).name if kind in set(Collective) else f"of type {kind}"
        raise InputError(f"the collective {name} is not made into messages; ALL_REDUCE is")
    if group not in (None, "", "0"):
        raise InputError(f"an all-reduce within the group {group!r}: only all ranks together can")
    first_tag = _COLLECTIVE_TAGS + 2 * len(names) * file.collectives
    file.collectives += 1
    begun = file.log.compute(0.0, after, None, _step(node))
    turns = hops(rank, names, _number(node, "comm_size"))
    return pass_round(file.log, turns, lambda size: size, begun, _step(node), first_tag)


_ADD: Mapping[int, Callable[[_File, ChakraNode, list[int], _Ranks], list[int]]] = {
    NodeType.METADATA_NODE: _nothing,
    NodeType.COMP_NODE: _compute,
    NodeType.COMM_SEND_NODE: _message("send"),
    NodeType.COMM_RECV_NODE: _message("receive"),
    NodeType.COMM_COLL_NODE: _collective,
}


def _number(node: ChakraNode, name: str, otherwise: int | None = None) -> int:
    value = node.attributes.get(name, otherwise)
    if not isinstance(value, int) or value < 0:
        raise InputError(f"its attribute {name!r} is {value!r}, no number from 0 on")
    return value


def _step(node: ChakraNode) -> int | None:
    step = node.attributes.get("step")
    return step if isinstance(step, int) else None


def _begin(node: ChakraNode) -> float | None:
    """When it began, if that was exported here; others count from a time of their own."""
    begin_us = node.attributes.get("begin_us")
    return begin_us / 1e6 if isinstance(begin_us, int) else None
