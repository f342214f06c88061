"""Whether nodes, racks, flows, and what happens to nodes fit together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import inf

from testbed.scenario.events import AbsentEvent, KillEvent, NodeEvent, PauseEvent
from testbed.scenario.expand import DIRECTIONS, named_nodes
from testbed.scenario.model import Scenario, Traffic
from testbed.scenario.names import Names
from testbed.scenario.problems import Problem
from testbed.units import Duration

LEAST_BURST = Duration(0.01)
"""Shorter times of sending are refused: starting a flow takes about as long."""
MAX_HAPPENING = 1_000_000
"""Events of nodes, each times the nodes it names."""


def check_nodes(scenario: Scenario) -> Iterator[Problem]:
    """Roles: servers, workers, and hosts that compute nothing."""
    servers = [name for name, group in scenario.nodes.items() if group.role == "server"]
    many = sum(scenario.nodes[name].count or 1 for name in servers)
    if many > 1 and scenario.train.stop.accuracy is not None:
        yield Problem(
            ("train", "stop", "accuracy"),
            f"none of {many} servers sees all parameters: stop at `steps` or `epochs`",
        )
    if all(group.role != "worker" for group in scenario.nodes.values()):
        yield Problem(("nodes",), "no worker: add `worker: {role: worker, count: 4}`")
    for name, group in scenario.nodes.items():
        if group.role == "host" and group.device != "cpu":
            yield Problem(("nodes", name, "device"), "a host computes nothing: leave `device` out")


def check_racks(scenario: Scenario, names: Names) -> Iterator[Problem]:
    """Members exist, and are in one rack only."""
    racks: dict[str, str] = {}
    for name, rack in scenario.racks.items():
        for direction in DIRECTIONS:
            if getattr(rack, direction).at is not None:
                yield Problem(
                    ("racks", name, direction, "at"),
                    "a rack's link is between two switches: leave `at` out",
                )
        for i, member in enumerate(rack.members):
            if member not in names.groups:
                yield Problem(("racks", name, "members", i), names.unknown(member))
                continue
            for node in named_nodes(scenario, (member,), names.nodes):
                if node in racks:
                    where = (
                        "this rack twice" if racks[node] == name else f"rack {racks[node]!r} too"
                    )
                    message = f"{node!r} is in {where}: a node is in one rack"
                    yield Problem(("racks", name, "members", i), message)
                    break
                racks[node] = name


def check_node_events(scenario: Scenario, names: Names) -> Iterator[Problem]:
    """Pauses are short enough, only hosts come back, and nothing happens to what is not running."""
    busy: dict[str, tuple[float, str]] = {}
    happened = 0
    for i, event in enumerate(scenario.events):
        if not isinstance(event, NodeEvent):
            continue
        if isinstance(event, PauseEvent) and event.for_ >= scenario.peer_timeout:
            yield Problem(
                ("events", i, "for"),
                f"{event.for_} is not shorter than peer_timeout, {scenario.peer_timeout}: the "
                "others would give the node up",
            )
        nodes = named_nodes(scenario, event.nodes, names.nodes)
        happened += len(nodes)
        if happened > MAX_HAPPENING:
            yield Problem(("events", i, "nodes"), "too much happens to nodes: use fewer events")
            return
        if isinstance(event, KillEvent) and event.restart_after is not None:
            yield from _restart(scenario, i, nodes, names)
        if isinstance(event, AbsentEvent):
            yield from _absent(scenario, i, nodes, names)
        for node in nodes:
            until, state = busy.get(node, (-1.0, ""))
            if event.at < until:
                yield Problem(("events", i, "nodes"), f"{node!r} is {state} at that time")
                break
            busy[node] = _state(event)


def _state(event: NodeEvent) -> tuple[float, str]:
    """Until when a node does not run, and why."""
    if isinstance(event, PauseEvent):
        return event.at + event.for_, "paused"
    if isinstance(event, AbsentEvent):
        return event.at + event.for_, "away"
    return (inf if event.restart_after is None else event.at + event.restart_after), "dead"


def _absent(scenario: Scenario, i: int, nodes: list[str], names: Names) -> Iterator[Problem]:
    other = next((n for n in nodes if scenario.nodes[names.groups[n]].role != "worker"), None)
    if other is not None:
        yield Problem(
            ("events", i, "nodes"), f"{other!r} is no worker: only workers leave and return"
        )
    ever = {n for one in scenario.events if isinstance(one, AbsentEvent)
            for n in named_nodes(scenario, one.nodes, names.nodes)}  # fmt: skip
    workers = {n for n, group in names.nodes.items() if scenario.nodes[group].role == "worker"}
    if workers <= ever:
        yield Problem(
            ("events", i, "nodes"), "nobody would be left: at least one worker never leaves"
        )


def _restart(scenario: Scenario, i: int, nodes: list[str], names: Names) -> Iterator[Problem]:
    for node in nodes:
        role = scenario.nodes[names.groups[node]].role
        if role != "host":
            yield Problem(
                ("events", i, "restart_after"),
                f"{node!r} is a {role}, and a synchronous run cannot go on without it: only a "
                "`host` is started again; leave this out",
            )
            return


def check_traffic(scenario: Scenario, names: Names) -> Iterator[Problem]:
    """Flows have names of their own and two ends, and say what their kind needs."""
    counted = Counter(flow.name for flow in scenario.traffic)
    for name in (name for name, count in counted.items() if count > 1):
        yield Problem(("traffic",), f"two flows are called {name!r}: use another name")
    for i, flow in enumerate(scenario.traffic):
        for key, node in (("from", flow.from_), ("to", flow.to)):
            if message := names.not_one_node(node):
                yield Problem(("traffic", i, key), message)
        yield from (Problem(("traffic", i, key), text) for key, text in _flow(flow))


def _flow(flow: Traffic) -> Iterator[tuple[str, str]]:
    if flow.from_ == flow.to:
        yield "to", f"{flow.to!r} would send to itself: name another node"
    if flow.kind == "udp":
        if not flow.rate:
            yield "rate", "udp needs a rate above 0, such as '20 Mbit/s'"
        if flow.congestion is not None:
            yield "congestion", "udp has no congestion control: leave it out"
        if flow.streams != 1:
            yield "streams", "udp is one stream: leave it out, or list several flows"
    elif flow.rate is not None:
        yield "rate", "tcp sends as much as it can: leave the rate out, or use `kind: udp`"
    if flow.for_ is not None and not flow.for_:
        yield "for", "a flow lasts longer than 0"
    yield from _times(flow)


def _times(flow: Traffic) -> Iterator[tuple[str, str]]:
    if (flow.on is None) != (flow.off is None):
        missing = "off" if flow.off is None else "on"
        yield missing, "`on` and `off` belong together: give both or none"
    if flow.on is not None and flow.on < LEAST_BURST:
        yield "on", f"{flow.on} is too short to start and end a flow in: {LEAST_BURST} is the least"
    if flow.on is None and flow.off is None and flow.timing is not None:
        yield "timing", "there is nothing to time: give `on` and `off`, or leave it out"
