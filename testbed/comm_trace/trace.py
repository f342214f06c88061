"""A trace of a job's messages (``MessageTrace``), and its file of JSON lines.

The file is described in docs/how-to/job-traces.md.
Pure but for the file.

Operations of a node may go on side by side; one begins when all those that it comes ``after`` have
ended. A node computes one thing at a time, and what it sends to one peer leaves in the order in
which it became ready.

The first line names format, version, source and nodes; every other one is an operation of a node,
whose number is its place among that node's own lines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from math import inf
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from testbed.errors import InputError
from testbed.records.run_directory import read_jsonl, to_json

Kind = Literal["compute", "send", "receive"]
Position = tuple[str, int]
"""A node, and the place of an operation among its own, from 0."""


@dataclass(frozen=True, slots=True)
class TraceOperation:
    """One thing that a node does. Times in seconds of model time."""

    kind: Kind
    after: tuple[int, ...] = ()
    """Places, among the node's own operations, of those that it waits for."""
    seconds: float = 0.0
    """Duration of a computation."""
    peer: str = ""
    """To whom, or from whom."""
    bytes: int = 0
    """Length of the whole message, as it goes over TCP: with its own headers, without TCP's."""
    tag: int = 0
    """Tag that pairs two nodes' messages: the first sent with it is the first received with it."""
    begin_s: float | None = None
    """When it began, after the job's own t0; None: not known."""
    step: int | None = None


@dataclass(frozen=True)
class MessageTrace:
    """The operations of all nodes, each node's in its order.

    Raises InputError where not all of them can happen.
    """

    operations: Mapping[str, tuple[TraceOperation, ...]]
    """Operations by node, in the order of the nodes' ranks."""
    roles: Mapping[str, str] = field(default_factory=dict)
    """Role of a node in its job, where that is known: ``server`` or ``worker``."""
    source: str = ""
    """Where it is from, for people."""

    def __post_init__(self) -> None:
        _ = self.order

    @property
    def nodes(self) -> list[str]:
        """Names by rank."""
        return list(self.operations)

    @cached_property
    def received_as(self) -> dict[Position, Position]:
        """Every send, and the receipt of it. Raises InputError for one without the other."""
        sends, receipts = self._messages("send"), self._messages("receive")
        matched: dict[Position, Position] = {}
        for key in {**sends, **receipts}:
            sent, received = sends.get(key, []), receipts.get(key, [])
            if len(sent) != len(received):
                sender, receiver, tag = key
                raise InputError(
                    f"{sender} sends {receiver} {len(sent)} messages with tag {tag}, and "
                    f"{len(received)} are received"
                )
            for send, receipt in zip(sent, received, strict=True):
                self._check_bytes(send, receipt)
                matched[send] = receipt
        return matched

    @cached_property
    def order(self) -> list[Position]:
        """All operations, each behind those that it waits for; a receipt waits for its send."""
        earlier = self.dependencies()
        sorter, order = TopologicalSorter(earlier), list[Position]()
        with suppress(CycleError):  # what is before the circle can be sorted all the same
            sorter.prepare()
        while ready := sorter.get_ready():
            order += ready
            sorter.done(*ready)
        if len(order) < len(earlier):
            sorted_ = set(order)
            node, number = next(position for position in earlier if position not in sorted_)
            raise InputError(f"operation {number} of {node} can never begin: it waits for itself")
        return order

    def of(self, position: Position) -> TraceOperation:
        """The operation there."""
        return self.operations[position[0]][position[1]]

    def places(self) -> Iterator[Position]:
        """All operations, node by node."""
        return ((node, i) for node, own in self.operations.items() for i in range(len(own)))

    def dependencies(self) -> dict[Position, set[Position]]:
        """Return the operations that each one waits for."""
        earlier: dict[Position, set[Position]] = {}
        for node, number in self.places():
            after, count = self.operations[node][number].after, len(self.operations[node])
            if any(not 0 <= other < count for other in after):
                raise InputError(f"operation {number} of {node} waits for one that is not there")
            earlier[node, number] = {(node, other) for other in after}
        for send, receipt in self.received_as.items():
            earlier[receipt].add(send)
        return earlier

    def _messages(self, kind: Kind) -> dict[tuple[str, str, int], list[Position]]:
        """Return the places of all messages of ``kind``, keyed by sender, receiver and tag."""
        messages: dict[tuple[str, str, int], list[Position]] = {}
        for node, number in self.places():
            operation = self.operations[node][number]
            if operation.kind != kind:
                continue
            peer = operation.peer
            if peer not in self.operations or peer == node:
                raise InputError(f"operation {number} of {node} names {peer!r}, no other node")
            sender, receiver = (node, peer) if kind == "send" else (peer, node)
            messages.setdefault((sender, receiver, operation.tag), []).append((node, number))
        return messages

    def _check_bytes(self, send: Position, receipt: Position) -> None:
        sent, received = self.of(send).bytes, self.of(receipt).bytes
        if sent != received:
            raise InputError(
                f"operation {send[1]} of {send[0]} sends {sent} B, which operation {receipt[1]} of "
                f"{receipt[0]} receives as {received} B"
            )


FORMAT, VERSION = "narrows-messages", 1
MAX_BYTES = 4 << 30
"""Largest message."""


class _Line(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


T = TypeVar("T", bound=_Line)


class _Node(_Line):
    name: str = Field(min_length=1, max_length=256)
    role: str = Field("", max_length=64)


class _Head(_Line):
    format: Literal["narrows-messages"]
    version: Literal[1]
    source: str = ""
    nodes: list[_Node] = Field(min_length=1)


class _Operation(_Line):
    node: str
    op: Literal["compute", "send", "receive"]
    after: list[int] = []
    seconds: float = Field(0.0, ge=0, lt=inf)
    peer: str = ""
    bytes: int = Field(0, ge=0, le=MAX_BYTES)
    tag: int = Field(0, ge=0, lt=2**31)
    begin_s: float | None = Field(None, ge=0, lt=inf)
    step: int | None = Field(None, ge=0, lt=2**31)


_OF_OTHERS = {"compute": ("peer", "bytes", "tag"), "send": ("seconds",), "receive": ("seconds",)}
"""Fields that mean something of other operations alone."""


def read(path: Path) -> MessageTrace:
    """The trace in ``path``. Raises InputError with file and line for what is not one."""
    if not path.is_file():
        raise InputError("no such file", where=str(path))
    lines = enumerate(read_jsonl(path, whole=True), start=1)
    head = _parsed(_Head, next(lines, (1, {}))[1], f"{path}:1")
    operations: dict[str, list[TraceOperation]] = {node.name: [] for node in head.nodes}
    for number, line in lines:
        row = _parsed(_Operation, line, f"{path}:{number}")
        if row.node not in operations:
            raise InputError(f"the first line names no node {row.node!r}", where=f"{path}:{number}")
        for name in _OF_OTHERS[row.op]:
            if getattr(row, name):
                raise InputError(f"{name}: a {row.op} has none", where=f"{path}:{number}")
        given = row.model_dump(exclude={"node", "op", "after"})
        operations[row.node].append(TraceOperation(row.op, tuple(row.after), **given))
    roles = {node.name: node.role for node in head.nodes if node.role}
    try:
        return MessageTrace({n: tuple(own) for n, own in operations.items()}, roles, head.source)
    except InputError as error:
        raise InputError(error.message, where=str(path)) from None


def write(trace: MessageTrace, path: Path) -> None:
    """Write ``trace`` so that ``read`` reads it back equal. Raises InputError where it cannot."""
    try:
        path.write_text("".join(f"{to_json(line)}\n" for line in _lines(trace)), encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", where=str(path)) from None


def _lines(trace: MessageTrace) -> Iterator[Mapping[str, Any]]:
    named = [{"name": name, "role": trace.roles.get(name, "")} for name in trace.nodes]
    yield {"format": FORMAT, "version": VERSION, "source": trace.source, "nodes": named}
    for node, number in trace.places():
        yield {"node": node, **to_line(trace.of((node, number)))}


def to_line(operation: TraceOperation) -> dict[str, Any]:
    """An operation as it stands in a line; what is as it would be without it is left out."""
    fields: dict[str, Any] = {"op": operation.kind, "after": list(operation.after)}
    if operation.kind == "compute":
        fields["seconds"] = operation.seconds
    else:
        fields |= {"peer": operation.peer, "bytes": operation.bytes, "tag": operation.tag}
    optional = {"begin_s": operation.begin_s, "step": operation.step}
    return fields | {name: value for name, value in optional.items() if value is not None}


def _parsed(kind: type[T], line: object, where: str) -> T:
    try:
        return kind.model_validate(line)
    except ValidationError as error:
        first = error.errors()[0]
        at = ".".join(map(str, first["loc"]))
        raise InputError(f"{at}: {first['msg']}" if at else first["msg"], where=where) from None


def check(operation: TraceOperation) -> None:
    """Raise InputError where ``operation`` has numbers that ``read`` refuses."""
    _parsed(_Operation, {"node": "", **to_line(operation)}, "")


def contents(trace: MessageTrace) -> dict[str, Any]:
    """``{"source", "nodes", "messages", "bytes", "least_s"}``; see ``least_s``."""
    nodes = [_node(trace, name) for name in trace.nodes]
    return {
        "source": trace.source,
        "nodes": nodes,
        "messages": sum(node["sent"] for node in nodes),
        "bytes": sum(node["bytes_sent"] for node in nodes),
        "least_s": least_s(trace),
    }


def _node(trace: MessageTrace, name: str) -> dict[str, Any]:
    own = trace.operations[name]
    sent = [operation.bytes for operation in own if operation.kind == "send"]
    received = [operation.bytes for operation in own if operation.kind == "receive"]
    return {
        "name": name,
        "role": trace.roles.get(name),
        "sent": len(sent),
        "received": len(received),
        "bytes_sent": sum(sent),
        "bytes_received": sum(received),
        "compute_s": sum(operation.seconds for operation in own),
    }


def least_s(trace: MessageTrace) -> float:
    """The longest chain of computations, each waiting for the one before: no network is faster."""
    ends: dict[Position, float] = {}
    earlier = trace.dependencies()
    for position in trace.order:
        before = max((ends[other] for other in earlier[position]), default=0.0)
        ends[position] = before + trace.of(position).seconds
    return max(ends.values(), default=0.0)


class NodeLog:
    """Every method returns the place of what it added."""

    def __init__(self) -> None:
        self.operations: list[TraceOperation] = []

    def compute(
        self, seconds: float, after: list[int], begin_s: float | None, step: int | None
    ) -> int:
        """A computation of so many seconds."""
        return self._add(
            TraceOperation("compute", tuple(after), seconds, begin_s=begin_s, step=step)
        )

    def message(
        self,
        kind: Kind,
        peer: str,
        size: int,
        tag: int,
        after: list[int],
        step: int | None,
        begin_s: float | None = None,
    ) -> int:
        """One that is sent or received, of ``size`` bytes."""
        about = {"peer": peer, "bytes": size, "tag": tag, "begin_s": begin_s, "step": step}
        return self._add(TraceOperation(kind, tuple(after), **about))  # type: ignore[arg-type]

    def _add(self, operation: TraceOperation) -> int:
        self.operations.append(operation)
        return len(self.operations) - 1
