"""From groups to nodes and racks, and from inherited link settings to those of every link direction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from testbed.fabric.base import NodeSpec, RackSpec
from testbed.fabric.limits import Asked
from testbed.scenario.link import LinkEnd
from testbed.scenario.model import NodeLimits, Scenario
from testbed.scenario.settings import DEFAULT
from testbed.scenario.shape import End

DIRECTIONS: tuple[Literal["up"], Literal["down"]] = ("up", "down")


def node_names(scenario: Scenario, group: str) -> list[str]:
    """Names of the nodes of ``group``: its own name, or name-0, name-1, … when it has a count."""
    count = scenario.nodes[group].count
    return [group] if count is None else [f"{group}-{i}" for i in range(count)]


def groups_of_nodes(scenario: Scenario) -> dict[str, str]:
    """Every node, in the order of the file, with its group."""
    return {node: group for group in scenario.nodes for node in node_names(scenario, group)}


def expand(scenario: Scenario) -> list[NodeSpec]:
    """All nodes: servers first (peer 0), then workers, then hosts, in the order of the file.

    A rank counts within a role; peer numbers go on from role to role.
    """
    specs: list[NodeSpec] = []
    asked = {group: _limits(settings.limits) for group, settings in scenario.nodes.items()}
    roles: tuple[Literal["server", "worker", "host"], ...] = ("server", "worker", "host")
    for role in roles:
        members = [
            (name, group)
            for group, settings in scenario.nodes.items()
            if settings.role == role
            for name in node_names(scenario, group)
        ]
        first = len(specs)
        specs += [
            NodeSpec(
                name, group, role, rank, first + rank, scenario.nodes[group].device, asked[group]
            )
            for rank, (name, group) in enumerate(members)
        ]
    return specs


def _limits(given: NodeLimits) -> Asked:
    memory, tmp = (None if size is None else int(size) for size in (given.memory, given.tmp))
    return Asked(given.processes, memory, tmp)


def racks(scenario: Scenario) -> list[RackSpec]:
    """All racks with the nodes in them. A member that is no node or group is left out."""
    groups = groups_of_nodes(scenario)
    return [
        RackSpec(name, tuple(named_nodes(scenario, rack.members, groups)))
        for name, rack in scenario.racks.items()
    ]


def named_nodes(scenario: Scenario, names: tuple[str, ...], groups: Mapping[str, str]) -> list[str]:
    """The nodes that ``names`` of nodes and groups mean, each once, in the order of the names.

    ``groups``: those of all nodes, as ``groups_of_nodes`` gives them.
    """
    nodes = (
        node
        for name in names
        for node in (node_names(scenario, name) if name in scenario.nodes else [name])
        if node in groups
    )
    return list(dict.fromkeys(nodes))


def end_settings(scenario: Scenario) -> dict[End, LinkEnd]:
    """Every link direction with its settings: of nodes (default, group, node merged), then of racks.

    A node's ``up`` has ``at`` filled in (``nic`` unless the scenario says otherwise). Racks inherit
    nothing.
    """
    shared = {
        (group, direction): _merged(scenario, direction, group)
        for group in scenario.nodes
        for direction in DIRECTIONS
    }
    of_nodes = {
        End(spec.name, direction): _merged(scenario, direction, spec.group, spec.name)
        if spec.name in scenario.links
        else shared[spec.group, direction]
        for spec in expand(scenario)
        for direction in DIRECTIONS
    }
    of_racks: dict[End, LinkEnd] = {
        End(name, direction): getattr(rack, direction)
        for name, rack in scenario.racks.items()
        for direction in DIRECTIONS
    }
    return {**of_nodes, **of_racks}


def _merged(scenario: Scenario, direction: Literal["up", "down"], *keys: str) -> LinkEnd:
    merged = LinkEnd(at="nic") if direction == "up" else LinkEnd()
    for key in (DEFAULT, *keys):
        if key in scenario.links:
            layer: LinkEnd = getattr(scenario.links[key], direction)
            fields = {name: getattr(layer, name) for name in LinkEnd.model_fields}
            given = {name: value for name, value in fields.items() if value is not None}
            merged = merged.model_copy(update=given)
    return merged
