"""A trace of messages as Chakra execution traces: a file for every node, ``<stem>.<rank>.et``.

Computations become COMP_NODE, messages COMM_SEND_NODE and COMM_RECV_NODE, what they wait for data dependencies. Names,
steps and the source are attributes of ours, which other readers pass over.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from testbed.errors import InputError
from testbed.messages.chakra.nodes import Node, NodeType, Value, write_metadata, write_node
from testbed.messages.chakra.wire import delimited
from testbed.messages.trace import MessageTrace, Operation

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
    told = {"node": name, "role": trace.roles.get(name, ""), "source": trace.source}
    head = write_metadata(SCHEMA, {key: value for key, value in told.items() if value})
    own = enumerate(trace.operations[name])
    return delimited([head, *(write_node(_node(i, one, ranks, name)) for i, one in own)])


def _node(number: int, one: Operation, ranks: Mapping[str, int], name: str) -> Node:
    attributes: dict[str, Value] = {"is_cpu_op": False}
    if one.kind != "compute":
        sends = one.kind == "send"
        attributes |= {
            "comm_src": ranks[name if sends else one.peer],
            "comm_dst": ranks[one.peer if sends else name],
            "comm_tag": one.tag,
            "comm_size": one.bytes,
        }
    told = {"step": one.step, "begin_us": None if one.begin_s is None else _us(one.begin_s)}
    attributes |= {key: value for key, value in told.items() if value is not None}
    return Node(
        id=number,
        name=f"{_TYPES[one.kind].name}_{number}",
        type=_TYPES[one.kind],
        after=one.after,
        start_us=_us(one.begin_s or 0.0),
        duration_us=_us(one.seconds),
        attributes=attributes,
    )


def _us(seconds: float) -> int:
    return round(seconds * 1e6)
