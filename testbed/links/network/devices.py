"""Network devices (veth, bridge, IFB): made, set, counted; and a subnet's TCP settings by route.

A route's setting holds for every socket that uses it, whoever opened it and on either side of
accepting: no privilege is needed in the processes that talk, and no other traffic of the machine is
touched.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, NamedTuple

from pyroute2.netlink import NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE
from pyroute2.netlink.rtnl import (
    RTM_DELLINK,
    RTM_GETADDR,
    RTM_GETLINK,
    RTM_GETNSID,
    RTM_GETROUTE,
    RTM_NEWADDR,
    RTM_NEWLINK,
    RTM_NEWROUTE,
    RTM_SETLINK,
    rt_scope,
    rt_type,
)
from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
from pyroute2.netlink.rtnl.ifinfmsg import IFF_LOOPBACK, IFF_UP, ifinfmsg
from pyroute2.netlink.rtnl.nsidmsg import nsidmsg
from pyroute2.netlink.rtnl.rtmsg import RTNH_F_DEAD, RTNH_F_LINKDOWN, rtmsg

from testbed.errors import ExperimentError, MachineError
from testbed.links.agent.protocol import InterfaceSeen
from testbed.links.network.namespaces import OWN, opened, unknown
from testbed.links.tc.netlink import (
    Attribute,
    Fields,
    KernelRefused,
    NetlinkChannel,
    NetlinkMessage,
    nest,
    text,
    tolerating,
    tree,
)
from testbed.topology import Interface

_NEW = NLM_F_CREATE | NLM_F_EXCL
_NO_ADDRESS = 1
"""IPv6's way of choosing an address for a device (``IN6_ADDR_GEN_MODE_NONE``)."""
_GONE = {errno.ENODEV, errno.ENOENT}
_NO_NUMBER = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Device:
    """A device as its own namespace shows it; ``peer`` counts in the namespace ``peer_netns``."""

    index: int
    name: str
    mac: str
    kind: str
    master: int
    peer: int | None
    peer_netns: int | None
    alias: str
    segments: int


def link(*attributes: Attribute, **fields: int) -> NetlinkMessage:
    """A message about a device."""
    return NetlinkMessage(ifinfmsg, tree(*attributes, **fields))


def _device(message: Any) -> Device:
    info = message.get_attr("IFLA_LINKINFO")
    return Device(
        index=message["index"],
        name=text(message, "IFLA_IFNAME"),
        mac=message.get_attr("IFLA_ADDRESS") or "",
        kind=text(info, "IFLA_INFO_KIND") if info is not None else "",
        master=message.get_attr("IFLA_MASTER") or 0,
        peer=message.get_attr("IFLA_LINK"),
        peer_netns=message.get_attr("IFLA_LINK_NETNSID"),
        alias=text(message, "IFLA_IFALIAS"),
        segments=message.get_attr("IFLA_GSO_MAX_SEGS") or 0,
    )


def all_devices(channel: NetlinkChannel) -> list[Device]:
    """Every device of the channel's namespace."""
    return [_device(message) for message in channel.dump(link(), RTM_GETLINK)]


def device(channel: NetlinkChannel, index: int) -> Device:
    """The device of that index. Raises KernelRefused where there is none."""
    return _device(channel.get(link(index=index), RTM_GETLINK))


def named(channel: NetlinkChannel, name: str) -> Device:
    """The device of that name. Raises KernelRefused where there is none."""
    return _device(channel.get(link(("IFLA_IFNAME", name)), RTM_GETLINK))


def find(channel: NetlinkChannel, name: str) -> Device | None:
    """The device of that name, if there is one."""
    with tolerating(*_GONE):
        return named(channel, name)
    return None


def _add(channel: NetlinkChannel, name: str, kind: str, *data: Attribute) -> Device:
    channel.request(link(("IFLA_IFNAME", name), _info(kind, *data)), RTM_NEWLINK, _NEW)
    return named(channel, name)


def _info(kind: str, *data: Attribute) -> Attribute:
    more = [nest("IFLA_INFO_DATA", *data)] if data else []
    return nest("IFLA_LINKINFO", ("IFLA_INFO_KIND", kind), *more)


def add_bridge(channel: NetlinkChannel, name: str) -> Device:
    """A bridge that asks nobody about multicast groups: it would disturb packet counts."""
    return _add(channel, name, "bridge", ("IFLA_BR_MCAST_SNOOPING", 0))


def add_ifb(channel: NetlinkChannel, name: str) -> Device:
    """An intermediate device, to which arriving traffic can be redirected to be queued."""
    return _add(channel, name, "ifb")


def add_veth(channel: NetlinkChannel, name: str, peer_name: str, peer_netns: str) -> Device:
    """A cable from here to ``peer_name`` in another namespace; returns this end."""
    with opened(peer_netns) as descriptor:
        peer = tree(("IFLA_IFNAME", peer_name), ("IFLA_NET_NS_FD", descriptor))
        return _add(channel, name, "veth", ("VETH_INFO_PEER", peer))


def delete(channel: NetlinkChannel, index: int) -> None:
    """Remove a device; nothing happens where it is gone already."""
    with tolerating(*_GONE):
        channel.request(link(index=index), RTM_DELLINK)


def set_up(channel: NetlinkChannel, index: int) -> None:
    """Switch a device on."""
    channel.request(link(index=index, flags=IFF_UP, change=IFF_UP), RTM_SETLINK)


def set_link(channel: NetlinkChannel, index: int, **values: int | str) -> None:
    """Change attributes of a device, by the ends of their names.

    ``MASTER``: the bridge that it is plugged into; ``IFALIAS``: whose it is; ``ADDRESS``: a
    link-layer address, which it keeps; ``GSO_MAX_SEGS``: how many frames the stack may hand to it
    as one bundle.
    """
    attributes = ((f"IFLA_{name}", value) for name, value in values.items())
    channel.request(link(*attributes, index=index), RTM_SETLINK)


def move(channel: NetlinkChannel, index: int, netns: str) -> None:
    """Move a device into another namespace: switched off, perhaps with another index."""
    with opened(netns) as descriptor:
        set_link(channel, index, NET_NS_FD=descriptor)


def set_bridge(channel: NetlinkChannel, index: int, **values: int) -> None:
    """Change attributes of a bridge, by the ends of their names: ``MCAST_SNOOPING``."""
    info = _info("bridge", *((f"IFLA_BR_{name}", value) for name, value in values.items()))
    channel.request(link(info, index=index), RTM_NEWLINK)


def set_port(channel: NetlinkChannel, index: int, **values: int) -> None:
    """Change attributes of a bridge's port, by the ends of their names.

    ``UNICAST_FLOOD=0``: the bridge sends there only what it knows to be behind it, but for
    broadcasts; ``MULTICAST_ROUTER=0``: a switch is behind it, which needs no multicasts that nobody
    behind it has joined.
    """
    attributes = ((f"IFLA_BRPORT_{name}", value) for name, value in values.items())
    settings = nest("IFLA_PROTINFO", *attributes)
    channel.request(link(settings, family=socket.AF_BRIDGE, index=index), RTM_SETLINK)


def silence(channel: NetlinkChannel, index: int) -> None:
    """Give a device no IPv6 address of its own: it would be announced, and counted as traffic."""
    family = nest("AF_INET6", ("IFLA_INET6_ADDR_GEN_MODE", _NO_ADDRESS))
    with tolerating(errno.EAFNOSUPPORT, errno.EINVAL):  # there is no IPv6 here
        channel.request(link(nest("IFLA_AF_SPEC", family), index=index), RTM_SETLINK)


def add_address(channel: NetlinkChannel, index: int, address: str, prefix_bits: int) -> None:
    """Give a device an IPv4 address."""
    attributes = (("IFA_LOCAL", address), ("IFA_ADDRESS", address))
    fields = tree(*attributes, family=socket.AF_INET, prefixlen=prefix_bits, index=index)
    channel.request(NetlinkMessage(ifaddrmsg, fields), RTM_NEWADDR, _NEW)


def _namespace_number(channel: NetlinkChannel, netns: str) -> int | None:
    """The number by which the channel's namespace knows another one; None if it has none."""
    with opened(netns) as descriptor:
        request = NetlinkMessage(nsidmsg, tree(("NETNSA_FD", descriptor)))
        number = channel.get(request, RTM_GETNSID).get_attr("NETNSA_NSID")
    return None if number == _NO_NUMBER else number


def locate(netns: str, mac: str) -> tuple[Interface, Interface]:
    """Find a container's interface by numbers, never by names: the device of that address inside
    ``netns``, and its peer in the agent's own namespace.

    Both ends must name each other: the peer by index and by the number of the other's namespace.
    Raises ExperimentError where there is no such cable.
    """
    try:
        with NetlinkChannel(netns) as inner, NetlinkChannel() as own:
            nic = _by_mac(all_devices(inner), mac.lower(), netns)
            far = _namespace_number(inner, OWN)
            peer = device(own, nic.peer or 0)
            near = _namespace_number(own, netns)
    except OSError as error:
        raise ExperimentError(f"cannot look into {netns}: {error.strerror}") from error
    ends = (nic.peer_netns, peer.peer, peer.peer_netns)
    if None in (near, far) or ends != (far, nic.index, near):
        raise ExperimentError(
            f"{nic.name!r} in {netns} is no cable into this namespace: its other end would be "
            f"{peer.name!r} by index, but that one says otherwise"
        )
    return Interface(netns, nic.index, nic.name), Interface(None, peer.index, peer.name)


def _by_mac(listed: list[Device], mac: str, netns: str) -> Device:
    for each in listed:
        if each.mac == mac and each.peer is not None:
            return each
    known = ", ".join(f"{each.name} {each.mac}" for each in listed)
    raise ExperimentError(f"no interface in {netns} has the address {mac}; there are: {known}")


def interfaces(channel: NetlinkChannel) -> list[InterfaceSeen]:
    """All of the channel's namespace. Raises KernelRefused."""
    addresses = _addresses(channel)
    return [_interface(message, addresses) for message in channel.dump(link(), RTM_GETLINK)]


def _interface(message: Any, addresses: Mapping[int, tuple[str, ...]]) -> InterfaceSeen:
    counts = message.get_attr("IFLA_STATS64")
    return InterfaceSeen(
        index=message["index"],
        name=text(message, "IFLA_IFNAME"),
        loopback=bool(message["flags"] & IFF_LOOPBACK),
        addresses=addresses.get(message["index"], ()),
        sent_bytes=counts["tx_bytes"],
        sent_packets=counts["tx_packets"],
        received_bytes=counts["rx_bytes"],
        received_packets=counts["rx_packets"],
    )


def _addresses(channel: NetlinkChannel) -> dict[int, tuple[str, ...]]:
    """Return the addresses of interfaces, keyed by the interface's index."""
    by_index: dict[int, tuple[str, ...]] = {}
    for message in channel.dump(NetlinkMessage(ifaddrmsg, tree()), RTM_GETADDR):
        own = str(ip_address(message.get_attr("IFA_LOCAL") or message.get_attr("IFA_ADDRESS")))
        by_index[message["index"]] = (*by_index.get(message["index"], ()), own)
    return by_index


_ECN = 1
_STATE = RTNH_F_DEAD | RTNH_F_LINKDOWN
"""Flags that tell of a device, and that no route may be given."""
_MAIN = 254
_KEPT = ("RTA_DST", "RTA_OIF", "RTA_PRIORITY", "RTA_PREFSRC", "RTA_TABLE")


class TcpSettings(NamedTuple):
    """TCP settings of a route; None: the host's. ``ecn``: asked for and agreed to."""

    congestion: str | None
    rto_min_ms: int | None
    ecn: bool = False


class SubnetRoute(NamedTuple):
    """The route to a device's own subnet: what identifies it, and its TCP settings."""

    head: Fields
    identity: tuple[Attribute, ...]
    settings: TcpSettings


def subnet_routes(channel: NetlinkChannel, index: int) -> list[SubnetRoute]:
    """The routes to the subnets that a device is in."""
    listed = channel.dump(NetlinkMessage(rtmsg, tree(family=socket.AF_INET)), RTM_GETROUTE)
    wanted = (_MAIN, rt_scope["link"], rt_type["unicast"], index)
    return [
        _route(message)
        for message in listed
        if (message["table"], message["scope"], message["type"], message.get_attr("RTA_OIF"))
        == wanted
        and message["dst_len"]
    ]


def _route(message: Any) -> SubnetRoute:
    metrics = dict(message.get_attr("RTA_METRICS", {"attrs": ()})["attrs"])
    attributes = [(name, message.get_attr(name)) for name in _KEPT]
    settings = TcpSettings(
        metrics.get("RTAX_CC_ALGO"),
        metrics.get("RTAX_RTO_MIN"),
        bool(metrics.get("RTAX_FEATURES", 0) & _ECN),
    )
    head = {name: message[name] for name, _ in rtmsg.fields}
    head["flags"] &= ~_STATE
    identity = tuple((name, value) for name, value in attributes if value is not None)
    return SubnetRoute(head, identity, settings)


def set_route(channel: NetlinkChannel, route: SubnetRoute, settings: TcpSettings) -> None:
    """Put TCP settings on a route in place; None takes a setting off it. Raises KernelRefused."""
    metrics: list[Attribute] = [("RTAX_FEATURES", _ECN)] if settings.ecn else []
    if settings.rto_min_ms is not None:
        metrics.append(("RTAX_RTO_MIN", settings.rto_min_ms))
    if settings.congestion is not None:
        metrics.append(("RTAX_CC_ALGO", settings.congestion))
    attributes = (*route.identity, *([nest("RTA_METRICS", *metrics)] if metrics else []))
    message = NetlinkMessage(rtmsg, tree(*attributes, **route.head))
    channel.request(message, RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE)


def shape_route(netns: str | None, index: int, requested: TcpSettings) -> list[SubnetRoute]:
    """Set the TCP settings of a device's subnets, and check them; returns the routes as they were.

    ``ecn`` holds whatever ``net.ipv4.tcp_ecn`` says.
    Raises MachineError when the kernel does not know the congestion control, KernelRefused for what
    it refuses besides.
    """
    with NetlinkChannel(netns) as channel:
        before = subnet_routes(channel, index)
        for route in before:
            try:
                set_route(channel, route, requested)
            except KernelRefused as error:
                if not requested.congestion or error.errno not in (errno.ENOENT, errno.EINVAL):
                    raise
                raise unknown(requested.congestion, netns, error) from error
        for route in subnet_routes(channel, index):
            if route.settings != requested:
                raise MachineError(
                    f"the route of device {index} should have {_words(requested)}, "
                    f"but the kernel holds {_words(route.settings)}"
                )
    return before


def _words(settings: TcpSettings) -> str:
    congestion, rto_min_ms, ecn = settings
    return f"congestion control {congestion}, rto_min {rto_min_ms} ms and ecn {ecn}"
