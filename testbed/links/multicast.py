"""Bridges that send a multicast to the members of its group alone, as a real switch with IGMP snooping does.

Members make themselves known when they join (IGMP reports), which a bridge notes per port. It goes by its notes
only while somebody asks for members from time to time; so it is told to do that itself, but a day apart: what
it and its members would say in between would be counted as traffic. What it has noted it keeps for a week, or until the
member leaves.
"""

from __future__ import annotations

import struct

from testbed.links import devices
from testbed.links.netlink import Netlink, attribute

_SNOOPING, _QUERIER = 23, 25
_MEMBERSHIP, _QUERY, _RESPONSE, _STARTUP = 31, 33, 34, 35
_ROUTER_PORT = 25
_CENTISECONDS = 100
_DAY = 86_400 * _CENTISECONDS
_WEEK = 7 * _DAY
_AT_ONCE = _CENTISECONDS // 10
"""How soon members answer; and a bridge that has just begun to ask sends everything everywhere for as long."""
_NEVER = b"\0"


def prune(netlink: Netlink, bridge: int) -> None:
    """Have a bridge send multicasts to members only. Raises KernelRefused where it cannot."""
    times = {_MEMBERSHIP: _WEEK, _QUERY: _DAY, _STARTUP: _DAY, _RESPONSE: _AT_ONCE}
    values = [attribute(kind, struct.pack("=Q", length)) for kind, length in times.items()]
    devices.set_bridge(netlink, bridge, attribute(_SNOOPING, b"\1"), *values)
    # Only now: it begins with a question, whose time to answer is that of the moment.
    devices.set_bridge(netlink, bridge, attribute(_QUERIER, b"\1"))


def no_router(netlink: Netlink, port: int) -> None:
    """There is a switch behind this port, whose questions shall not make it one that hears all multicasts."""
    devices.set_port(netlink, port, attribute(_ROUTER_PORT, _NEVER))


def always_router(netlink: Netlink, port: int) -> None:
    """Behind this port is the rest of the network: it is sent all multicasts, and hears who joins what."""
    devices.set_port(netlink, port, attribute(_ROUTER_PORT, b"\2"))
