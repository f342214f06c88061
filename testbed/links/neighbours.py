"""Who is where on a data network, told to everyone beforehand.

Nobody asks for addresses, so nobody's questions and answers are counted as traffic; and a bridge that knows
behind which port an address is never has to send a packet to every port.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyroute2.netlink import NLM_F_CREATE, NLM_F_REPLACE
from pyroute2.netlink.rtnl import RTM_GETNEIGH, RTM_NEWNEIGH
from pyroute2.netlink.rtnl.ndmsg import NTF_MASTER, NUD_NOARP, NUD_PERMANENT, ndmsg

from testbed.links import devices
from testbed.links.channel import Channel
from testbed.links.messages import Message, tree
from testbed.links.wiring import Resident

_BRIDGE_FAMILY = 7


@dataclass(frozen=True, slots=True)
class Neighbour:
    """Whose IPv4 address is at which link-layer address."""

    address: str
    mac: str


def acquaint(residents: Sequence[Resident]) -> None:
    """Have every resident of a network know all the others for good. Raises OSError.

    A bridge among them keeps the link-layer address that it has, whatever is plugged into it later.
    """
    known = [_introduce(resident) for resident in residents]
    for resident, own in zip(residents, known, strict=True):
        with Channel(resident.netns) as channel:
            for other in known:
                if other != own:
                    add_neighbour(channel, resident.index, other)


def bridge_of(port: Resident) -> Resident:
    """The bridge that a port is plugged into, with the address that is given for the port."""
    with Channel(port.netns) as channel:
        return replace(port, index=devices.device(channel, port.index).master)


def _introduce(resident: Resident) -> Neighbour:
    with Channel(resident.netns) as channel:
        found = devices.device(channel, resident.index)
        if found.kind == "bridge":
            devices.set_mac(channel, resident.index, found.mac)
    return Neighbour(resident.address, found.mac)


def add_forwarding(channel: Channel, port: int, mac: str) -> None:
    """Have a bridge know what is behind one of its ports, as long as the port is plugged in."""
    where = {"family": _BRIDGE_FAMILY, "ifindex": port, "state": NUD_NOARP, "flags": NTF_MASTER}
    _put(channel, Message(ndmsg, tree(("NDA_LLADDR", mac), **where)))


def add_neighbour(channel: Channel, index: int, neighbour: Neighbour) -> None:
    """Have a device know a neighbour for good. Raises KernelRefused."""
    where = {"family": socket.AF_INET, "ifindex": index, "state": NUD_PERMANENT}
    who = (("NDA_DST", neighbour.address), ("NDA_LLADDR", neighbour.mac))
    _put(channel, Message(ndmsg, tree(*who, **where)))


def _put(channel: Channel, message: Message) -> None:
    channel.request(message, RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_REPLACE)


def permanent_neighbours(channel: Channel, index: int) -> set[Neighbour]:
    """What a device knows for good, read back."""
    listed = channel.dump(Message(ndmsg, tree(family=socket.AF_INET)), RTM_GETNEIGH)
    return {
        Neighbour(found.get_attr("NDA_DST"), mac)
        for found in listed
        if found["ifindex"] == index and found["state"] & NUD_PERMANENT
        if (mac := found.get_attr("NDA_LLADDR"))
    }
