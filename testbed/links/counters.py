"""What the interfaces of a namespace have carried, and which addresses are theirs."""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import Any

from testbed.links.netlink import Netlink, attributes, text

_GET_LINK, _GET_ADDRESS = 18, 22
_NAME, _STATISTICS = 3, 23
_LOCAL, _ADDRESS = 2, 1
_IFINFO, _IFADDR = struct.Struct("=BxHiII"), struct.Struct("=BBBBI")
_COUNTS = struct.Struct("=QQQQ")
"""How ``struct rtnl_link_stats64`` begins: packets received and sent, bytes received and sent."""
_LOOPBACK = 0x8


@dataclass(frozen=True, slots=True)
class InterfaceSeen:
    """One interface; totals since it was made, headers counted."""

    index: int
    name: str
    loopback: bool
    addresses: tuple[str, ...]
    sent_bytes: int
    sent_packets: int
    received_bytes: int
    received_packets: int

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> InterfaceSeen:
        """Read one that has crossed a pipe as an object."""
        return cls(**{**fields, "addresses": tuple(fields["addresses"])})

    def since(self, before: InterfaceSeen) -> InterfaceSeen:
        """The same, counted from ``before`` on."""
        return replace(
            self,
            sent_bytes=self.sent_bytes - before.sent_bytes,
            sent_packets=self.sent_packets - before.sent_packets,
            received_bytes=self.received_bytes - before.received_bytes,
            received_packets=self.received_packets - before.received_packets,
        )


def interfaces(netlink: Netlink) -> list[InterfaceSeen]:
    """All of the socket's namespace. Raises KernelRefused."""
    addresses = _addresses(netlink)
    empty = _IFINFO.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
    return [_interface(body, addresses) for body in netlink.dump(_GET_LINK, empty)]


def _interface(body: bytes, addresses: Mapping[int, tuple[str, ...]]) -> InterfaceSeen:
    _, _, index, flags, _ = _IFINFO.unpack_from(body)
    held = attributes(body[_IFINFO.size :])
    received, sent, received_bytes, sent_bytes = _COUNTS.unpack_from(held[_STATISTICS])
    return InterfaceSeen(
        index=index,
        name=text(held[_NAME]),
        loopback=bool(flags & _LOOPBACK),
        addresses=addresses.get(index, ()),
        sent_bytes=sent_bytes,
        sent_packets=sent,
        received_bytes=received_bytes,
        received_packets=received,
    )


def _addresses(netlink: Netlink) -> dict[int, tuple[str, ...]]:
    """By the interface's index."""
    found: dict[int, tuple[str, ...]] = {}
    for body in netlink.dump(_GET_ADDRESS, _IFADDR.pack(socket.AF_UNSPEC, 0, 0, 0, 0)):
        index = _IFADDR.unpack_from(body)[4]
        held = attributes(body[_IFADDR.size :])
        own = str(ip_address(held.get(_LOCAL, held[_ADDRESS])))
        found[index] = (*found.get(index, ()), own)
    return found
