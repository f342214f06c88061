"""Files of message traces: JSON lines, ``docs/job-traces.md``.

The first line names format, version, source and nodes; every other one is an operation of a node, whose number is its
place among that node's own lines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from testbed.errors import InputError
from testbed.messages.trace import MessageTrace, Operation
from testbed.record.directory import read_jsonl, to_json

FORMAT, VERSION = "narrows-messages", 1
MAX_BYTES = 4 << 30
"""Of a message."""


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


def read(path: Path) -> MessageTrace:
    """The trace in ``path``. Raises InputError with file and line for what is not one."""
    if not path.is_file():
        raise InputError("no such file", where=str(path))
    lines = enumerate(read_jsonl(path), start=1)
    head = _parsed(_Head, next(lines, (1, {}))[1], f"{path}:1")
    operations: dict[str, list[Operation]] = {node.name: [] for node in head.nodes}
    for number, line in lines:
        one = _parsed(_Operation, line, f"{path}:{number}")
        if one.node not in operations:
            raise InputError(f"the first line names no node {one.node!r}", where=f"{path}:{number}")
        given = one.model_dump(exclude={"node", "op", "after"})
        operations[one.node].append(Operation(one.op, tuple(one.after), **given))
    roles = {node.name: node.role for node in head.nodes if node.role}
    try:
        return MessageTrace({n: tuple(own) for n, own in operations.items()}, roles, head.source)
    except InputError as error:
        raise InputError(error.message, where=str(path)) from None


def write(trace: MessageTrace, path: Path) -> None:
    """Write ``trace`` so that ``read`` reads it back equal. Raises InputError where that is impossible."""
    try:
        path.write_text("".join(f"{to_json(line)}\n" for line in _lines(trace)), encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", where=str(path)) from None


def _lines(trace: MessageTrace) -> Iterator[Mapping[str, Any]]:
    named = [{"name": name, "role": trace.roles.get(name, "")} for name in trace.nodes]
    yield {"format": FORMAT, "version": VERSION, "source": trace.source, "nodes": named}
    for node, number in trace.places():
        yield {"node": node, **to_line(trace.of((node, number)))}


def to_line(one: Operation) -> dict[str, Any]:
    """An operation as it stands in a line; what is as it would be without it is left out."""
    fields: dict[str, Any] = {"op": one.kind, "after": list(one.after)}
    if one.kind == "compute":
        fields["seconds"] = one.seconds
    else:
        fields |= {"peer": one.peer, "bytes": one.bytes, "tag": one.tag}
    told = {"begin_s": one.begin_s, "step": one.step}
    return fields | {name: value for name, value in told.items() if value is not None}


def _parsed(kind: type[T], line: object, where: str) -> T:
    try:
        return kind.model_validate(line)
    except ValidationError as error:
        first = error.errors()[0]
        at = ".".join(map(str, first["loc"]))
        raise InputError(f"{at}: {first['msg']}" if at else first["msg"], where=where) from None
