"""From groups to nodes, and from inherited link settings to those of every link direction."""

from __future__ import annotations

from typing import Literal

from testbed.errors import InputError
from testbed.fabric.base import NodeSpec
from testbed.scenario.model import LinkEnd, Scenario
from testbed.scenario.shape import FRAME_BYTES, End
from testbed.units import Duration, Packets

DIRECTIONS: tuple[Literal["up"], Literal["down"]] = ("up", "down")
DEFAULT = "default"
"""The key under ``links`` that every node inherits from."""
LEAST_QUEUE_BYTES = 2 * FRAME_BYTES


def node_names(scenario: Scenario, group: str) -> list[str]:
    """Names of the nodes of ``group``: its own name, or name-0, name-1, … when it has a count."""
    count = scenario.nodes[group].count
    return [group] if count is None else [f"{group}-{i}" for i in range(count)]


def expand(scenario: Scenario) -> list[NodeSpec]:
    """All nodes: servers first (peer 0, rank 0), then workers in the order of the file, rank from 0."""
    specs: list[NodeSpec] = []
    for role in ("server", "worker"):
        members = [
            (name, group)
            for group, settings in scenario.nodes.items()
            if settings.role == role
            for name in node_names(scenario, group)
        ]
        first = len(specs)
        specs += [
            NodeSpec(name, group, role, rank, first + rank, scenario.nodes[group].device)
            for rank, (name, group) in enumerate(members)
        ]
    return specs


def end_settings(scenario: Scenario) -> dict[End, LinkEnd]:
    """Every link direction with its merged settings, field by field: default, group, node.

    ``up`` has ``at`` filled in (``nic`` unless the scenario says otherwise).
    """
    shared = {
        (group, direction): _merged(scenario, direction, group)
        for group in scenario.nodes
        for direction in DIRECTIONS
    }
    return {
        End(spec.name, direction): _merged(scenario, direction, spec.group, spec.name)
        if spec.name in scenario.links
        else shared[spec.group, direction]
        for spec in expand(scenario)
        for direction in DIRECTIONS
    }


def _merged(scenario: Scenario, direction: Literal["up", "down"], *keys: str) -> LinkEnd:
    merged = LinkEnd(at="nic") if direction == "up" else LinkEnd()
    for key in (DEFAULT, *keys):
        if key in scenario.links:
            layer: LinkEnd = getattr(scenario.links[key], direction)
            fields = {name: getattr(layer, name) for name in layer.model_fields_set}
            given = {name: value for name, value in fields.items() if value is not None}
            merged = merged.model_copy(update=given)
    return merged


def queue_bytes(end: End, settings: LinkEnd) -> int:
    """Bytes that the queue of ``end`` holds, fixed over a run: a time is meant at the base rate.

    Raises InputError when rate or queue is missing, or fewer than two full-size packets fit.
    """
    rate, queue = settings.rate, settings.queue
    if rate is None or queue is None:
        missing = "rate" if rate is None else "queue"
        hint = f"Give one under links, in `{DEFAULT}`, its group or the node"
        raise InputError(f"{end} has no {missing}", hint=hint)
    if isinstance(queue, Duration):
        held = round(rate * queue / 8)
    else:
        held = int(queue) * (FRAME_BYTES if isinstance(queue, Packets) else 1)
    if held < LEAST_QUEUE_BYTES:
        at_rate = f" at {rate}" if isinstance(queue, Duration) else ""
        raise InputError(
            f"the queue of {end}, {queue}{at_rate}, holds {held} B: fewer than two packets",
            hint=f"Write at least '2 packets' ({LEAST_QUEUE_BYTES} B)",
        )
    return held
