"""Netlink by pyroute2's message classes, over a socket that is asked and read at once.

pyroute2 knows how messages are laid out; here they are sent. Its own sockets are not used: each brings an event loop along
(2 ms to begin with, 0.6 ms a request against 0.01 ms here), has no time limit, does not notice a list that changed while it was read, and
opens a second socket, in another namespace, for a thread that has none. One that is opened inside a namespace here stays there,
whatever the thread that holds it does later.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Self

from pyroute2.netlink import (
    NETLINK_ADD_MEMBERSHIP,
    NETLINK_EXT_ACK,
    NETLINK_GET_STRICT_CHK,
    NLM_F_ACK,
    NLM_F_DUMP,
    NLM_F_DUMP_INTR,
    NLMSG_DONE,
    NLMSG_ERROR,
    SOL_NETLINK,
    nlmsg,
    nlmsgerr,
)
from pyroute2.netlink.rtnl.marshal import MarshalRtnl

from testbed.links.messages import Message, encode, text
from testbed.links.namespaces import inside

ROUTE, SOCK_DIAG = socket.NETLINK_ROUTE, 4
_HEADER = struct.Struct("=" + "".join(layout for _, layout in nlmsg.header))
_CODE = struct.Struct("=" + nlmsgerr.fields[0][1])
_SO_RCVBUFFORCE = 33
_BUFFER_BYTES = 1 << 16
_DUMP_ATTEMPTS = 5
_TIMEOUT = struct.pack("@ll", 10, 0)
"""No answer is waited for longer than 10 s. (The kernel does most of its work while it is asked, which nothing bounds.)"""


class KernelRefused(OSError):
    """The kernel said no: ``errno`` as always, ``strerror`` in the kernel's words where it has any."""


@contextmanager
def tolerating(*codes: int) -> Iterator[None]:
    """Leave a ``with`` block early where the system refuses something with one of these errors."""
    try:
        yield
    except OSError as error:
        if error.errno not in codes:
            raise


def undone(steps: Iterable[Callable[[], object]], *gone: int) -> list[str]:
    """Carry out every step, whatever became of those before; returns what failed, in words, but for these errors."""
    failures = []
    for step in steps:
        try:
            with tolerating(*gone):
                step()
        except OSError as error:
            failures.append(str(error))
    return failures


class Channel:
    """A netlink socket in a namespace (``None``: the caller's own). One owner at a time: it is not locked.

    ``family``: of netlink's protocols, routing or ``SOCK_DIAG``, whose messages only ``dump_raw`` takes.
    """

    def __init__(self, netns: str | None = None, family: int = ROUTE) -> None:
        with inside(netns):
            self._socket = socket.socket(
                socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, family
            )
        for option in (NETLINK_EXT_ACK, NETLINK_GET_STRICT_CHK):
            self._socket.setsockopt(SOL_NETLINK, option, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TIMEOUT)
        self._socket.bind((0, 0))
        self._marshal = MarshalRtnl()
        # One buffer for all answers: a fresh one would cost more than the question.
        self._buffer = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._asked = False
        """Whether an answer may be on its way that nobody has read."""

    def close(self) -> None:
        """Close the socket; safe to call twice."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def request(self, message: Message, kind: int, flags: int = 0) -> None:
        """Have something done. Raises KernelRefused."""
        self.send(encode(message, kind, flags | NLM_F_ACK))

    def send(self, *prepared: bytes) -> None:
        """Have messages carried out, one after the other, that were encoded with ``NLM_F_ACK``. Raises KernelRefused."""
        for one in prepared:
            self.ask(one)

    def get(self, message: Message, kind: int) -> nlmsg:
        """The object that ``message`` asks for. Raises KernelRefused."""
        (answer,) = self._parsed(self.ask(encode(message, kind, 0)))
        return answer

    def ask(self, prepared: bytes) -> bytes:
        """The one message that answers ``prepared`` (header included). Raises KernelRefused."""
        self._send(prepared)
        answer = self._receive()
        self._asked = False
        _check(answer)
        return answer

    def _send(self, prepared: bytes) -> None:
        """Ask; what was left unread by an exception before is not taken for the answer."""
        if self._asked:
            with suppress(BlockingIOError):
                while True:
                    self._socket.recv(1, socket.MSG_DONTWAIT)
        self._asked = True
        self._socket.send(prepared)

    def dump(self, message: Message, kind: int) -> list[nlmsg]:
        """All objects of a kind; asked again when they changed while being listed. Raises KernelRefused."""
        return [one for data in self.dump_raw(message, kind) for one in self._parsed(data)]

    def _parsed(self, data: bytes) -> Iterator[nlmsg]:
        for message in self._marshal.parse(data):
            if message["header"]["error"] is not None:  # which pyroute2 goes on with
                raise message["header"]["error"]
            yield message

    def dump_raw(self, message: Message, kind: int) -> list[bytes]:
        """The same, each object's message as it came."""
        prepared = encode(message, kind, NLM_F_DUMP)
        for _ in range(_DUMP_ATTEMPTS):
            self._send(prepared)
            found: list[bytes] = []
            whole = self._collect(found)
            self._asked = False
            if whole:
                return found
        raise KernelRefused(errno.EINTR, "the list changed at every attempt to read it")

    def _receive(self) -> bytes:
        length = self._socket.recv_into(self._buffer)
        return bytes(self._view[:length])

    def _collect(self, found: list[bytes]) -> bool:
        whole = True
        while True:
            for kind, flags, message in split(self._receive()):
                whole = whole and not flags & NLM_F_DUMP_INTR
                _check(message)
                if kind == NLMSG_DONE:
                    return whole
                found.append(message)


def listener(
    netns: str, groups: Sequence[int], buffer_bytes: int, family: int = SOCK_DIAG
) -> socket.socket:
    """A socket that hears what a namespace's kernel tells groups of listeners. It does not block. Raises OSError."""
    with inside(netns):
        made = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, family)
    try:
        try:
            made.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, buffer_bytes)
        except PermissionError:  # as root of a namespace of users: what the host allows
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        made.setblocking(False)
        made.bind((0, 0))
        for group in groups:
            with tolerating(errno.ENOENT):  # there is no IPv6 here
                made.setsockopt(SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, group)
    except BaseException:
        made.close()
        raise
    return made


def split(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """The messages of one answer: kind, flags, and all of it, header included."""
    at = 0
    while at + _HEADER.size <= len(data):
        length, kind, flags, _, _ = _HEADER.unpack_from(data, at)
        yield kind, flags, data[at : at + length]
        at += length + (-length % 4)


def _check(answer: bytes) -> None:
    """Raises KernelRefused for what says so: an error, or the end of a list that could not be ended."""
    kind = _HEADER.unpack_from(answer)[1]
    if kind not in (NLMSG_ERROR, NLMSG_DONE) or len(answer) < _HEADER.size + _CODE.size:
        return
    code = -_CODE.unpack_from(answer, _HEADER.size)[0]
    if code <= 0:
        return
    said = None
    if kind == NLMSG_ERROR:
        refusal: Any = nlmsgerr(answer)
        refusal.decode()
        said = text(refusal, "NLMSGERR_ATTR_MSG")
    raise KernelRefused(code, said or os.strerror(code))
