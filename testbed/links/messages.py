"""Netlink messages, encoded and decoded by pyroute2, quickly from the second of a structure on.

pyroute2 takes 0.1 ms to encode a class or to decode one, and leaves a cycle of references for the garbage collector, which hardly works
during a replay. So where the numbers of a message are is asked of it once, by the message's structure; from then on they are put there, and
read from there, with ``struct``. Which bytes those are, and how wide, is known from pyroute2's own description alone.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple

from pyroute2.netlink import NLA_F_NESTED, NLM_F_REQUEST, nlmsg

Fields = dict[str, Any]
"""A message as pyroute2 takes it: its own fields by name, and under ``attrs`` pairs of a name and a number, a text or such fields.

What is no number must be hashable. A third thing in a pair is ``NLA_F_NESTED``."""
Attribute = tuple[str, Any] | tuple[str, Any, int]

_MOST = 1024
"""Structures that are remembered."""
_templates: dict[tuple[tuple[str, ...], tuple[tuple[str, Hashable], ...]], _Template] = {}


def tree(*attributes: Attribute, **fields: int) -> Fields:
    """Fields and attributes in pyroute2's form."""
    return {**fields, "attrs": list(attributes)}


def nest(name: str, *attributes: Attribute) -> Attribute:
    """An attribute made of attributes that says so, which pyroute2 leaves out of some and older kernels want of none."""
    return name, tree(*attributes), NLA_F_NESTED


class Message(NamedTuple):
    """A request to encode: one of pyroute2's message classes, and its fields."""

    kind: type[nlmsg]
    fields: Fields


def encode(message: Message, command: int, flags: int) -> bytes:
    """The bytes of a request, to be sent any number of times."""
    numbers, structure = [command, NLM_F_REQUEST | flags], [message.kind.__name__]
    constants: list[tuple[str, Hashable]] = []
    for name, value in _members(message.fields):
        if isinstance(value, int):
            structure.append(name)
            numbers.append(value)
        else:
            constants.append((name, value))
    key = (tuple(structure), tuple(constants))
    template = _templates.get(key)
    if template is None:
        if len(_templates) >= _MOST:
            _templates.clear()
        template = _templates[key] = _template(message, numbers, *key)
    data = bytearray(template.data)
    for (pack_into, at), number in zip(template.packers, numbers, strict=True):
        pack_into(data, at, number)
    return bytes(data)


def _members(fields: Fields, before: str = "") -> Iterator[tuple[str, Any]]:
    """All that it holds, by the names of ``_places``; of an attribute made of attributes its flags."""
    yield from ((before + name, value) for name, value in fields.items() if name != "attrs")
    for name, value, *flags in fields.get("attrs", ()):
        if isinstance(value, dict):
            yield before + name, tuple(flags)
            yield from _members(value, f"{before}{name}.")
        else:
            yield f"{before}{name}.value" if isinstance(value, int) else before + name, value


class _Template(NamedTuple):
    """One structure: what is the same in all messages of it, and what puts its numbers where they belong."""

    data: bytes
    packers: list[tuple[Callable[..., None], int]]


def _template(
    message: Message,
    numbers: Sequence[int],
    structure: Sequence[str],
    constants: Sequence[tuple[str, Hashable]],
) -> _Template:
    encoded: Any = message.kind()
    encoded.setvalue(message.fields)
    encoded["header"] = {"type": numbers[0], "flags": numbers[1]}
    encoded.encode()
    data = encoded.data
    places = {place.name: place for place in _places(encoded)}
    for name, value in constants:
        if value == (NLA_F_NESTED,):
            at = places[name].at - 2
            struct.pack_into("=H", data, at, struct.unpack_from("=H", data, at)[0] | NLA_F_NESTED)
    wanted = [places[name] for name in ("header.type", "header.flags", *structure[1:])]
    packers = [(struct.Struct(place.layout).pack_into, place.at) for place in wanted]
    return _Template(bytes(data), packers)


class Reader:
    """Reads some numbers out of messages of one class, by names such as ``TCA_OPTIONS.TCA_HTB_PARMS.rate``.

    The name of an attribute alone stands for its bytes, and so does one of a number in network byte order. What a message
    does not have is None.
    """

    def __init__(self, kind: type[nlmsg], *names: str) -> None:
        self._kind, self._names = kind, names
        self._layouts: dict[int, list[_Layout]] = {}

    def __call__(self, message: bytes) -> tuple[Any, ...]:
        """The values of a whole message, in the order of the names."""
        known = self._layouts.setdefault(len(message), [])
        for layout in known:
            if layout.marks.unpack_from(message) == layout.marked:
                values = (*layout.values.unpack_from(message), None)
                return tuple([values[at] for at in layout.order])
        decoded = self._kind(message)
        decoded.decode()
        known.append(_layout(decoded, message, self._names))
        return self(message)


def text(message: Any, name: str) -> str:
    """A text attribute of a decoded message, whatever bytes are in it; empty where there is none."""
    found = message.get_attr(name) or ""
    return found.decode(errors="replace") if isinstance(found, bytes) else found


class _Layout(NamedTuple):
    """Where values are in messages whose attributes are the same and as long."""

    marks: struct.Struct
    marked: tuple[int, ...]
    values: struct.Struct
    order: list[int]
    """Of each name the number of its value; of what is not there, one beyond them."""


def _layout(decoded: nlmsg, message: bytes, names: Sequence[str]) -> _Layout:
    places = list(_places(decoded))
    marks = _struct([(place.at - 4, "=I") for place in places if place.attribute])
    there = sorted((place for place in places if place.name in names), key=lambda place: place.at)
    known = [place.name for place in there]
    order = [known.index(name) if name in known else len(known) for name in names]
    values = _struct([(place.at, place.layout) for place in there])
    return _Layout(marks, marks.unpack_from(message), values, order)


def _struct(places: Sequence[tuple[int, str]]) -> struct.Struct:
    """A ``Struct`` that reads values at these offsets, which rise. It has one order: numbers in the other are bytes."""
    layout, at = "=", 0
    for offset, one in places:
        size = struct.calcsize(one)
        layout += f"{offset - at}x" + (one[1:] if one[0] == "=" else f"{size}s")
        at = offset + size
    return struct.Struct(layout)


class _Place(NamedTuple):
    """The place of a number, or of all that an attribute holds, in a message."""

    name: str
    at: int
    layout: str
    attribute: bool = False
    """Its length and type are in the 4 bytes before."""


def _places(message: Any, before: str = "") -> Iterator[_Place]:
    """Everything in an encoded or decoded message."""
    at = message.offset
    for name, layout in message.header or ():
        if not message.is_nla:
            yield _Place(f"header.{name}", at, f"={layout}")
        at += struct.calcsize(layout)
    if message.is_nla:
        held = message.offset + message.length - at
        yield _Place(before.removesuffix("."), at, f"={held}s", attribute=True)
    for name, layout in message.fields:
        if layout == "s":
            break
        yield _Place(before + name, at, layout if layout[0] in "<>=" else f"={layout}")
        at += struct.calcsize(layout)
    for slot in dict.get(message, "attrs", ()):
        yield from _places(slot.nla, f"{before}{slot.name}.")
