"""Per-route TCP settings of a subnet: congestion control, least retransmission time-out, and ECN.

A route's setting holds for every socket that uses it, whoever opened it and on either side of accepting:
no privilege is needed in the processes that talk, and no other traffic of the machine is touched.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Any

from pyroute2.netlink import NLM_F_CREATE, NLM_F_REPLACE
from pyroute2.netlink.rtnl import RTM_GETROUTE, RTM_NEWROUTE, rt_scope, rt_type
from pyroute2.netlink.rtnl.rtmsg import rtmsg

from testbed.errors import MachineError
from testbed.links.channel import Channel, KernelRefused
from testbed.links.messages import Attribute, Fields, Message, nest, tree
from testbed.links.namespaces import unknown

_ECN = 1
_MAIN = 254
_KEPT = ("RTA_DST", "RTA_OIF", "RTA_PRIORITY", "RTA_PREFSRC", "RTA_TABLE")


@dataclass(frozen=True, slots=True)
class SubnetRoute:
    """The route to a device's own subnet: what identifies it, and its TCP settings."""

    head: Fields
    identity: tuple[Attribute, ...]
    congestion: str | None
    rto_min_ms: int | None
    ecn: bool = False


def subnet_routes(channel: Channel, index: int) -> list[SubnetRoute]:
    """The routes to the subnets that a device is in."""
    listed = channel.dump(Message(rtmsg, tree(family=socket.AF_INET)), RTM_GETROUTE)
    wanted = (_MAIN, rt_scope["link"], rt_type["unicast"], index)
    return [
        _route(found)
        for found in listed
        if (found["table"], found["scope"], found["type"], found.get_attr("RTA_OIF")) == wanted
        and found["dst_len"]
    ]


def _route(found: Any) -> SubnetRoute:
    metrics = dict(found.get_attr("RTA_METRICS", {"attrs": ()})["attrs"])
    held = [(name, found.get_attr(name)) for name in _KEPT]
    return SubnetRoute(
        {name: found[name] for name, _ in rtmsg.fields},
        tuple((name, value) for name, value in held if value is not None),
        metrics.get("RTAX_CC_ALGO"),
        metrics.get("RTAX_RTO_MIN"),
        bool(metrics.get("RTAX_FEATURES", 0) & _ECN),
    )


def set_route(
    channel: Channel,
    route: SubnetRoute,
    congestion: str | None,
    rto_min_ms: int | None,
    ecn: bool = False,
) -> None:
    """Put TCP settings on a route in place; None takes a setting off it. Raises KernelRefused."""
    metrics: list[Attribute] = [("RTAX_FEATURES", _ECN)] if ecn else []
    if rto_min_ms is not None:
        metrics.append(("RTAX_RTO_MIN", rto_min_ms))
    if congestion is not None:
        metrics.append(("RTAX_CC_ALGO", congestion))
    attributes = (*route.identity, *([nest("RTA_METRICS", *metrics)] if metrics else []))
    message = Message(rtmsg, tree(*attributes, **route.head))
    channel.request(message, RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE)


def shape_route(
    netns: str | None,
    index: int,
    congestion: str | None,
    rto_min_ms: int | None,
    ecn: bool = False,
) -> list[SubnetRoute]:
    """Set the TCP settings of a device's subnets, and check them; returns the routes as they were.

    ``ecn``: who connects asks for it, and who is asked agrees, whatever ``net.ipv4.tcp_ecn`` says.

    Raises MachineError when the kernel does not know the congestion control.
    """
    with Channel(netns) as channel:
        before = subnet_routes(channel, index)
        for route in before:
            try:
                set_route(channel, route, congestion, rto_min_ms, ecn)
            except KernelRefused as error:
                raise unknown(congestion, netns, error) from error
        for route in subnet_routes(channel, index):
            if (route.congestion, route.rto_min_ms, route.ecn) != (congestion, rto_min_ms, ecn):
                raise MachineError(
                    f"the route of device {index} should have congestion control {congestion}, "
                    f"rto_min {rto_min_ms} ms and ecn {ecn}, but the kernel holds "
                    f"{route.congestion}, {route.rto_min_ms} ms and {route.ecn}"
                )
    return before
