"""Where on its way along a cable a packet is queued, and where it is delayed: never at the same device.

Delay and loss come after the queue, on a device one hop on: so the queue holds what waits and nothing else,
its drops and the line's losses are counted apart, and a sender's TCP sees its packets leave when they do.
Where the queue is one hop on already (``up`` with ``at: network``), the line comes before it.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from testbed.errors import LinkError
from testbed.fabric.base import Cable, Interface
from testbed.links import devices
from testbed.links.netlink import Netlink
from testbed.links.plan import ALIAS, ifb_name
from testbed.links.root import Where
from testbed.scenario.shape import End

Spot = tuple[str | None, int]
"""A device: its namespace and its index there."""


class Hop(NamedTuple):
    """What leaves a device, or what arrives at it (through an intermediate device of ours)."""

    interface: Interface
    passing: Literal["leaving", "arriving"]

    @property
    def device(self) -> str:
        """The name of the device whose queueing discipline this is."""
        if self.passing == "leaving":
            return self.interface.name
        return ifb_name(self.interface.index)


class Hops(NamedTuple):
    """Both places of a link direction."""

    queue: Hop
    line: Hop


def hops(end: End, cable: Cable, at: str) -> Hops:
    """Where an end is shaped. ``at``: of ``up``, ``nic`` or ``network``."""
    if end.direction == "down":
        return Hops(Hop(cable.port, "leaving"), Hop(cable.nic, "arriving"))
    near, far = Hop(cable.nic, "leaving"), Hop(cable.port, "arriving")
    return Hops(near, far) if at == "nic" else Hops(far, near)


class Intermediates:
    """The intermediate devices of a session: made when first needed, deleted together."""

    def __init__(self) -> None:
        self._made: dict[Spot, Spot] = {}

    def where(self, end: End, hop: Hop) -> Where:
        """The device of a hop, made if it must be. Raises LinkError where its name is somebody else's."""
        netns, index, name = hop.interface.netns, hop.interface.index, hop.device
        if hop.passing == "leaving":
            return Where(netns, index, name)
        spot = (netns, index)
        if spot not in self._made:
            self._made[spot] = (netns, _make(end, netns, name).index)
        return Where(netns, self._made[spot][1], name, redirect=index)

    def spots(self) -> list[Spot]:
        """Every device that was made."""
        return list(self._made.values())

    def forget(self) -> None:
        """They are gone."""
        self._made.clear()


def _make(end: End, netns: str | None, name: str) -> devices.Device:
    with Netlink(netns) as netlink:
        made = devices.find(netlink, name)
        if made is not None and made.alias != ALIAS:
            raise LinkError(
                end.link,
                end.direction,
                asked=f"an intermediate device {name!r} of our own",
                held="somebody else's device of that name",
            )
        made = made or devices.add_ifb(netlink, name)
        devices.set_alias(netlink, made.index, ALIAS)
        devices.silence(netlink, made.index)
        devices.set_up(netlink, made.index)
        return made
