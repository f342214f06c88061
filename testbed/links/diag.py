"""TCP connections as the kernel describes them over ``NETLINK_SOCK_DIAG`` (include/uapi/linux/inet_diag.h).

Decoded here as the rest of our netlink is: pyroute2's ``DiagSocket`` announces that its calls will change.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from ipaddress import IPv6Address, ip_address
from typing import Any

from testbed.exchange.tcp_info import SocketCounters, counters_of
from testbed.links.netlink import attributes

BY_FAMILY = 20
"""Kind of a request for a list, and of every description."""
FAMILIES = (socket.AF_INET, socket.AF_INET6)
DESTROYED = (1, 3)
"""Multicast groups that tell of every TCP socket as it is destroyed: IPv4, IPv6."""

_REQUEST = struct.Struct("=BBBxI48x")
_MESSAGE = struct.Struct("=B3x2s2s16s16s4xQ20x")
_INFO = 2
_TIME_WAIT, _CLOSE, _LISTEN, _NEW_REQUEST = 6, 7, 10, 12
_CONNECTED = (
    0xFFF & ~sum(1 << state for state in (_TIME_WAIT, _CLOSE, _LISTEN)) & ~(1 << _NEW_REQUEST)
)


@dataclass(frozen=True, slots=True)
class SocketSeen:
    """One connection. ``cookie`` names a socket for as long as the machine runs; ``own`` and ``peer``:
    ``address:port``, ``[address]:port`` where the address is IPv6. ``ended_ns``: of the monotonic clock.
    The kernel counts the peer's end as one of ``bytes_received``."""

    cookie: int
    own: str
    peer: str
    bytes_sent: int
    bytes_received: int
    segments_out: int
    retransmitted: int
    bytes_retransmitted: int
    least_rtt_us: int | None
    ended_ns: int | None = None

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> SocketSeen:
        """Read one that has crossed a pipe as an object."""
        return cls(**fields)


def query(family: int) -> bytes:
    """The request for all connections of a family with their counters."""
    return _REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (_INFO - 1), _CONNECTED)


def decode(body: bytes, ended_ns: int | None = None) -> SocketSeen | None:
    """Read a description; None for a socket that never sent a segment. Raises OSError on an old kernel."""
    family, own_port, peer_port, own, peer, cookie = _MESSAGE.unpack_from(body)
    info = attributes(body[_MESSAGE.size :]).get(_INFO)
    if info is None:
        return None
    counters = counters_of(info)
    if not counters.segments_out:
        return None
    ends = _end(family, own, own_port), _end(family, peer, peer_port)
    return replace(_seen(cookie, *ends, counters), ended_ns=ended_ns)


def _seen(cookie: int, own: str, peer: str, counters: SocketCounters) -> SocketSeen:
    return SocketSeen(
        cookie=cookie,
        own=own,
        peer=peer,
        bytes_sent=counters.bytes_sent,
        bytes_received=counters.bytes_received,
        segments_out=counters.segments_out,
        retransmitted=counters.retransmits,
        bytes_retransmitted=counters.bytes_retransmitted,
        least_rtt_us=counters.least_rtt_us,
    )


def _end(family: int, address: bytes, port: bytes) -> str:
    length = 4 if family == socket.AF_INET else 16
    found = ip_address(address[:length])
    # A socket for both versions that speaks IPv4 has the address in IPv6's clothes.
    if isinstance(found, IPv6Address):
        found = found.ipv4_mapped or found
    number = int.from_bytes(port, "big")
    return f"{found}:{number}" if found.version == 4 else f"[{found}]:{number}"
