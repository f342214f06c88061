"""Bridges that ask nobody anything, so that nobody's questions and answers are counted as traffic.

Who is where on a data network is told to everyone beforehand; and a bridge that knows behind which
port an address is never has to send a packet to every port.

A multicast goes to the members of its group alone, as on a real switch with IGMP snooping: who
joins sends an IGMP report, and the bridge notes it per port. Linux goes by its notes only where
somebody asks for members from time to time. So the bridge sees one question before anybody is
there, and is told to believe for a week that there is somebody who asks.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from dataclasses import replace

from pyroute2.netlink import NLM_F_CREATE, NLM_F_REPLACE
from pyroute2.netlink.rtnl import RTM_NEWNEIGH
from pyroute2.netlink.rtnl.ndmsg import NTF_MASTER, NUD_NOARP, NUD_PERMANENT, ndmsg

from testbed.links.network import devices
from testbed.links.network.namespaces import inside
from testbed.links.network.wiring import Resident
from testbed.links.tc.netlink import NetlinkChannel, NetlinkMessage, tree

_AT_ONCE, _DAY = 10, 86_400 * 100
"""In hundredths of a second."""
_WEEK = 7 * _DAY
_ALL_HOSTS = "224.0.0.1"
_ALL_HOSTS_MAC = bytes.fromhex("01005e000001")


def acquaint(residents: Sequence[Resident]) -> None:
    """Have every resident of a network know all the others for good. Raises OSError.

    A bridge among them keeps the link-layer address that it has, whatever is plugged into it later.
    """
    known = [_introduce(resident) for resident in residents]
    for resident, own in zip(residents, known, strict=True):
        with NetlinkChannel(resident.netns) as channel:
            for other in known:
                if other != own:
                    add_neighbour(channel, resident.index, *other)


def bridge_of(port: Resident) -> Resident:
    """The bridge that a port is plugged into, with the address that is given for the port."""
    with NetlinkChannel(port.netns) as channel:
        return replace(port, index=devices.device(channel, port.index).master)


def _introduce(resident: Resident) -> tuple[str, str]:
    """A resident's IPv4 address and link-layer address."""
    with NetlinkChannel(resident.netns) as channel:
        device = devices.device(channel, resident.index)
        if device.kind == "bridge":
            devices.set_link(channel, resident.index, ADDRESS=device.mac)
    return resident.address, device.mac


def add_forwarding(channel: NetlinkChannel, port: int, mac: str) -> None:
    """Have a bridge know what is behind one of its ports, as long as the port is plugged in."""
    where = {"family": socket.AF_BRIDGE, "ifindex": port, "state": NUD_NOARP, "flags": NTF_MASTER}
    message = NetlinkMessage(ndmsg, tree(("NDA_LLADDR", mac), **where))
    channel.request(message, RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_REPLACE)


def add_neighbour(channel: NetlinkChannel, index: int, address: str, mac: str) -> None:
    """Have a device know a neighbour for good. Raises KernelRefused."""
    where = {"family": socket.AF_INET, "ifindex": index, "state": NUD_PERMANENT}
    message = NetlinkMessage(ndmsg, tree(("NDA_DST", address), ("NDA_LLADDR", mac), **where))
    channel.request(message, RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_REPLACE)


def prune(channel: NetlinkChannel, netns: str | None, bridge: int) -> None:
    """Have a bridge of a channel's namespace send multicasts to members only. Raises OSError where
    it cannot."""
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
    device = devices.device(channel, bridge)
    try:
        with inside(netns), socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as raw:
            raw.bind((device.name, 0))
            raw.send(_question(bytes.fromhex(device.mac.replace(":", ""))))
    except PermissionError:
        # Without CAP_NET_RAW, have the bridge ask each port once when it is plugged in.
        devices.set_bridge(
            channel,
            bridge,
            MCAST_QUERY_INTVL=_DAY,
            MCAST_STARTUP_QUERY_INTVL=_DAY,
            MCAST_QUERY_RESPONSE_INTVL=_AT_ONCE,
        )
        # Only now: it begins with a question, whose time to answer is that of the moment.
        devices.set_bridge(channel, bridge, MCAST_QUERIER=1)


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
