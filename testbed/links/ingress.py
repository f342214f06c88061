"""Queueing what arrives: everything that comes in at a device is redirected to an intermediate one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from pyroute2.netlink import NLM_F_CREATE, NLM_F_EXCL
from pyroute2.netlink.rtnl import (
    RTM_DELQDISC,
    RTM_GETTFILTER,
    RTM_NEWQDISC,
    RTM_NEWTFILTER,
    TC_H_INGRESS,
)
from pyroute2.netlink.rtnl.tcmsg.act_mirred import MIRRED_EACTIONS
from pyroute2.netlink.rtnl.tcmsg.common import tc_actions

from testbed.links.channel import Channel
from testbed.links.htb import traffic_control
from testbed.links.messages import Message, tree

_HANDLE = 0xFFFF0000
_EVERY_PROTOCOL, _PRIORITY = 0x0300, 10
_REDIRECT = MIRRED_EACTIONS["egress", "redirect"]
_ANY_PACKET = ("0x0/0x0+0",)
"""One key that matches whatever there is."""
_NEW = NLM_F_CREATE | NLM_F_EXCL


def redirect(channel: Channel, index: int, target: int) -> None:
    """Send all that arrives at device ``index`` through ``target``'s queue. Raises KernelRefused."""
    ingress = traffic_control(index, _HANDLE, TC_H_INGRESS, "ingress")
    channel.request(ingress, RTM_NEWQDISC, _NEW)
    channel.request(filter_to(index, target), RTM_NEWTFILTER, _NEW)


def filter_to(index: int, target: int) -> Message:
    """A filter that any packet passes, with the redirect as its action."""
    mirred = {"action": tc_actions["stolen"], "eaction": _REDIRECT, "ifindex": target}
    action = tree(
        ("TCA_ACT_KIND", "mirred"), ("TCA_ACT_OPTIONS", tree(("TCA_MIRRED_PARMS", mirred)))
    )
    options = tree(
        ("TCA_U32_SEL", {"keys": _ANY_PACKET}), ("TCA_U32_ACT", tree(("TCA_ACT_PRIO_1", action)))
    )
    message = traffic_control(index, 0, _HANDLE, "u32", options)
    message.fields["info"] = _PRIORITY << 16 | _EVERY_PROTOCOL
    return message


def undo_redirect(channel: Channel, index: int) -> None:
    """Let arriving traffic go its direct way again. Raises KernelRefused."""
    channel.request(traffic_control(index, _HANDLE, TC_H_INGRESS), RTM_DELQDISC)


class Passed(NamedTuple):
    """What a redirect has seen: packets that came, and those for which the other device had no room."""

    target: int
    packets: int
    refused: int


def passed(channel: Channel, index: int) -> list[Passed]:
    """The redirects of what arrives at device ``index``, with their counters. Raises KernelRefused."""
    filters = channel.dump(traffic_control(index, 0, _HANDLE), RTM_GETTFILTER)
    return [redirect for found in filters for redirect in _redirects(found)]


def _redirects(found: Any) -> Iterator[Passed]:
    actions = found.get_nested("TCA_OPTIONS", "TCA_U32_ACT")
    for _, action in actions["attrs"] if actions is not None else ():
        parameters = action.get_nested("TCA_ACT_OPTIONS", "TCA_MIRRED_PARMS")
        if action.get_attr("TCA_ACT_KIND") == "mirred" and parameters["eaction"] == _REDIRECT:
            statistics = action.get_attr("TCA_ACT_STATS")
            packets = statistics.get_attr("TCA_STATS_PKT64")
            if packets is None:
                packets = statistics.get_attr("TCA_STATS_BASIC")["packets"]
            refused = statistics.get_attr("TCA_STATS_QUEUE")["overlimits"]
            yield Passed(parameters["ifindex"], packets, refused)
