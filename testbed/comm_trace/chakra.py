"""Traces of messages as Chakra execution traces, and back: a file for every node,
``<stem>.<rank>.et``.

Computations become COMP_NODE, messages COMM_SEND_NODE and COMM_RECV_NODE, what they wait for data
dependencies. Names, steps and the source are attributes of ours, which other readers pass over.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from heapq import heapify, heappop, heappush
from pathlib import Path

from testbed.comm_trace.chakra_protobuf import (
    ChakraNode,
    Collective,
    NodeType,
    Value,
    read_file,
    write_file,
)
from testbed.comm_trace.from_records import hops, pass_round
from testbed.comm_trace.trace import Kind, MessageTrace, NodeLog, TraceOperation
from testbed.errors import InputError
from testbed.user_files import data_of

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
    file.ends[node.id] = add(file, node, after, (rank, names))


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
            raise InputError(f"{own} and {other} are not {rank} and another of {len(names)} ranks")
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
