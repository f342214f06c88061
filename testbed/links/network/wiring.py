"""The plan of a run's network: nodes as namespaces, their addresses, and racks; and where links are
shaped in it.

Where a packet is queued and where it is delayed is never the same device. Delay and loss come after
the queue, on a device one hop on: so the queue holds what waits and nothing else, its drops and the
line's losses are counted apart, and a sender's TCP sees its packets leave when they do. Where the
queue is one hop on already (``up`` with ``at: network``), the line comes before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from testbed.links.tc.parameters import ifb_name
from testbed.scenario.link_state import LinkDirection
from testbed.topology import Cable, Interface

NIC, CONTROL_NIC, SWITCH = "data", "control", "switch"


@dataclass(frozen=True, slots=True)
class Resident:
    """A device on a data network and its IPv4 address; ``netns`` is a path (None: one's own)."""

    netns: str | None
    index: int
    address: str


@dataclass(frozen=True, slots=True)
class NodeWires:
    """One node: the name of its namespace, its addresses, and the other ends of its two cables."""

    name: str
    netns: str
    data_address: str
    control_address: str
    port: str
    control_port: str


@dataclass(frozen=True, slots=True)
class TopologyPlan:
    """All names and addresses of one run. ``alias`` is written on what is made for its racks."""

    alias: str
    switch_netns: str
    switch_address: str
    control_netns: str
    control_bridge: str
    control_host: str
    prefix_bits: int
    nodes: tuple[NodeWires, ...]


@dataclass(frozen=True, slots=True)
class RackWires:
    """One rack: its bridge, both ends of its cable, and its members' cables to the core."""

    name: str
    bridge: str
    uplink: str
    port: str
    members: dict[str, Cable]


@dataclass(frozen=True, slots=True)
class RackPlan:
    """All racks of one run. ``own``: the namespace ``netns`` is made for them."""

    alias: str
    netns: str
    own: bool
    racks: tuple[RackWires, ...]


@dataclass(frozen=True, slots=True)
class Racks:
    """The racks that were made: cables by rack, and each member's port by name."""

    cables: dict[str, Cable]
    ports: dict[str, Interface]


DeviceKey = tuple[str | None, int]
"""A device: its namespace and its index there."""


class QueuePoint(NamedTuple):
    """Place of a queue: what leaves a device, or arrives at it (through one of ours)."""

    interface: Interface
    passing: Literal["leaving", "arriving"]

    @property
    def device(self) -> str:
        """The name of the device whose queueing discipline this is."""
        if self.passing == "leaving":
            return self.interface.name
        return ifb_name(self.interface.index)


class Placement(NamedTuple):
    """Both places of a link direction."""

    queue: QueuePoint
    line: QueuePoint


def hops(end: LinkDirection, cable: Cable, at: str) -> Placement:
    """Where an end is shaped. ``at``: of ``up``, ``nic`` or ``network``."""
    if end.direction == "down":
        return Placement(QueuePoint(cable.port, "leaving"), QueuePoint(cable.nic, "arriving"))
    near, far = QueuePoint(cable.nic, "leaving"), QueuePoint(cable.port, "arriving")
    return Placement(near, far) if at == "nic" else Placement(far, near)
