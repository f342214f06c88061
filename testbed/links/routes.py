"""Per-route TCP settings of a subnet: congestion control, least retransmission time-out, and ECN.

A route's setting holds for every socket that uses it, whoever opened it and on either side of accepting:
no privilege is needed in the processes that talk, and no other traffic of the machine is touched.
"""

from __future__ import annotations

import socket
from typing import Any, NamedTuple

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


class TcpSettings(NamedTuple):
    """Of a route; None leaves one to the host. ``ecn``: who connects asks for it, and who is asked agrees."""

    congestion: str | None
    rto_min_ms: int | None
    ecn: bool = False


class SubnetRoute(NamedTuple):
    """The route to a device's own subnet: what identifies it, and its TCP settings."""

    head: Fields
    identity: tuple[Attribute, ...]
    settings: TcpSettings


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
    settings = TcpSettings(
        metrics.get("RTAX_CC_ALGO"),
        metrics.get("RTAX_RTO_MIN"),
        bool(metrics.get("RTAX_FEATURES", 0) & _ECN),
    )
    head = {name: found[name] for name, _ in rtmsg.fields}
    identity = tuple((name, value) for name, value in held if value is not None)
    return SubnetRoute(head, identity, settings)


def set_route(channel: Channel, route: SubnetRoute, settings: TcpSettings) -> None:
    """Put TCP settings on a route in place; None takes a setting off it. Raises KernelRefused."""
    metrics: list[Attribute] = [("RTAX_FEATURES", _ECN)] if settings.ecn else []
    if settings.rto_min_ms is not None:
        metrics.append(("RTAX_RTO_MIN", settings.rto_min_ms))
    if settings.congestion is not None:
        metrics.append(("RTAX_CC_ALGO", settings.congestion))
    attributes = (*route.identity, *([nest("RTA_METRICS", *metrics)] if metrics else []))
    message = Message(rtmsg, tree(*attributes, **route.head))
    channel.request(message, RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE)


def shape_route(
    netns: str | None, index: int, congestion: str | None, rto_min_ms: int | None, ecn: bool = False
) -> list[SubnetRoute]:
    """Set the TCP settings of a device's subnets, and check them; returns the routes as they were.

    ``ecn`` holds whatever ``net.ipv4.tcp_ecn`` says.

    Raises MachineError when the kernel does not know the congestion control.
    """
    asked = TcpSettings(congestion, rto_min_ms, ecn)
    with Channel(netns) as channel:
        before = subnet_routes(channel, index)
        for route in before:
            try:
                set_route(channel, route, asked)
            except KernelRefused as error:
                raise unknown(congestion, netns, error) from error
        for route in subnet_routes(channel, index):
            if route.settings != asked:
                raise MachineError(
                    f"the route of device {index} should have {_words(asked)}, "
                    f"but the kernel holds {_words(route.settings)}"
                )
    return before


def _words(settings: TcpSettings) -> str:
    congestion, rto_min_ms, ecn = settings
    return f"congestion control {congestion}, rto_min {rto_min_ms} ms and ecn {ecn}"
