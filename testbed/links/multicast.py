"""Bridges that send a multicast to the members of its group alone, as a real switch with IGMP snooping does.

Who joins a group says so (an IGMP report), and the bridge notes it per port. Linux goes by its notes only where somebody
asks for members from time to time, since it might have missed some. Here nothing is missed: the bridge sees one question
before anybody is there, and is told to believe for a week that there is somebody who asks. So nobody does, and nothing
is said on links that would be counted as traffic.
"""

from __future__ import annotations

import socket
import struct

from testbed.links import devices
from testbed.links.namespaces import inside
from testbed.links.netlink import Netlink, attribute

_ROUTER, _SNOOPING, _QUERIER, _VERSION = 22, 23, 25, 43
_MEMBERSHIP, _OTHER_QUERIER, _QUERY, _RESPONSE, _STARTUP = 31, 32, 33, 34, 35
_ROUTER_PORT = 25
_AT_ONCE, _DAY = 10, 86_400 * 100
"""In hundredths of a second."""
_WEEK = 7 * _DAY
_NO, _YES, _THIRD = b"\0", b"\1", b"\3"
_ALL_HOSTS = "224.0.0.1"
_ALL_HOSTS_MAC = bytes.fromhex("01005e000001")


def prune(netns: str | None, bridge: int) -> None:
    """Have the bridge of that index send multicasts to members only. Raises OSError where it cannot."""
    with Netlink(netns) as netlink:
        long = struct.pack("=Q", _WEEK)
        devices.set_bridge(
            netlink,
            bridge,
            attribute(_SNOOPING, _YES),
            attribute(_VERSION, _THIRD),
            attribute(_QUERIER, _NO),
            attribute(_ROUTER, _NO),
            attribute(_MEMBERSHIP, long),
            attribute(_OTHER_QUERIER, long),
        )
        found = devices.device(netlink, bridge)
    try:
        with inside(netns), socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as raw:
            raw.bind((found.name, 0))
            raw.send(_question(bytes.fromhex(found.mac.replace(":", ""))))
    except PermissionError:
        _ask_itself(netns, bridge)


def _ask_itself(netns: str | None, bridge: int) -> None:
    """Where an agent may not send frames (without CAP_NET_RAW) the bridge asks: each port once when it is plugged in."""
    times = {_QUERY: _DAY, _STARTUP: _DAY, _RESPONSE: _AT_ONCE}
    with Netlink(netns) as netlink:
        values = [attribute(kind, struct.pack("=Q", length)) for kind, length in times.items()]
        devices.set_bridge(netlink, bridge, *values)
        # Only now: it begins with a question, whose time to answer is that of the moment.
        devices.set_bridge(netlink, bridge, attribute(_QUERIER, _YES))


def no_router(netlink: Netlink, port: int) -> None:
    """There is a switch behind this port, which needs no multicasts that nobody behind it has joined.

    Reports of who joins (IGMP version 3) go everywhere, so that it is known of every port.
    """
    devices.set_port(netlink, port, attribute(_ROUTER_PORT, _NO))


def _question(source: bytes) -> bytes:
    """A frame with a general query of IGMP version 2 (RFC 2236), to be answered within 0.1 s."""
    query = struct.pack("!BBHI", 0x11, 1, _checksum(struct.pack("!BBHI", 0x11, 1, 0, 0)), 0)
    begin = struct.pack("!BBHHHBB", 0x45, 0xC0, 20 + len(query), 0, 0, 1, socket.IPPROTO_IGMP)
    ends = bytes(4) + socket.inet_aton(_ALL_HOSTS)
    header = begin + struct.pack("!H", _checksum(begin + bytes(2) + ends)) + ends
    return _ALL_HOSTS_MAC + source + struct.pack("!H", 0x0800) + header + query


def _checksum(data: bytes) -> int:
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total & 0xFFFF) + (total >> 16)
    return ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF
