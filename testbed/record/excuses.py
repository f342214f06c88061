"""Why messages cannot be held against the service curve: what happened to them is no error of the emulation. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from testbed.record.completion import Excuse
from testbed.record.groups import Group
from testbed.record.history import LinkHistory
from testbed.record.spans import Spans
from testbed.record.thresholds import Thresholds
from testbed.record.ways import Ways
from testbed.scenario.node_events import NodeChange
from testbed.scenario.shape import End
from testbed.scenario.traffic import Flow

NEVER = Spans()


def excuses(
    history: LinkHistory,
    ways: Ways,
    flows: Iterable[Flow],
    changes: Iterable[NodeChange],
    until_s: float,
    limits: Thresholds,
    servers: int = 1,
    returns: Spans = NEVER,
) -> dict[str, Excuse]:
    """By name, in the order of asking: the first that holds is counted.

    ``servers``: there are several, whose messages share the workers' links, and the service curve knows of one.
    ``racks`` and ``traffic``: something else is on the way, which the service curve does not know of.
    ``nodes``: a node was held or started anew. ``returns``: a worker that had been away
    was sent the parameters meanwhile. ``outage``, ``drops``, ``random``, ``round_trip``: TCP sends again,
    waits for its timers or is only starting; that is what the emulated network does to it. ``stolen``: the host
    lost a processor to others, which is a measure of its own.
    """
    crossing = _crossing(ways, flows, until_s)
    held = _held(changes)

    def passed(group: Group) -> list[End]:
        return list(dict.fromkeys(end for route in group.routes for end in ways.way(*route)))

    def during(group: Group) -> tuple[float, float]:
        return group.start_s, group.last_s

    return {
        "servers": lambda _: servers > 1,
        "racks": lambda group: any(ways.racks_on(*route) for route in group.routes),
        "traffic": lambda group: any(
            end in crossing and crossing[end].touches(*during(group)) for end in passed(group)
        ),
        "nodes": lambda group: any(
            node in held and held[node].touches(*during(group))
            for route in group.routes
            for node in route
        ),
        "returns": lambda group: returns.touches(*during(group)),
        "outage": lambda group: ways.outage(passed(group), *during(group)),
        "drops": lambda group: history.dropped(passed(group), *during(group)),
        "random": lambda group: ways.random(passed(group)) or ways.overhead(passed(group)) is None,
        "round_trip": lambda group: any(
            ways.round_trip_s(*route)[1] > limits.completion_rtt_s for route in group.routes
        ),
        "stolen": lambda group: history.stolen(*during(group)),
    }


def _crossing(ways: Ways, flows: Iterable[Flow], until_s: float) -> Mapping[End, Spans]:
    """When which link direction carries other traffic; acknowledgements go the other way."""
    found: dict[End, list[tuple[float, float]]] = {}
    for flow in flows:
        bursts = list(flow.bursts_until(until_s))
        for end in [*ways.way(flow.source, flow.sink), *ways.way(flow.sink, flow.source)]:
            found.setdefault(end, []).extend(bursts)
    # What stood in a queue when a burst ended is still under way.
    return {end: Spans((a, b + 1.0) for a, b in bursts) for end, bursts in found.items()}


def _held(changes: Iterable[NodeChange]) -> Mapping[str, Spans]:
    """When which node was paused or dead."""
    since: dict[str, float] = {}
    found: dict[str, list[tuple[float, float]]] = {}
    for change in changes:
        if change.action in {"pause", "kill"}:
            since.setdefault(change.node, change.time_s)
        elif change.node in since:
            found.setdefault(change.node, []).append((since.pop(change.node), change.time_s))
    for node, from_s in since.items():
        found.setdefault(node, []).append((from_s, float("inf")))
    return {node: Spans(spans) for node, spans in found.items()}
