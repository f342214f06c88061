"""Unix sockets that join processes of two nodes, as the kernel describes them.

One that has a path in a folder that both see leads past every network. What goes through it nobody counts. The kernel has both ends of
a connection in the caller's namespace: whose the other one is, is known by the file that it listened at.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pyroute2.netlink.diag import (
    SS_LISTEN,
    UDIAG_SHOW_NAME,
    UDIAG_SHOW_PEER,
    UDIAG_SHOW_VFS,
    unix_diag_msg,
    unix_diag_req,
)

from testbed.links.messages import Message, Reader
from testbed.links.wire import Joined

_SHOW = UDIAG_SHOW_NAME | UDIAG_SHOW_VFS | UDIAG_SHOW_PEER
_ALL_STATES = 0xFFFFFFFF
QUERY = Message(
    unix_diag_req,
    {"sdiag_family": socket.AF_UNIX, "udiag_states": _ALL_STATES, "udiag_show": _SHOW},
)
"""The request for a namespace's Unix sockets."""
_SEEN = Reader(
    unix_diag_msg,
    "udiag_state", "udiag_ino", "UNIX_DIAG_NAME", "UNIX_DIAG_VFS", "UNIX_DIAG_PEER.value",
)  # fmt: skip


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


def decode(message: bytes) -> UnixSeen:
    """Read a description."""
    state, inode, name, file, peer = _SEEN(message)
    path = (name or b"").rstrip(b"\0").replace(b"\0", b"@").decode(errors="replace")
    return UnixSeen(inode, peer or 0, path, file or b"", state == SS_LISTEN)


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
