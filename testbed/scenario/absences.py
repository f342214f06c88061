"""When which workers are away."""

from __future__ import annotations

from testbed.errors import InputError
from testbed.fabric.base import NodeSpec
from testbed.scenario.events import AbsentEvent
from testbed.scenario.expand import groups_of_nodes, named_nodes
from testbed.scenario.load import Loaded
from testbed.scenario.model import Scenario

Spans = tuple[tuple[float, float], ...]


class Absences:
    """Of ``scenario``, in its own time, wall or model."""

    def __init__(self, scenario: Scenario) -> None:
        self._by_node: dict[str, list[tuple[float, float]]] = {}
        groups = groups_of_nodes(scenario)
        for event in scenario.events:
            if isinstance(event, AbsentEvent):
                span = float(event.at), float(event.at + event.for_)
                for node in named_nodes(scenario, event.nodes, groups):
                    self._by_node.setdefault(node, []).append(span)

    def of(self, spec: NodeSpec) -> Spans:
        """A worker's own; of a server, all of them."""
        if spec.role == "server":
            return tuple(sorted(span for spans in self._by_node.values() for span in spans))
        return tuple(sorted(self._by_node.get(spec.name, [])))


def nobody_leaves(loaded: Loaded) -> None:
    """Raises InputError for `absent` where nodes do not train by our roles, which alone are told of it."""
    for number, event in enumerate(loaded.scenario.events):
        if isinstance(event, AbsentEvent):
            raise InputError(
                f"events.{number}: only `testbed run` and `compare` tell nodes to be absent, and train on without them",
                where=str(loaded.source),
                hint="Leave it out, or use `pause`, `kill` or `outage`",
            )
