"""Network devices: what there is, what is made, what is set on them, and what they have carried."""

from __future__ import annotations

import errno
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

from pyroute2.netlink import NLM_F_CREATE, NLM_F_EXCL
from pyroute2.netlink.rtnl import (
    RTM_DELLINK,
    RTM_GETADDR,
    RTM_GETLINK,
    RTM_GETNSID,
    RTM_NEWADDR,
    RTM_NEWLINK,
    RTM_SETLINK,
)
from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
from pyroute2.netlink.rtnl.ifinfmsg import IFF_LOOPBACK, IFF_UP, ifinfmsg
from pyroute2.netlink.rtnl.nsidmsg import nsidmsg

from testbed.errors import ExperimentError
from testbed.fabric.base import Interface
from testbed.links.channel import Channel, tolerating
from testbed.links.messages import Attribute, Message, nest, text, tree
from testbed.links.namespaces import OWN, opened
from testbed.links.wire import InterfaceSeen

_NEW = NLM_F_CREATE | NLM_F_EXCL
_BRIDGE_FAMILY = 7
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


def link(*attributes: Attribute, **fields: int) -> Message:
    """A message about a device."""
    return Message(ifinfmsg, tree(*attributes, **fields))


def _device(found: Any) -> Device:
    info = found.get_attr("IFLA_LINKINFO")
    return Device(
        index=found["index"],
        name=text(found, "IFLA_IFNAME"),
        mac=found.get_attr("IFLA_ADDRESS") or "",
        kind=text(info, "IFLA_INFO_KIND") if info is not None else "",
        master=found.get_attr("IFLA_MASTER") or 0,
        peer=found.get_attr("IFLA_LINK"),
        peer_netns=found.get_attr("IFLA_LINK_NETNSID"),
        alias=text(found, "IFLA_IFALIAS"),
        segments=found.get_attr("IFLA_GSO_MAX_SEGS") or 0,
    )


def all_devices(channel: Channel) -> list[Device]:
    """Every device of the channel's namespace."""
    return [_device(found) for found in channel.dump(link(), RTM_GETLINK)]


def device(channel: Channel, index: int) -> Device:
    """The device of that index. Raises KernelRefused where there is none."""
    return _device(channel.get(link(index=index), RTM_GETLINK))


def named(channel: Channel, name: str) -> Device:
    """The device of that name. Raises KernelRefused where there is none."""
    return _device(channel.get(link(("IFLA_IFNAME", name)), RTM_GETLINK))


def find(channel: Channel, name: str) -> Device | None:
    """The device of that name, if there is one."""
    with tolerating(*_GONE):
        return named(channel, name)
    return None


def _add(channel: Channel, name: str, kind: str, *data: Attribute) -> Device:
    channel.request(link(("IFLA_IFNAME", name), _info(kind, *data)), RTM_NEWLINK, _NEW)
    return named(channel, name)


def _info(kind: str, *data: Attribute) -> Attribute:
    more = [nest("IFLA_INFO_DATA", *data)] if data else []
    return nest("IFLA_LINKINFO", ("IFLA_INFO_KIND", kind), *more)


def add_bridge(channel: Channel, name: str) -> Device:
    """A bridge that asks nobody about multicast groups: it would disturb packet counts."""
    return _add(channel, name, "bridge", ("IFLA_BR_MCAST_SNOOPING", 0))


def add_ifb(channel: Channel, name: str) -> Device:
    """An intermediate device, to which arriving traffic can be redirected to be queued."""
    return _add(channel, name, "ifb")


def add_veth(channel: Channel, name: str, peer_name: str, peer_netns: str) -> Device:
    """A cable from here to ``peer_name`` in another namespace; returns this end."""
    with opened(peer_netns) as descriptor:
        peer = tree(("IFLA_IFNAME", peer_name), ("IFLA_NET_NS_FD", descriptor))
        return _add(channel, name, "veth", ("VETH_INFO_PEER", peer))


def delete(channel: Channel, index: int) -> None:
    """Remove a device; nothing happens where it is gone already."""
    with tolerating(*_GONE):
        channel.request(link(index=index), RTM_DELLINK)


def set_up(channel: Channel, index: int) -> None:
    """Switch a device on."""
    channel.request(link(index=index, flags=IFF_UP, change=IFF_UP), RTM_SETLINK)


def set_link(channel: Channel, index: int, **values: int | str) -> None:
    """Change attributes of a device, by the ends of their names.

    ``MASTER``: the bridge that it is plugged into; ``IFALIAS``: whose it is; ``ADDRESS``: a link-layer address, which it
    keeps; ``GSO_MAX_SEGS``: how many frames the stack may hand to it as one bundle.
    """
    attributes = ((f"IFLA_{name}", value) for name, value in values.items())
    channel.request(link(*attributes, index=index), RTM_SETLINK)


def move(channel: Channel, index: int, netns: str) -> None:
    """Move a device into another namespace. It arrives switched off, and its index may be another."""
    with opened(netns) as descriptor:
        set_link(channel, index, NET_NS_FD=descriptor)


def set_bridge(channel: Channel, index: int, **values: int) -> None:
    """Change attributes of a bridge, by the ends of their names: ``MCAST_SNOOPING``."""
    info = _info("bridge", *((f"IFLA_BR_{name}", value) for name, value in values.items()))
    channel.request(link(info, index=index), RTM_NEWLINK)


def set_port(channel: Channel, index: int, **values: int) -> None:
    """Change attributes of a bridge's port, by the ends of their names.

    ``UNICAST_FLOOD=0``: the bridge sends there only what it knows to be behind it, but for broadcasts;
    ``MULTICAST_ROUTER=0``: a switch is behind it, which needs no multicasts that nobody behind it has joined.
    """
    attributes = ((f"IFLA_BRPORT_{name}", value) for name, value in values.items())
    settings = nest("IFLA_PROTINFO", *attributes)
    channel.request(link(settings, family=_BRIDGE_FAMILY, index=index), RTM_SETLINK)


def silence(channel: Channel, index: int) -> None:
    """Give a device no IPv6 address of its own: it would be announced, and counted as traffic."""
    family = nest("AF_INET6", ("IFLA_INET6_ADDR_GEN_MODE", _NO_ADDRESS))
    with tolerating(errno.EAFNOSUPPORT, errno.EINVAL):  # there is no IPv6 here
        channel.request(link(nest("IFLA_AF_SPEC", family), index=index), RTM_SETLINK)


def add_address(channel: Channel, index: int, address: str, prefix_bits: int) -> None:
    """Give a device an IPv4 address."""
    attributes = (("IFA_LOCAL", address), ("IFA_ADDRESS", address))
    fields = tree(*attributes, family=socket.AF_INET, prefixlen=prefix_bits, index=index)
    channel.request(Message(ifaddrmsg, fields), RTM_NEWADDR, _NEW)


def _namespace_number(channel: Channel, netns: str) -> int | None:
    """The number by which the channel's namespace knows another one; None if it has none."""
    with opened(netns) as descriptor:
        asked = Message(nsidmsg, tree(("NETNSA_FD", descriptor)))
        found = channel.get(asked, RTM_GETNSID).get_attr("NETNSA_NSID")
    return None if found == _NO_NUMBER else found


def locate(netns: str, mac: str) -> tuple[Interface, Interface]:
    """Find a container's interface by numbers, never by names: the device of that address inside ``netns``, and its peer in the agent's own namespace.

    Both ends must name each other: the peer by index and by the number of the other's namespace.
    Raises ExperimentError where there is no such cable.
    """
    try:
        with Channel(netns) as inner, Channel() as own:
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


def _by_mac(found: list[Device], mac: str, netns: str) -> Device:
    for one in found:
        if one.mac == mac and one.peer is not None:
            return one
    known = ", ".join(f"{one.name} {one.mac}" for one in found)
    raise ExperimentError(f"no interface in {netns} has the address {mac}; there are: {known}")


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
