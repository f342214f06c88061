"""Sockets as the kernel describes them over ``NETLINK_SOCK_DIAG``: TCP connections, and Unix sockets that join two nodes.

Of pyroute2 the message classes are used: its ``DiagSocket`` announces that its calls will change, and hears no errors.

A Unix socket that has a path in a folder that two nodes see leads past every network, and what goes through it nobody
counts. The kernel has both ends of a connection in the caller's namespace: whose the other one is, is known by the file
that it listened at.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address

from pyroute2.netlink.diag import (
    SKNLGRP_INET6_TCP_DESTROY,
    SKNLGRP_INET_TCP_DESTROY,
    SS_ALL,
    SS_CLOSE,
    SS_LISTEN,
    SS_TIME_WAIT,
    UDIAG_SHOW_NAME,
    UDIAG_SHOW_PEER,
    UDIAG_SHOW_VFS,
    inet_diag_msg,
    inet_diag_req,
    unix_diag_msg,
    unix_diag_req,
)

from testbed.exchange.tcp_info import counters_of
from testbed.links.messages import Message, Reader
from testbed.links.wire import Joined, SocketSeen

FAMILIES = (socket.AF_INET, socket.AF_INET6)
DESTROYED = (SKNLGRP_INET_TCP_DESTROY, SKNLGRP_INET6_TCP_DESTROY)
"""Multicast groups that tell of every TCP socket as it is destroyed: IPv4, IPv6."""

_INFO = 2
_CONNECTED = SS_ALL & ~sum(1 << state for state in (SS_TIME_WAIT, SS_CLOSE, SS_LISTEN))
_SEEN = Reader(
    inet_diag_msg,
    *(f"idiag_{name}" for name in ("family", "src", "sport", "dst", "dport", "cookie")),
    "INET_DIAG_INFO",
)

_SHOW = UDIAG_SHOW_NAME | UDIAG_SHOW_VFS | UDIAG_SHOW_PEER
_ALL_STATES = 0xFFFFFFFF
UNIX_QUERY = Message(
    unix_diag_req,
    {"sdiag_family": socket.AF_UNIX, "udiag_states": _ALL_STATES, "udiag_show": _SHOW},
)
"""The request for a namespace's Unix sockets."""
_UNIX_SEEN = Reader(
    unix_diag_msg,
    "udiag_state", "udiag_ino", "UNIX_DIAG_NAME", "UNIX_DIAG_VFS", "UNIX_DIAG_PEER.value",
)  # fmt: skip


def query(family: int) -> Message:
    """The request for all connections of a family with their counters."""
    fields = {"sdiag_family": family, "sdiag_protocol": socket.IPPROTO_TCP}
    return Message(
        inet_diag_req, {**fields, "idiag_ext": 1 << (_INFO - 1), "idiag_states": _CONNECTED}
    )


def decode(message: bytes, ended_ns: int | None = None) -> SocketSeen | None:
    """Read a description; None for a socket that never sent a segment. Raises OSError on an old kernel."""
    family, own, own_port, peer, peer_port, cookie, info = _SEEN(message)
    if info is None:
        return None
    counters = counters_of(info)
    if not counters.segments_out:
        return None
    return SocketSeen(
        cookie=cookie,
        own=_end(family, own, own_port),
        peer=_end(family, peer, peer_port),
        bytes_sent=counters.bytes_sent,
        bytes_received=counters.bytes_received,
        segments_out=counters.segments_out,
        retransmitted=counters.retransmits,
        bytes_retransmitted=counters.bytes_retransmitted,
        least_rtt_us=counters.least_rtt_us,
        ended_ns=ended_ns,
    )


def _end(family: int, address: bytes, port: bytes) -> str:
    length = 4 if family == socket.AF_INET else 16
    found = ip_address(address[:length])
    # A socket for both versions that speaks IPv4 has the address in IPv6's clothes.
    if isinstance(found, IPv6Address):
        found = found.ipv4_mapped or found
    number = int.from_bytes(port, "big")
    return f"{found}:{number}" if found.version == 4 else f"[{found}]:{number}"


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


def decode_unix(message: bytes) -> UnixSeen:
    """Read a description."""
    state, inode, name, file, peer = _UNIX_SEEN(message)
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
