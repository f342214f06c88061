"""Unix sockets that join processes of two nodes, as the kernel describes them (include/uapi/linux/unix_diag.h).

One that has a path in a folder that both see leads past every network. What goes through it nobody counts. The kernel has both ends of
a connection in the caller's namespace: whose the other one is, is known by the file that it listened at.
"""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from testbed.links.netlink import attributes

_REQUEST = struct.Struct("=B3xI4xI8x")
_MESSAGE = struct.Struct("=2xBxI8x")
_NAME, _FILE, _PEER = 0, 1, 2
_SHOW = 1 << _NAME | 1 << _FILE | 1 << _PEER
_ALL_STATES, _LISTENS = 0xFFFFFFFF, 10
QUERY = _REQUEST.pack(socket.AF_UNIX, _ALL_STATES, _SHOW)
"""The request for a namespace's Unix sockets."""


@dataclass(frozen=True, slots=True)
class UnixSeen:
    """One socket. Inodes are the machine's, whatever the namespace; ``peer``: 0 without one; ``path``: empty without.

    ``file``: of its path, what the file system knows it by. A connection's has that of the listener.
    """

    inode: int
    peer: int = 0
    path: str = ""
    file: bytes = b""
    listens: bool = False


@dataclass(frozen=True, slots=True)
class Joined:
    """A connection between a node and ``other``. ``inodes``: of both sockets, the smaller first."""

    node: str
    other: str
    path: str
    inodes: tuple[int, int]

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Joined:
        """Read one that has crossed a pipe as an object."""
        return cls(**{**fields, "inodes": tuple(fields["inodes"])})


def decode(body: bytes) -> UnixSeen:
    """Read a description."""
    state, inode = _MESSAGE.unpack_from(body)
    found = attributes(body[_MESSAGE.size :])
    path = found.get(_NAME, b"").rstrip(b"\0").replace(b"\0", b"@")
    peer = int.from_bytes(found.get(_PEER, b""), sys.byteorder)
    listens = state == _LISTENS
    return UnixSeen(inode, peer, path.decode(errors="replace"), found.get(_FILE, b""), listens)


class Joins:
    """Every connection between two nodes, out of one list of their sockets after the other.

    A name without a file (an abstract address) leads nowhere out of its namespace.
    """

    def __init__(self) -> None:
        self._listeners: dict[tuple[bytes, str], str] = {}
        self._found: dict[tuple[int, int], Joined] = {}

    @property
    def found(self) -> list[Joined]:
        """Each once."""
        return list(self._found.values())

    def take(self, nodes: Mapping[str, Iterable[UnixSeen]]) -> None:
        """What there is now, by the node in whose namespace it is; always in the same order."""
        held = {seen.inode: (node, seen) for node, found in nodes.items() for seen in found}
        for node, seen in held.values():
            if seen.listens and seen.file:
                self._listeners[seen.file, seen.path] = node
        rank = {node: number for number, node in enumerate(nodes)}
        for node, seen in held.values():
            if not seen.peer:
                continue
            if seen.peer in held and held[seen.peer][0] != node:  # a datagram socket's
                other, there = held[seen.peer]
            else:
                other, there = self._listeners.get((seen.file, seen.path), node), seen
            if other != node:
                first, second = sorted((node, other), key=lambda name: rank[name])
                inodes = (min(seen.inode, seen.peer), max(seen.inode, seen.peer))
                self._found.setdefault(inodes, Joined(first, second, there.path, inodes))
