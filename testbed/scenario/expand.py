"""From groups to nodes and racks, from inherited settings to those of every link direction, and
which events concern which directions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, NamedTuple

from testbed.scenario.link_model import DEFAULT, LinkEnd, LinkEvent, NodeEvent, PartitionEvent
from testbed.scenario.link_state import LinkDirection
from testbed.scenario.model import NodeLimits, Scenario
from testbed.topology import NodeSpec, RackSpec, RequestedLimits

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
    limits = {group: _limits(settings.limits) for group, settings in scenario.nodes.items()}
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
                name, group, role, rank, first + rank, scenario.nodes[group].device, limits[group]
            )
            for rank, (name, group) in enumerate(members)
        ]
    return specs


def _limits(given: NodeLimits) -> RequestedLimits:
    memory, tmp = (None if size is None else int(size) for size in (given.memory, given.tmp))
    return RequestedLimits(given.processes, memory, tmp)


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


def end_settings(scenario: Scenario) -> dict[LinkDirection, LinkEnd]:
    """Every link direction with its settings: of nodes (default, group, node merged), then of
    racks.

    A node's ``up`` has ``at`` filled in (``nic`` unless the scenario says otherwise). Racks inherit
    nothing.
    """
    shared = {
        (group, direction): _merged(scenario, direction, group)
        for group in scenario.nodes
        for direction in DIRECTIONS
    }
    of_nodes = {
        LinkDirection(spec.name, direction): _merged(scenario, direction, spec.group, spec.name)
        if spec.name in scenario.links
        else shared[spec.group, direction]
        for spec in expand(scenario)
        for direction in DIRECTIONS
    }
    of_racks: dict[LinkDirection, LinkEnd] = {
        LinkDirection(name, direction): getattr(rack, direction)
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


ALL = "all"
"""The word by which an event means the links of all nodes. Racks are meant by their names only."""


class LinkGroup(NamedTuple):
    """Ends with the same settings that the same events concern, by number and in order of time."""

    settings: LinkEnd
    """Where an end is shaped is left out (``at`` is None)."""
    events: tuple[int, ...]
    ends: list[LinkDirection]


def alike(scenario: Scenario) -> list[LinkGroup]:
    """All link directions, those with the same settings and events together."""
    groups = groups_of_nodes(scenario)
    concerned, placeless = _Concerned(scenario), _Placeless()
    link_groups: dict[tuple[int, tuple[int, ...]], LinkGroup] = {}
    for end, settings in end_settings(scenario).items():
        own = placeless.of(settings)
        names = (end.link, groups[end.link], ALL) if end.link in groups else (end.link,)
        events = concerned.by(names, end.direction)
        link_groups.setdefault((id(own), events), LinkGroup(own, events, [])).ends.append(end)
    return list(link_groups.values())


def link_events(scenario: Scenario, numbers: Iterable[int]) -> list[LinkEvent]:
    """Events by their numbers; those of nodes are left out."""
    events = (scenario.events[i] for i in numbers)
    return [event for event in events if not isinstance(event, NodeEvent)]


class _Placeless:
    """Settings without their place: one object for all that are equal, found quickly."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[LinkEnd, LinkEnd]] = {}
        self._equal: dict[LinkEnd, LinkEnd] = {}

    def of(self, settings: LinkEnd) -> LinkEnd:
        """``settings`` with ``at`` left out."""
        if id(settings) not in self._known:  # kept there, so that no other gets its id
            plain = settings.model_copy(update={"at": None})
            self._known[id(settings)] = settings, self._equal.setdefault(plain, plain)
        return self._known[id(settings)][1]


class _Concerned:
    """The events of a scenario by the names they name."""

    def __init__(self, scenario: Scenario) -> None:
        self._by_time = [(i, event) for i, event in _links(scenario)]
        self._by_time.sort(key=lambda entry: entry[1].at)
        self._naming: dict[str, list[int]] = {}
        for order, (_, event) in enumerate(self._by_time):
            for name in dict.fromkeys(event.links):
                self._naming.setdefault(name, []).append(order)
        self._known: dict[tuple[str, tuple[str, ...]], tuple[int, ...]] = {}

    def by(self, names: tuple[str, ...], direction: str) -> tuple[int, ...]:
        """Numbers of the events that name one of ``names`` and concern ``direction``, by time."""
        named = tuple(name for name in names if name in self._naming)
        key = direction, named
        if key not in self._known:
            orders = sorted({order for name in named for order in self._naming[name]})
            events = (self._by_time[order] for order in orders)
            self._known[key] = tuple(i for i, event in events if _concerns(event, direction))
        return self._known[key]


def _links(scenario: Scenario) -> Iterator[tuple[int, LinkEvent]]:
    for i, event in enumerate(scenario.events):
        if not isinstance(event, NodeEvent):
            yield i, event


def _concerns(event: LinkEvent, direction: str) -> bool:
    return isinstance(event, PartitionEvent) or event.direction in {direction, "both"}
