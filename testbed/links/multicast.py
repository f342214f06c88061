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
from testbed.links.channel import Channel
from testbed.links.namespaces import inside

_AT_ONCE, _DAY = 10, 86_400 * 100
"""In hundredths of a second."""
_WEEK = 7 * _DAY
_ALL_HOSTS = "224.0.0.1"
_ALL_HOSTS_MAC = bytes.fromhex("01005e000001")


def prune(netns: str | None, bridge: int) -> None:
    """Have the bridge of that index send multicasts to members only. Raises OSError where it cannot."""
    with Channel(netns) as channel:
        devices.set_bridge(
            channel,
            bridge,
            MCAST_SNOOPING=1,
            MCAST_IGMP_VERSION=3,
            MCAST_QUERIER=0,
            MCAST_ROUTER=0,
            MCAST_MEMBERSHIP_INTVL=_WEEK,
            MCAST_QUERIER_INTVL=_WEEK,
        )
        found = devices.device(channel, bridge)
    try:
        with inside(netns), socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as raw:
            raw.bind((found.name, 0))
            raw.send(_question(bytes.fromhex(found.mac.replace(":", ""))))
    except PermissionError:
        _ask_itself(netns, bridge)


def _ask_itself(netns: str | None, bridge: int) -> None:
    """Where an agent may not send frames (without CAP_NET_RAW) the bridge asks: each port once when it is plugged in."""
    with Channel(netns) as channel:
        devices.set_bridge(
            channel,
            bridge,
            MCAST_QUERY_INTVL=_DAY,
            MCAST_STARTUP_QUERY_INTVL=_DAY,
            MCAST_QUERY_RESPONSE_INTVL=_AT_ONCE,
        )
        # Only now: it begins with a question, whose time to answer is that of the moment.
        devices.set_bridge(channel, bridge, MCAST_QUERIER=1)


def no_router(channel: Channel, port: int) -> None:
    """There is a switch behind this port, which needs no multicasts that nobody behind it has joined.

    Reports of who joins (IGMP version 3) go everywhere, so that it is known of every port.
    """
    devices.set_port(channel, port, MULTICAST_ROUTER=0)


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
