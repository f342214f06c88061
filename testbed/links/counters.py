"""What the interfaces of a namespace have carried, and which addresses are theirs."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any

from pyroute2.netlink.rtnl import RTM_GETADDR, RTM_GETLINK
from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
from pyroute2.netlink.rtnl.ifinfmsg import IFF_LOOPBACK

from testbed.links.channel import Channel
from testbed.links.devices import link
from testbed.links.messages import Message, text, tree
from testbed.links.wire import InterfaceSeen


def interfaces(channel: Channel) -> list[InterfaceSeen]:
    """All of the channel's namespace. Raises KernelRefused."""
    addresses = _addresses(channel)
    return [_interface(found, addresses) for found in channel.dump(link(), RTM_GETLINK)]


def _interface(found: Any, addresses: Mapping[int, tuple[str, ...]]) -> InterfaceSeen:
    counts = found.get_attr("IFLA_STATS64")
    return InterfaceSeen(
        index=found["index"],
        name=text(found, "IFLA_IFNAME"),
        loopback=bool(found["flags"] & IFF_LOOPBACK),
        addresses=addresses.get(found["index"], ()),
        sent_bytes=counts["tx_bytes"],
        sent_packets=counts["tx_packets"],
        received_bytes=counts["rx_bytes"],
        received_packets=counts["rx_packets"],
    )


def _addresses(channel: Channel) -> dict[int, tuple[str, ...]]:
    """By the interface's index."""
    found: dict[int, tuple[str, ...]] = {}
    for one in channel.dump(Message(ifaddrmsg, tree()), RTM_GETADDR):
        own = str(ip_address(one.get_attr("IFA_LOCAL") or one.get_attr("IFA_ADDRESS")))
        found[one["index"]] = (*found.get(one["index"], ()), own)
    return found
