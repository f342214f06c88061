"""The plan of a run's network: nodes as namespaces, their addresses, and racks. The agent is told, and makes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from testbed.fabric.base import Cable, Interface, Place, RackSpec

if TYPE_CHECKING:
    from testbed.links.client import Agent

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
    """All names and addresses of one run. ``alias`` is written on what is made in the host's namespace."""

    alias: str
    switch_netns: str
    switch_address: str
    control_bridge: str
    control_host: str
    prefix_bits: int
    nodes: tuple[NodeWires, ...]

    def to_json(self) -> dict[str, Any]:
        """As a plain object."""
        return asdict(self)

    @classmethod
    def from_json(cls, given: dict[str, Any]) -> TopologyPlan:
        """Read what ``to_json`` wrote."""
        nodes = tuple(NodeWires(**node) for node in given["nodes"])
        return cls(**{**given, "nodes": nodes})


@dataclass(frozen=True, slots=True)
class RackWires:
    """One rack: its bridge and its end of the cable, the core's end, and its members' cables to the core."""

    name: str
    bridge: str
    uplink: str
    port: str
    members: dict[str, Cable]


@dataclass(frozen=True, slots=True)
class RackPlan:
    """All racks of one run. ``own``: the namespace ``netns`` is made for them, and removed with them."""

    alias: str
    netns: str
    own: bool
    racks: tuple[RackWires, ...]

    def to_json(self) -> dict[str, Any]:
        """As a plain object."""
        return asdict(self)

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> RackPlan:
        """Read what ``to_json`` wrote."""
        racks = [{**rack, "members": _cables(rack["members"])} for rack in given["racks"]]
        return cls(**{**given, "racks": tuple(RackWires(**rack) for rack in racks)})


@dataclass(frozen=True, slots=True)
class Racks:
    """What was made: each rack's cable by its name, and where each member's port is now."""

    cables: dict[str, Cable]
    ports: dict[str, Interface]

    def to_json(self) -> dict[str, Any]:
        """As a plain object."""
        return asdict(self)

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> Racks:
        """Read what ``to_json`` wrote."""
        return cls(_cables(given["cables"]), _interfaces(given["ports"]))


def plan_racks(
    tag: str,
    alias: str,
    specs: Sequence[RackSpec],
    places: Mapping[str, Place],
    switch: str | None = None,
) -> RackPlan:
    """Names for the racks of a run, each with its ``tag`` and within 15 characters.

    ``switch``: the name of the namespace that the core is in; None: the host's, so that the racks get one.
    """
    racks = tuple(
        RackWires(
            name=spec.name,
            bridge=f"rack{number}",
            uplink=f"uplink{number}",
            port=f"nw{tag}-r{number}",
            members={member: places[member].cable for member in spec.members},
        )
        for number, spec in enumerate(specs)
    )
    return RackPlan(alias, switch or f"nw-{tag}-racks", switch is None, racks)


def plan_core(tag: str, alias: str, places: Mapping[str, Place]) -> RackPlan:
    """One rack that all nodes are in: the core for other racks, in a namespace made for it.

    For multicasts: the host's firewall lets none of them through a bridge that it looks at.
    """
    members = {name: place.cable for name, place in places.items()}
    wires = RackWires("core", "core", "coreup", f"nw{tag}-core", members)
    return RackPlan(alias, f"nw-{tag}-racks", True, (wires,))


def install(
    agent: Agent, plan: RackPlan, places: Mapping[str, Place]
) -> tuple[dict[str, Cable], dict[str, Place]]:
    """Have the agent make the racks; returns their cables, and the nodes with their ports where they are now."""
    if not plan.racks:
        return {}, dict(places)
    made = agent.racks(plan)
    moved = {
        name: replace(place, port=made.ports.get(name, place.port))
        for name, place in places.items()
    }
    return made.cables, moved


def _cables(given: Mapping[str, Any]) -> dict[str, Cable]:
    return {name: Cable(**_interfaces(cable)) for name, cable in given.items()}


def _interfaces(given: Mapping[str, Any]) -> dict[str, Interface]:
    return {name: Interface(**interface) for name, interface in given.items()}
