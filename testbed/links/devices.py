"""Network devices over routing netlink: what there is, what is made, and what is set on them."""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from testbed.links.netlink import (
    CREATE,
    EXCL,
    KernelRefused,
    Netlink,
    attribute,
    attributes,
    message,
    nested,
    number,
    text,
)

_NEW, _DELETE, _GET, _SET, _NEW_ADDRESS, _GET_NSID = 16, 17, 18, 19, 20, 90
_ADDRESS, _NAME, _LINK, _MASTER, _INFO, _ALIAS, _NETNS_FD = 1, 3, 5, 10, 18, 20, 28
_LINK_NETNSID, _GSO_SEGMENTS = 37, 40
_BRIDGE_FAMILY, _PORT_SETTINGS, _FLOOD = 7, 12, 9
_FAMILIES, _ADDRESS_MODE, _NO_ADDRESS = 26, 8, b"\1"
_INFO_KIND, _INFO_DATA, _VETH_PEER, _BRIDGE_SNOOPING = 1, 2, 1, 23
_NSID, _NSID_FD = 1, 3
_IFINFO = struct.Struct("=BxHiII")
_UP = 1
_GONE = {errno.ENODEV, errno.ENOENT}


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


def _ifinfo(index: int = 0, flags: int = 0, change: int = 0) -> bytes:
    return _IFINFO.pack(socket.AF_UNSPEC, 0, index, flags, change)


def _device(body: bytes) -> Device:
    _, _, index, _, _ = _IFINFO.unpack_from(body)
    held = attributes(body[16:])
    info = attributes(held.get(_INFO, b""))
    return Device(
        index=index,
        name=text(held[_NAME]),
        mac=held.get(_ADDRESS, b"").hex(":"),
        kind=text(info.get(_INFO_KIND, b"")),
        master=number(held.get(_MASTER, b"")),
        peer=number(held[_LINK]) if _LINK in held else None,
        peer_netns=number(held[_LINK_NETNSID]) if _LINK_NETNSID in held else None,
        alias=text(held.get(_ALIAS, b"")),
        segments=number(held.get(_GSO_SEGMENTS, b"")),
    )


def all_devices(netlink: Netlink) -> list[Device]:
    """Every device of the socket's namespace."""
    return [_device(body) for body in netlink.dump(_GET, _ifinfo())]


def device(netlink: Netlink, index: int) -> Device:
    """The device of that index. Raises KernelRefused where there is none."""
    return _device(netlink.ask(message(_GET, 0, _ifinfo(index)))[16:])


def find(netlink: Netlink, name: str) -> Device | None:
    """The device of that name, if there is one."""
    try:
        return _device(netlink.ask(message(_GET, 0, _ifinfo() + attribute(_NAME, name)))[16:])
    except KernelRefused as error:
        if error.errno in _GONE:
            return None
        raise


def _add(netlink: Netlink, name: str, kind: str, data: bytes = b"") -> Device:
    info = nested(_INFO, attribute(_INFO_KIND, kind), *([data] if data else []))
    netlink.request(_NEW, CREATE | EXCL, _ifinfo() + attribute(_NAME, name) + info)
    made = find(netlink, name)
    if made is None:
        raise KernelRefused(errno.ENODEV, f"device {name!r} vanished as it was made")
    return made


def add_bridge(netlink: Netlink, name: str) -> Device:
    """A bridge that asks nobody about multicast groups: it would disturb packet counts."""
    return _add(netlink, name, "bridge", nested(_INFO_DATA, attribute(_BRIDGE_SNOOPING, b"\0")))


def add_ifb(netlink: Netlink, name: str) -> Device:
    """An intermediate device, to which arriving traffic can be redirected to be queued."""
    return _add(netlink, name, "ifb")


def add_veth(netlink: Netlink, name: str, peer_name: str, peer_netns: str) -> Device:
    """A cable from here to ``peer_name`` in another namespace; returns this end."""
    with _opened(peer_netns) as descriptor:
        peer = _ifinfo() + attribute(_NAME, peer_name) + attribute(_NETNS_FD, descriptor)
        return _add(netlink, name, "veth", nested(_INFO_DATA, attribute(_VETH_PEER, peer)))


@contextmanager
def _opened(path: str) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def delete(netlink: Netlink, index: int) -> None:
    """Remove a device; nothing happens where it is gone already."""
    try:
        netlink.request(_DELETE, 0, _ifinfo(index))
    except KernelRefused as error:
        if error.errno not in _GONE:
            raise


def set_up(netlink: Netlink, index: int) -> None:
    """Switch a device on."""
    netlink.request(_SET, 0, _ifinfo(index, _UP, _UP))


def set_master(netlink: Netlink, index: int, bridge: int) -> None:
    """Plug a device into a bridge."""
    netlink.request(_SET, 0, _ifinfo(index) + attribute(_MASTER, bridge))


def move(netlink: Netlink, index: int, netns: str) -> None:
    """Move a device into another namespace. It arrives switched off, and its index may be another."""
    with _opened(netns) as descriptor:
        netlink.request(_SET, 0, _ifinfo(index) + attribute(_NETNS_FD, descriptor))


def set_bridge(netlink: Netlink, index: int, *values: bytes) -> None:
    """Change attributes of a bridge."""
    info = nested(_INFO, attribute(_INFO_KIND, "bridge"), nested(_INFO_DATA, *values))
    netlink.request(_NEW, 0, _ifinfo(index) + info)


def set_port(netlink: Netlink, index: int, *values: bytes) -> None:
    """Change attributes of a bridge's port."""
    head = _IFINFO.pack(_BRIDGE_FAMILY, 0, index, 0, 0)
    netlink.request(_SET, 0, head + nested(_PORT_SETTINGS, *values))


def flood_nothing(netlink: Netlink, index: int) -> None:
    """Have a bridge send to this port only what it knows to be behind it, but for broadcasts."""
    set_port(netlink, index, attribute(_FLOOD, b"\0"))


def silence(netlink: Netlink, index: int) -> None:
    """Give a device no IPv6 address of its own: it would be announced, and counted as traffic."""
    family = nested(socket.AF_INET6, attribute(_ADDRESS_MODE, _NO_ADDRESS))
    try:
        netlink.request(_SET, 0, _ifinfo(index) + nested(_FAMILIES, family))
    except KernelRefused as error:
        if error.errno not in (errno.EAFNOSUPPORT, errno.EINVAL):  # there is no IPv6 here
            raise


def set_alias(netlink: Netlink, index: int, alias: str) -> None:
    """Write on a device whose it is."""
    netlink.request(_SET, 0, _ifinfo(index) + attribute(_ALIAS, alias.encode()))


def set_mac(netlink: Netlink, index: int, mac: str) -> None:
    """Give a device a link-layer address, which it keeps."""
    packed = bytes.fromhex(mac.replace(":", ""))
    netlink.request(_SET, 0, _ifinfo(index) + attribute(_ADDRESS, packed))


def set_segments(netlink: Netlink, index: int, segments: int) -> None:
    """Set how many frames the stack may hand to a device as one bundle."""
    netlink.request(_SET, 0, _ifinfo(index) + attribute(_GSO_SEGMENTS, segments))


def add_address(netlink: Netlink, index: int, address: str, prefix_bits: int) -> None:
    """Give a device an IPv4 address."""
    packed = socket.inet_aton(address)
    head = struct.pack("=BBBBi", socket.AF_INET, prefix_bits, 0, 0, index)
    netlink.request(_NEW_ADDRESS, CREATE | EXCL, head + attribute(2, packed) + attribute(1, packed))


def namespace_number(netlink: Netlink, netns: str) -> int | None:
    """The number by which the socket's namespace knows another one; None if it has none."""
    with _opened(netns) as descriptor:
        body = struct.pack("=Bxxx", 0) + attribute(_NSID_FD, descriptor)
        answer = netlink.ask(message(_GET_NSID, 0, body))
    found = int.from_bytes(attributes(answer[20:])[_NSID], "little", signed=True)
    return None if found < 0 else found
