"""What the names in a scenario mean, and what to say of those that mean nothing."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from testbed.scenario.expand import groups_of_nodes
from testbed.scenario.model import Scenario
from testbed.scenario.problems import Problem
from testbed.scenario.reach import ALL
from testbed.scenario.settings import DEFAULT

_COMPARED = 200
"""With more nodes than this only groups and racks are suggested: it would take too long."""


class Names:
    """The names of a scenario: ``groups`` has every node and group, each with its group."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.nodes = groups_of_nodes(scenario)
        self.groups = {**{group: group for group in scenario.nodes}, **self.nodes}
        self.racks = set(scenario.racks)

    def unknown(self, name: str, *special: str, racks: bool = False) -> str:
        """What to say of a name that is no node, group or (with ``racks``) rack."""
        near = get_close_matches(name[:64], self._candidates(racks), n=1)
        meant = f"did you mean {near[0]!r}? " if near else ""
        groups = [
            group if g.count is None else f"{group} ({group}-0 to {group}-{g.count - 1})"
            for group, g in self.scenario.nodes.items()
        ]
        known = [
            *(f"`{word}`" for word in special),
            *groups,
            *(sorted(self.racks) if racks else ()),
        ]
        noun = "node, group or rack" if racks and self.racks else "node or group"
        return f"no {noun} is called {name!r}: {meant}Known: {', '.join(known)}"

    def not_one_node(self, name: str) -> str | None:
        """What is wrong with ``name`` where one node is needed; None if nothing is."""
        if name in self.nodes:
            return None
        if name in self.groups:
            return f"{name!r} is a group of nodes: name one of them, such as {name}-0"
        return self.unknown(name)

    def _candidates(self, racks: bool) -> list[str]:
        few = len(self.nodes) <= _COMPARED
        return [*(self.groups if few else self.scenario.nodes), *(self.racks if racks else ())]


def check_names(scenario: Scenario) -> Iterator[Problem]:
    """Whether no two things have one name."""
    owners: dict[str, str] = {}
    for kind, names in (("nodes", list(scenario.nodes)), ("racks", list(scenario.racks))):
        for name in names:
            if name in {DEFAULT, ALL}:
                yield Problem((kind, name), f"{name!r} means something else: use another name")
    for node, group in _every_node(scenario):
        other = owners.setdefault(node, group)
        if other != group or (node != group and node in scenario.nodes):
            yield Problem(
                ("nodes", group), f"two things are called {node!r}: use other group names"
            )
    for rack in scenario.racks:
        if rack in owners or rack in scenario.nodes:
            yield Problem(("racks", rack), f"two things are called {rack!r}: use another name")


def _every_node(scenario: Scenario) -> Iterator[tuple[str, str]]:
    for group, settings in scenario.nodes.items():
        count = settings.count
        names = [group] if count is None else (f"{group}-{i}" for i in range(count))
        for name in names:
            yield name, group
