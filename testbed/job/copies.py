"""Data that processes of one node copy out of, or into, the memory of another node's: counted call by call.

The other end of ``testbed.fabric.copies``. Every call is looked at while it waits, and then goes on unharmed.
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

from testbed.fabric.copies import names_of_calls, receive
from testbed.links.namespaces import identity

_TAKE, _ANSWER = 0xC0502100, 0xC0182101
"""SECCOMP_IOCTL_NOTIF_RECV and SECCOMP_IOCTL_NOTIF_SEND (include/uapi/linux/seccomp.h)."""
_NOTICE = struct.Struct("=QI4xi4x8x6Q")
"""``struct seccomp_notif``: id, who, the call's number and its arguments."""
_REPLY = struct.Struct("=QqiI")
_GO_ON = 1
_PIECE = struct.Struct("=8xQ")
"""``struct iovec``: its length."""
_MOST_PIECES = 1024
"""UIO_MAXIOV: the kernel refuses more."""
_PROC = Path("/proc")


@dataclass
class Copied:
    """Calls of one node on another's memory; ``bytes``: what they asked for."""

    node: str
    other: str
    call: str
    calls: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class _Call:
    node: str
    other: str
    name: str
    bytes: int


class CopyWatch:
    """Watches processes of ``nodes``, given their network namespaces. Whoever starts one gives it a ``channel``."""

    def __init__(self, nodes: Mapping[str, str]) -> None:
        self._nodes: dict[tuple[int, int], str] = {}
        for node, netns in nodes.items():
            with suppress(
                OSError
            ):  # in containers of an engine that others own; nobody needs to look there
                self._nodes[identity(netns)] = node
        self._names = names_of_calls()
        self._found: dict[tuple[str, str, str], Copied] = {}
        self._channels: dict[int, socket.socket] = {}
        self._listeners: set[int] = set()
        self.unwatched: set[str] = set()
        """Why processes are not watched, in words."""
        self._wake, self._epoll = os.eventfd(0, os.EFD_CLOEXEC), select.epoll()
        self._epoll.register(self._wake, select.EPOLLIN)
        self._thread = Thread(target=self._follow, name="copies", daemon=True)
        self._thread.start()

    @contextmanager
    def channel(self) -> Iterator[int]:
        """A descriptor for a process that is started in the ``with`` block, to be handed to ``copies.submit``."""
        own, other = socket.socketpair()
        self._channels[own.fileno()] = own
        self._epoll.register(own, select.EPOLLIN)
        with other:
            yield other.fileno()

    def end(self) -> list[Copied]:
        """Watch no longer: from now on the calls fail. What there was."""
        if self._thread.is_alive():
            os.eventfd_write(self._wake, 1)
            self._thread.join()
        return list(self._found.values())

    def _follow(self) -> None:
        try:
            while True:
                for descriptor, events in self._epoll.poll():
                    if descriptor == self._wake:
                        return
                    self._serve(descriptor, events)
        finally:
            for listener in self._listeners:
                os.close(listener)
            for channel in self._channels.values():
                channel.close()
            self._epoll.close()
            os.close(self._wake)

    def _serve(self, descriptor: int, events: int) -> None:
        if descriptor in self._channels:
            self._welcome(descriptor)
        elif events & select.EPOLLIN:
            self._look(descriptor)
        else:  # nobody is left who could call
            self._epoll.unregister(descriptor)
            self._listeners.discard(descriptor)
            os.close(descriptor)

    def _welcome(self, descriptor: int) -> None:
        self._epoll.unregister(descriptor)
        with self._channels.pop(descriptor) as channel:
            came = receive(channel)
        if isinstance(came, int):
            self._listeners.add(came)
            self._epoll.register(came, select.EPOLLIN)
        elif came is not None:
            self.unwatched.add(came)

    def _look(self, listener: int) -> None:
        """Take one call, look at it, let it go on. It counts if it was still there to be let go."""
        notice = bytearray(_NOTICE.size)
        try:
            fcntl.ioctl(listener, _TAKE, notice)
        except OSError:  # its process has been killed
            return
        number, caller, call, *arguments = _NOTICE.unpack(notice)
        seen: _Call | None = None
        try:
            seen = self._read(caller, call, arguments)
        finally:
            with suppress(OSError):
                fcntl.ioctl(listener, _ANSWER, _REPLY.pack(number, 0, 0, _GO_ON))
                self._count(seen)

    def _read(self, caller: int, call: int, arguments: list[int]) -> _Call | None:
        """None for a call within a node, for one on no node's process, and for one that cannot be looked at."""
        target, local, locals_, remote, remotes, _ = arguments
        with suppress(OSError, OverflowError, struct.error):  # a bad address is the caller's affair
            if identity(f"/proc/{caller}/ns/pid") != identity("/proc/self/ns/pid"):
                return None  # it numbers processes otherwise, and sees those of its own making only
            node, other = self._node(caller), self._node(target & 0xFFFFFFFF)
            if node is not None and other is not None and node != other:
                memory = _PROC / str(caller) / "mem"
                asked = min(_length(memory, local, locals_), _length(memory, remote, remotes))
                return _Call(node, other, self._names[call], asked)
        return None

    def _node(self, process: int) -> str | None:
        return self._nodes.get(identity(f"/proc/{process}/ns/net"))

    def _count(self, seen: _Call | None) -> None:
        if seen is None:
            return
        key = (seen.node, seen.other, seen.name)
        total = self._found.setdefault(key, Copied(*key))
        total.calls += 1
        total.bytes += seen.bytes


def _length(memory: Path, at: int, pieces: int) -> int:
    """Bytes that an array of ``struct iovec`` in a process's memory names. Raises OSError."""
    size = _PIECE.size * min(pieces, _MOST_PIECES)
    with memory.open("rb", buffering=0) as opened:
        held = os.pread(opened.fileno(), size, at)
    return sum(length for (length,) in _PIECE.iter_unpack(held))
