"""TCP connections as the kernel describes them over ``NETLINK_SOCK_DIAG``.

Of pyroute2 the message classes are used: its ``DiagSocket`` announces that its calls will change, and hears no errors.
"""

from __future__ import annotations

import socket
from ipaddress import IPv6Address, ip_address

from pyroute2.netlink.diag import (
    SKNLGRP_INET6_TCP_DESTROY,
    SKNLGRP_INET_TCP_DESTROY,
    SS_ALL,
    SS_CLOSE,
    SS_LISTEN,
    SS_TIME_WAIT,
    inet_diag_msg,
    inet_diag_req,
)

from testbed.exchange.tcp_info import counters_of
from testbed.links.messages import Message, Reader
from testbed.links.wire import SocketSeen

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
