"""Netlink messages, encoded and decoded by pyroute2's descriptions, over a socket that is asked
and read at once.

pyroute2 takes 0.1 ms to encode a class or to decode one, and leaves a cycle of references for the
garbage collector, which hardly works during a replay. So where the numbers of a message are is
asked of it once, by the message's structure; from then on they are put there, and read from there,
with ``struct``. Which bytes those are, and how wide, is known from pyroute2's own description
alone.

pyroute2 knows how messages are laid out; here they are sent. Its own sockets are not used: each
brings an event loop along (2 ms to begin with, 0.6 ms a request against 0.01 ms here), has no time
limit, does not notice a list that changed while it was read, and opens a second socket, in another
namespace, for a thread that has none. One that is opened inside a namespace here stays there,
whatever the thread that holds it does later.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, Self

from pyroute2.netlink import (
    NETLINK_ADD_MEMBERSHIP,
    NETLINK_EXT_ACK,
    NETLINK_GET_STRICT_CHK,
    NETLINK_ROUTE,
    NETLINK_SOCK_DIAG,
    NLA_F_NESTED,
    NLM_F_ACK,
    NLM_F_DUMP,
    NLM_F_DUMP_INTR,
    NLM_F_REQUEST,
    NLMSG_DONE,
    NLMSG_ERROR,
    SOL_NETLINK,
    nla,
    nlmsg,
    nlmsgerr,
)
from pyroute2.netlink.exceptions import NetlinkDecodeError
from pyroute2.netlink.rtnl.marshal import MarshalRtnl

from testbed.links.network.namespaces import inside

Fields = dict[str, Any]
"""A message as pyroute2 takes it: its own fields by name, and under ``attrs`` pairs of a name and a
number, a text or such fields.

What is no number must be hashable. A third thing in a pair is ``NLA_F_NESTED``.
"""
Attribute = tuple[str, Any] | tuple[str, Any, int]

_MOST = 1024
"""Structures that are remembered."""
_templates = OrderedDict[tuple[tuple[str, ...], tuple[tuple[str, Hashable], ...]], "_Template"]()


def tree(*attributes: Attribute, **fields: int) -> Fields:
    """Fields and attributes in pyroute2's form."""
    return {**fields, "attrs": list(attributes)}


def nest(name: str, *attributes: Attribute) -> Attribute:
    """An attribute of attributes that is flagged as such, which pyroute2 leaves out of some."""
    return name, tree(*attributes), NLA_F_NESTED


class NetlinkMessage(NamedTuple):
    """A request to encode: one of pyroute2's message classes, and its fields."""

    kind: type[nlmsg]
    fields: Fields


def encode(message: NetlinkMessage, command: int, flags: int) -> bytes:
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
            _templates.popitem(last=False)
        template = _templates[key] = _template(message, numbers, *key)
    data = bytearray(template.data)
    for (pack_into, at), number in zip(template.packers, numbers, strict=True):
        pack_into(data, at, number)
    return bytes(data)


def _members(fields: Fields, before: str = "") -> Iterator[tuple[str, Any]]:
    """All that it holds, by the names of ``_places``; of nested attributes the flags."""
    yield from ((before + name, value) for name, value in fields.items() if name != "attrs")
    for name, value, *flags in fields.get("attrs", ()):
        if isinstance(value, dict):
            yield before + name, tuple(flags)
            yield from _members(value, f"{before}{name}.")
        else:
            yield f"{before}{name}.value" if isinstance(value, int) else before + name, value


class _Template(NamedTuple):
    """One structure: its constant bytes, and what puts its numbers where they belong."""

    data: bytes
    packers: list[tuple[Callable[..., None], int]]


def _template(
    message: NetlinkMessage,
    numbers: Sequence[int],
    structure: Sequence[str],
    constants: Sequence[tuple[str, Hashable]],
) -> _Template:
    encoded: Any = message.kind()
    encoded.setvalue(message.fields)
    encoded["header"] = {"type": numbers[0], "flags": numbers[1]}
    encoded.encode()
    data = encoded.data
    places = {entry.name: entry for entry in _places(encoded)}
    for name, value in constants:
        if value == (NLA_F_NESTED,):
            _, at, layout = places[f"{name}.header.type"]
            kind = struct.unpack_from(layout, data, at)[0]
            struct.pack_into(layout, data, at, kind | NLA_F_NESTED)
    wanted = [places[name] for name in ("header.type", "header.flags", *structure[1:])]
    packers = [(struct.Struct(entry.layout).pack_into, entry.at) for entry in wanted]
    return _Template(bytes(data), packers)


class AttributeReader:
    """Reads some numbers out of messages of one class, by names such as
    ``TCA_OPTIONS.TCA_HTB_PARMS.rate``.

    The name of an attribute alone stands for its bytes, and so does one of a number in network byte
    order. What a message does not have is None.
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
        known.append(_layout(decoded(self._kind, message), message, self._names))
        return self(message)


def text(message: Any, name: str) -> str:
    """A text attribute of a decoded message, in any encoding; empty: there is none."""
    value = message.get_attr(name) or ""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


class _Layout(NamedTuple):
    """Where values are in messages whose attributes are the same and as long."""

    marks: struct.Struct
    marked: tuple[int, ...]
    values: struct.Struct
    order: list[int]
    """The number of the value of each name; for a name that is not there, one beyond them."""


def decoded(kind: type[nlmsg], message: bytes) -> Any:
    """A message as pyroute2 reads it; an attribute that it cannot read it leaves as bytes.

    Raises KernelRefused for a message that is none of this class.
    """
    result: Any = kind(message)
    try:
        result.decode()
    except (NetlinkDecodeError, struct.error) as error:
        raise KernelRefused(errno.EBADMSG, f"no {kind.__name__}: {error!r}") from error
    return result


def _layout(message: nlmsg, data: bytes, names: Sequence[str]) -> _Layout:
    places = list(_places(message))
    marks = _struct([(at, form) for name, at, form in places if name.endswith(_MARKS)])
    present = sorted((entry for entry in places if entry.name in names), key=lambda entry: entry.at)
    known = [entry.name for entry in present]
    order = [known.index(name) if name in known else len(known) for name in names]
    values = _struct([(entry.at, entry.layout) for entry in present])
    return _Layout(marks, marks.unpack_from(data), values, order)


def _struct(places: Sequence[tuple[int, str]]) -> struct.Struct:
    """A ``Struct`` for rising offsets; numbers in the other byte order are bytes."""
    layout, at = "=", 0
    for offset, form in places:
        size = struct.calcsize(form)
        layout += f"{offset - at}x" + (form[1:] if form[0] == "=" else f"{size}s")
        at = offset + size
    return struct.Struct(layout)


_MARKS = tuple(f".header.{name}" for name, _ in nla.header)
"""Names of the numbers that tell attributes apart: their lengths and types."""


class _Place(NamedTuple):
    """The place of a number, or of all that an attribute holds, in a message."""

    name: str
    at: int
    layout: str


def _places(message: Any, before: str = "") -> Iterator[_Place]:
    """Everything in an encoded or decoded message, of an attribute as much as it is long."""
    at = message.offset
    for name, layout in message.header or ():
        yield _Place(f"{before}header.{name}", at, f"={layout}")
        at += struct.calcsize(layout)
    size = message.offset + message.length - at
    if message.is_nla:
        yield _Place(before.removesuffix("."), at, f"={size}s")
    for name, layout in message.fields:
        if layout == "s" or (size := size - struct.calcsize(layout)) < 0:
            break
        yield _Place(before + name, at, layout if layout[0] in "<>=" else f"={layout}")
        at += struct.calcsize(layout)
    for slot in dict.get(message, "attrs", ()):
        yield from _places(slot.nla, f"{before}{slot.name}.")


_HEADER = struct.Struct("=" + "".join(layout for _, layout in nlmsg.header))
_CODE = struct.Struct("=" + nlmsgerr.fields[0][1])
_SO_RCVBUFFORCE = 33
_BUFFER_BYTES = 1 << 16
_DUMP_ATTEMPTS = 5
_TIMEOUT = struct.pack("@ll", 10, 0)
"""No answer is waited for longer than 10 s."""


class KernelRefused(OSError):
    """The kernel refused: ``strerror`` is in its own words where it has any."""


@contextmanager
def tolerating(*codes: int) -> Iterator[None]:
    """Leave a ``with`` block early where the system refuses something with one of these errors."""
    try:
        yield
    except OSError as error:
        if error.errno not in codes:
            raise


def undone(steps: Iterable[Callable[[], object]], *gone: int) -> list[str]:
    """Carry out every step; returns the failures in words, but for these errors."""
    failures = []
    for step in steps:
        try:
            with tolerating(*gone):
                step()
        except OSError as error:
            failures.append(str(error))
    return failures


class NetlinkChannel:
    """A netlink socket in a namespace (``None``: the caller's own). One owner at a time: it is not
    locked.

    ``family``: of netlink's protocols, routing or ``NETLINK_SOCK_DIAG``, whose messages only
    ``dump_raw`` takes.
    """

    def __init__(self, netns: str | None = None, family: int = NETLINK_ROUTE) -> None:
        with inside(netns):
            self._socket = socket.socket(
                socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, family
            )
        for option in (NETLINK_EXT_ACK, NETLINK_GET_STRICT_CHK):
            self._socket.setsockopt(SOL_NETLINK, option, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TIMEOUT)
        self._socket.bind((0, 0))
        # One buffer for all answers: a fresh one would cost more than the question.
        self._buffer = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._unanswered = False
        """True if an answer may be on its way that nobody has read."""

    def close(self) -> None:
        """Close the socket; safe to call twice."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def request(self, message: NetlinkMessage, kind: int, flags: int = 0) -> None:
        """Have something done. Raises KernelRefused."""
        self.send(encode(message, kind, flags | NLM_F_ACK))

    def send(self, *prepared: bytes) -> None:
        """Have messages carried out that were encoded with ``NLM_F_ACK``. Raises KernelRefused."""
        for message in prepared:
            self.ask(message)

    def get(self, message: NetlinkMessage, kind: int) -> nlmsg:
        """The object that ``message`` asks for. Raises KernelRefused."""
        return _parsed(self.ask(encode(message, kind, 0)))

    def ask(self, prepared: bytes) -> bytes:
        """The one message that answers ``prepared`` (header included). Raises KernelRefused."""
        self._send(prepared)
        answer = self._receive()
        self._unanswered = False
        _check(answer)
        return answer

    def _send(self, prepared: bytes) -> None:
        """Ask; what was left unread by an exception before is not taken for the answer."""
        if self._unanswered:
            with suppress(BlockingIOError):
                while True:
                    self._socket.recv(1, socket.MSG_DONTWAIT)
        self._unanswered = True
        self._socket.send(prepared)

    def dump(self, message: NetlinkMessage, kind: int) -> list[nlmsg]:
        """All objects of a kind; asked again when they changed meanwhile. Raises KernelRefused."""
        return list(map(_parsed, self.dump_raw(message, kind)))

    def dump_raw(self, message: NetlinkMessage, kind: int) -> list[bytes]:
        """The same, each object's message as it came."""
        prepared = encode(message, kind, NLM_F_DUMP)
        for _ in range(_DUMP_ATTEMPTS):
            self._send(prepared)
            messages: list[bytes] = []
            whole = self._collect(messages)
            self._unanswered = False
            if whole:
                return messages
        raise KernelRefused(errno.EINTR, "the list changed at every attempt to read it")

    def _receive(self) -> bytes:
        try:
            length = self._socket.recv_into(self._buffer, 0, socket.MSG_TRUNC)
        except BlockingIOError:
            raise KernelRefused(errno.ETIMEDOUT, "the kernel has not answered in time") from None
        if length > _BUFFER_BYTES:
            raise KernelRefused(errno.EMSGSIZE, f"an answer of {length} bytes was cut off")
        return bytes(self._view[:length])

    def _collect(self, messages: list[bytes]) -> bool:
        whole = True
        while True:
            for kind, flags, message in split(self._receive()):
                whole = whole and not flags & NLM_F_DUMP_INTR
                _check(message)
                if kind == NLMSG_DONE:
                    return whole
                messages.append(message)


def listener(
    netns: str, groups: Sequence[int], buffer_bytes: int, family: int = NETLINK_SOCK_DIAG
) -> socket.socket:
    """A socket that hears a namespace's multicast groups, not blocking. Raises OSError."""
    with inside(netns):
        opened = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, family)
    try:
        try:
            opened.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, buffer_bytes)
        except PermissionError:  # as root of a namespace of users: what the host allows
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        opened.setblocking(False)
        opened.bind((0, 0))
        for group in groups:
            with tolerating(errno.ENOENT):  # there is no IPv6 here
                opened.setsockopt(SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, group)
    except BaseException:
        opened.close()
        raise
    return opened


def split(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """The messages of one answer: kind, flags, and all of it, header included."""
    at = 0
    while at + _HEADER.size <= len(data):
        length, kind, flags, _, _ = _HEADER.unpack_from(data, at)
        yield kind, flags, data[at : at + length]
        at += length + (-length % 4)


def _parsed(answer: bytes) -> nlmsg:
    return decoded(MarshalRtnl.msg_map[_HEADER.unpack_from(answer)[1]], answer)


def _check(answer: bytes) -> None:
    """Raises KernelRefused for an error, or a list that could not be ended."""
    kind = _HEADER.unpack_from(answer)[1]
    if kind not in (NLMSG_ERROR, NLMSG_DONE) or len(answer) < _HEADER.size + _CODE.size:
        return
    code = -_CODE.unpack_from(answer, _HEADER.size)[0]
    if code <= 0:
        return
    said = None
    if kind == NLMSG_ERROR:
        said = text(decoded(nlmsgerr, answer), "NLMSGERR_ATTR_MSG")
    raise KernelRefused(code, said or os.strerror(code))
