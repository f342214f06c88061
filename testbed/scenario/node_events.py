"""What happens to the processes of nodes: stopped, continued, killed, started again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from testbed.scenario.events import KillEvent, PauseEvent
from testbed.scenario.expand import groups_of_nodes, named_nodes
from testbed.scenario.model import Scenario

Action = Literal["pause", "resume", "kill", "restart"]


class NodeChange(NamedTuple):
    """At ``time_s`` (after t0) ``action`` happens to the processes of ``node``."""

    time_s: float
    node: str
    action: Action


def node_changes(scenario: Scenario) -> list[NodeChange]:
    """All of them, by time (wall time, if the scenario is), those at one time in the file's order."""
    return sorted(_changes(scenario), key=lambda change: change.time_s)


def _changes(scenario: Scenario) -> Iterator[NodeChange]:
    groups = groups_of_nodes(scenario)
    for event in scenario.events:
        if isinstance(event, (PauseEvent, KillEvent)):
            for node in named_nodes(scenario, event.nodes, groups):
                yield from _of_node(event, node)


def _of_node(event: PauseEvent | KillEvent, node: str) -> Iterator[NodeChange]:
    begin = float(event.at)
    if isinstance(event, PauseEvent):
        yield NodeChange(begin, node, "pause")
        yield NodeChange(begin + event.for_, node, "resume")
        return
    yield NodeChange(begin, node, "kill")
    if event.restart_after is not None:
        yield NodeChange(begin + event.restart_after, node, "restart")
