"""Routing netlink in as much as links need it: attributes, requests, dumps, the kernel's own words.

Spoken directly over a socket because a change of a running link must cost microseconds, and because one
socket opened inside a namespace stays there, whatever the thread that holds it does later.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator
from typing import Self

from testbed.links.namespaces import inside

ROUTE, SOCK_DIAG = 0, 4
REQUEST, ACK, ECHO, DUMP = 0x1, 0x4, 0x8, 0x300
REPLACE, EXCL, CREATE = 0x100, 0x200, 0x400
_NESTED, _TYPE_MASK = 0x8000, 0x3FFF
_ERROR, _DONE, _INTERRUPTED, _ACK_ATTRIBUTES, _CAPPED = 2, 3, 0x10, 0x200, 0x100
_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_SOL_NETLINK, _CAP_ACK, _EXT_ACK, _STRICT_CHECK = 270, 10, 11, 12
_BUFFER_BYTES = 1 << 16
_DUMP_ATTEMPTS = 5
_TIMEOUT = struct.pack("@ll", 10, 0)
"""No request waits longer for the kernel: a stuck routing lock becomes an error, not a hang."""


class KernelRefused(OSError):
    """The kernel said no: ``errno`` as always, ``strerror`` in the kernel's words where it has any."""


def attribute(kind: int, value: bytes | str | int) -> bytes:
    """One attribute, padded. Text is sent with its closing zero, numbers as 32 bit."""
    if isinstance(value, int):
        value = struct.pack("=I", value)
    elif isinstance(value, str):
        value = value.encode() + b"\0"
    return _ATTRIBUTE.pack(4 + len(value), kind) + value + b"\0" * (-len(value) % 4)


def nested(kind: int, *attributes: bytes) -> bytes:
    """An attribute made of attributes."""
    return attribute(kind | _NESTED, b"".join(attributes))


def attributes(data: bytes) -> dict[int, bytes]:
    """Attributes by kind; of a kind that occurs twice the last."""
    found = attribute_offsets(data, 0, len(data))
    return {kind: data[begin:end] for kind, (begin, end) in found.items()}


def attribute_offsets(data: bytes, begin: int, end: int) -> dict[int, tuple[int, int]]:
    """Where attributes between two offsets have their values: first byte, and one past the last."""
    found: dict[int, tuple[int, int]] = {}
    at = begin
    while at + 4 <= end:
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        if length < 4:
            break
        found[kind & _TYPE_MASK] = (at + 4, at + length)
        at += length + (-length % 4)
    return found


def number(value: bytes) -> int:
    """A little-endian attribute of 1, 2, 4 or 8 bytes."""
    return int.from_bytes(value, "little")


def text(value: bytes) -> str:
    """A text attribute without its closing zero."""
    return value.rstrip(b"\0").decode(errors="replace")


def message(kind: int, flags: int, body: bytes) -> bytes:
    """A whole request, ready to be sent any number of times."""
    return _HEADER.pack(16 + len(body), kind, REQUEST | flags, 0, 0) + body


class Netlink:
    """A socket in a namespace (``None``: the caller's own). One owner at a time: it is not locked.

    ``family``: of netlink's protocols; routing where nothing is said.
    """

    def __init__(self, netns: str | None = None, family: int = ROUTE) -> None:
        with inside(netns):
            self._socket = socket.socket(
                socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, family
            )
        for option in (_CAP_ACK, _EXT_ACK, _STRICT_CHECK):
            self._socket.setsockopt(_SOL_NETLINK, option, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TIMEOUT)
        self._socket.bind((0, 0))
        # One buffer for all answers: a fresh one would cost more than the question.
        self._buffer = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._buffer)

    def close(self) -> None:
        """Close the socket; safe to call twice."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def request(self, kind: int, flags: int, body: bytes) -> None:
        """Have something done. Raises KernelRefused."""
        self.send(message(kind, flags | ACK, body))

    def send(self, prepared: bytes) -> None:
        """Send a ``message`` made with ``ACK`` and wait for the answer. Raises KernelRefused."""
        self.ask(prepared)

    def ask(self, prepared: bytes) -> bytes:
        """The one message that answers ``prepared`` (header included). Raises KernelRefused."""
        self._socket.send(prepared)
        answer = self._receive()
        _check(answer)
        return answer

    def dump(self, kind: int, body: bytes) -> list[bytes]:
        """Bodies of all objects of a kind; asked again when they changed while being listed."""
        for _ in range(_DUMP_ATTEMPTS):
            self._socket.send(message(kind, DUMP, body))
            found: list[bytes] = []
            if self._collect(found):
                return found
        raise KernelRefused(errno.EINTR, "the list changed at every attempt to read it")

    def _receive(self) -> bytes:
        length = self._socket.recv_into(self._buffer)
        return bytes(self._view[:length])

    def _collect(self, found: list[bytes]) -> bool:
        whole = True
        while True:
            for kind, flags, body in split(self._receive()):
                whole = whole and not flags & _INTERRUPTED
                if kind == _DONE:
                    return whole
                if kind == _ERROR:
                    _raise(flags, body)
                found.append(body)


def split(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """The messages of one answer: kind, flags, body."""
    at = 0
    while at + 16 <= len(data):
        length, kind, flags, _, _ = _HEADER.unpack_from(data, at)
        yield kind, flags, data[at + 16 : at + length]
        at += length + (-length % 4)


def _check(answer: bytes) -> None:
    kind, flags = struct.unpack_from("=HH", answer, 4)
    if kind == _ERROR:
        _raise(flags, answer[16:])


def _raise(flags: int, body: bytes) -> None:
    code = -int.from_bytes(body[:4], "little", signed=True)
    if not code:
        return
    said = b""
    if flags & _ACK_ATTRIBUTES:
        # After the error comes the header of what was refused; the whole of it unless capped.
        refused = 16 if flags & _CAPPED else int.from_bytes(body[4:8], "little")
        said = attributes(body[4 + refused :]).get(1, b"")
    raise KernelRefused(code, text(said) or os.strerror(code))
