"""Who is where on a data network, told to everyone beforehand.

Nobody asks for addresses, so nobody's questions and answers are counted as traffic; and a bridge that knows
behind which port an address is never has to send a packet to every port.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace

from testbed.links import devices
from testbed.links.netlink import CREATE, REPLACE, Netlink, attribute, attributes

_NEW, _GET = 28, 30
_PERMANENT, _STATIC = 0x80, 0x40
_BRIDGE, _AT_MASTER = 7, 4
_DESTINATION, _LINK_ADDRESS = 1, 2
_HEAD = struct.Struct("=BxxxiHBB")


@dataclass(frozen=True, slots=True)
class Neighbour:
    """Whose IPv4 address is at which link-layer address."""

    address: str
    mac: str


@dataclass(frozen=True, slots=True)
class Resident:
    """A device on a data network and its IPv4 address; ``netns`` is a path (None: one's own)."""

    netns: str | None
    index: int
    address: str


def acquaint(residents: Sequence[Resident]) -> None:
    """Have every resident of a network know all the others for good. Raises OSError.

    A bridge among them keeps the link-layer address that it has, whatever is plugged into it later.
    """
    known = [_introduce(resident) for resident in residents]
    for resident, own in zip(residents, known, strict=True):
        with Netlink(resident.netns) as netlink:
            for other in known:
                if other != own:
                    add_neighbour(netlink, resident.index, other)


def bridge_of(port: Resident) -> Resident:
    """The bridge that a port is plugged into, with the address that is given for the port."""
    with Netlink(port.netns) as netlink:
        return replace(port, index=devices.device(netlink, port.index).master)


def _introduce(resident: Resident) -> Neighbour:
    with Netlink(resident.netns) as netlink:
        found = devices.device(netlink, resident.index)
        if found.kind == "bridge":
            devices.set_mac(netlink, resident.index, found.mac)
    return Neighbour(resident.address, found.mac)


def add_forwarding(netlink: Netlink, port: int, mac: str) -> None:
    """Have a bridge know what is behind one of its ports, as long as the port is plugged in."""
    head = _HEAD.pack(_BRIDGE, port, _STATIC, _AT_MASTER, 0)
    body = attribute(_LINK_ADDRESS, _packed(mac))
    netlink.request(_NEW, CREATE | REPLACE, head + body)


def add_neighbour(netlink: Netlink, index: int, neighbour: Neighbour) -> None:
    """Have a device know a neighbour for good. Raises KernelRefused."""
    head = _HEAD.pack(socket.AF_INET, index, _PERMANENT, 0, 0)
    body = attribute(_DESTINATION, socket.inet_aton(neighbour.address))
    body += attribute(_LINK_ADDRESS, _packed(neighbour.mac))
    netlink.request(_NEW, CREATE | REPLACE, head + body)


def permanent_neighbours(netlink: Netlink, index: int) -> set[Neighbour]:
    """What a device knows for good, read back."""
    found = set()
    for body in netlink.dump(_GET, _HEAD.pack(socket.AF_INET, 0, 0, 0, 0)):
        _, device, state, _, _ = _HEAD.unpack_from(body)
        held = attributes(body[_HEAD.size :])
        if device == index and state & _PERMANENT and _LINK_ADDRESS in held:
            address = socket.inet_ntoa(held[_DESTINATION])
            found.add(Neighbour(address, held[_LINK_ADDRESS].hex(":")))
    return found


def _packed(mac: str) -> bytes:
    return bytes.fromhex(mac.replace(":", ""))
