"""Where on its way along a cable a packet is queued, and where it is delayed: never at the same device.

Delay and loss come after the queue, on a device one hop on: so the queue holds what waits and nothing else,
its drops and the line's losses are counted apart, and a sender's TCP sees its packets leave when they do.
Where the queue is one hop on already (``up`` with ``at: network``), the line comes before it.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from testbed.fabric.base import Cable, Interface
from testbed.links.plan import ifb_name
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
