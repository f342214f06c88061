"""Checks that the parts of a scenario fit together (nodes, racks, flows, training, round trips),
which its models cannot see. Pure; reports all that it can.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from math import inf
from typing import Any, NamedTuple

from testbed.errors import InputError
from testbed.registry import Registry
from testbed.scenario.diagnostics import MAX_PROBLEMS, Names, Problem, check_names
from testbed.scenario.expand import DIRECTIONS, alike, expand, named_nodes, racks
from testbed.scenario.link_model import (
    AbsentEvent,
    FlapEvent,
    KillEvent,
    NodeEvent,
    PauseEvent,
    TraceEvent,
)
from testbed.scenario.link_state import LinkDirection
from testbed.scenario.model import Derived, Scenario, TrafficModel
from testbed.scenario.recorded_paces import check_paces
from testbed.scenario.timeline import Timeline, build
from testbed.scenario.validate_links import check_events, check_links, check_steps
from testbed.scenario.yaml import Place
from testbed.traces.rate_trace import RateTrace
from testbed.units import Duration, Rate

LEAST_BURST = Duration(0.01)
"""Shorter times of sending are refused: starting a flow takes about as long."""
MOST_SILENCE_S = 1e6
"""A longer `peer_timeout` times `dilation` is refused: kernels count it in 31 bits of ms."""
MAX_HAPPENING = 1_000_000
"""Events of nodes, each times the nodes it names."""


def check_nodes(scenario: Scenario) -> Iterator[Problem]:
    """Roles: servers, workers, and hosts that compute nothing."""
    servers = [name for name, group in scenario.nodes.items() if group.role == "server"]
    count = sum(scenario.nodes[name].count or 1 for name in servers)
    if count > 1 and scenario.train.stop.accuracy is not None:
        yield Problem(
            ("train", "stop", "accuracy"),
            f"none of {count} servers sees all parameters: stop at `steps` or `epochs`",
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
    ever = {
        n
        for event in scenario.events
        if isinstance(event, AbsentEvent)
        for n in named_nodes(scenario, event.nodes, names.nodes)
    }
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


def _flow(flow: TrafficModel) -> Iterator[tuple[str, str]]:
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


def _times(flow: TrafficModel) -> Iterator[tuple[str, str]]:
    if (flow.on is None) != (flow.off is None):
        missing = "off" if flow.off is None else "on"
        yield missing, "`on` and `off` belong together: give both or none"
    if flow.on is not None and flow.on < LEAST_BURST:
        yield "on", f"{flow.on} is too short to start and end a flow in: {LEAST_BURST} is the least"
    if flow.on is None and flow.off is None and flow.timing is not None:
        yield "timing", "there is nothing to time: give `on` and `off`, or leave it out"


class RoundTrip(NamedTuple):
    """Delays, jitters and waits for slots of all links on the way there and back."""

    time_s: float
    server: str = ""
    worker: str = ""

    def __str__(self) -> str:
        return (
            f"{Duration(self.time_s)} between {self.server} and {self.worker} with delays, jitter "
            "and slots"
        )


def longest_round_trip(scenario: Scenario, timeline: Timeline) -> RoundTrip:
    """The longest of all, every link at its slowest; none passes a rack's link in vain."""
    delays = timeline.longest_delays_s()
    rack_of = {node: rack.name for rack in racks(scenario) for node in rack.members}

    def both_ways(link: str | None) -> float:
        return (
            sum(delays[LinkDirection(link, direction)] for direction in DIRECTIONS) if link else 0.0
        )

    def between(server: str, worker: str) -> float:
        racked = rack_of.get(server), rack_of.get(worker)
        passed = [server, worker, *(racked if racked[0] != racked[1] else ())]
        return round(sum(map(both_ways, passed)), 9)

    nodes = expand(scenario)
    workers = [node for node in nodes if node.role == "worker"]
    return max(
        (
            RoundTrip(between(server.name, worker.name), server.name, worker.name)
            for server in nodes
            if server.role == "server"
            for worker in workers
        ),
        key=lambda trip: trip.time_s,
        default=RoundTrip(0.0),
    )


MAX_NODES = 12_000
MAX_CONCERNED = 1_000_000
"""Events, and repetitions of them, times the different links that each concerns."""
MAX_CHANGES = 20_000_000
"""A history with more of them, repetitions left out, takes too long to look at."""


def check(
    scenario: Scenario, traces: Mapping[str, RateTrace], *, trains: bool = True
) -> list[Problem]:
    """Return the problems, up to ``MAX_PROBLEMS``; ``traces`` are those that could be read, by
    ``key``.

    ``trains``: whether algorithms and training matter; to somebody's own job they do not.
    """
    problems = list(islice(_network(scenario, traces), MAX_PROBLEMS))
    if trains:
        problems += [*_training(scenario), *_algorithms(scenario), *_seeds(scenario)]
    if not problems and all(
        event.key in traces for event in scenario.events if isinstance(event, TraceEvent)
    ):
        problems += _history(scenario, traces)
    return problems


def _network(scenario: Scenario, traces: Mapping[str, RateTrace]) -> Iterator[Problem]:
    """Nodes, links, and what happens to them; where nodes are wrong, nothing more."""
    wrong = list(check_nodes(scenario))
    if sum(group.count or 1 for group in scenario.nodes.values()) > MAX_NODES:
        wrong.append(Problem(("nodes",), f"more than {MAX_NODES} nodes"))
    else:
        wrong += islice(check_names(scenario), MAX_PROBLEMS)
    yield from wrong
    if wrong:
        return
    names = Names(scenario)
    yield from check_links(scenario, names)
    yield from check_racks(scenario, names)
    yield from check_events(scenario, traces, names)
    if _concerned(scenario) > MAX_CONCERNED:
        yield Problem(("events",), "too many events for so many different links: use fewer")
        return
    yield from check_steps(scenario)
    yield from check_paces(scenario, names)
    yield from check_node_events(scenario, names)
    yield from check_traffic(scenario, names)


def _concerned(scenario: Scenario) -> int:
    """How many times something happens to a link; links alike and traces count once."""
    times = [event.times if isinstance(event, FlapEvent) else 1 for event in scenario.events]
    return sum(times[i] for group in alike(scenario) for i in group.events)


def _training(scenario: Scenario) -> Iterator[Problem]:
    from testbed.training.models.base import models
    from testbed.training.tasks.base import tasks

    train, stop = scenario.train, scenario.train.stop
    if stop.steps is None and stop.epochs is None and stop.accuracy is None:
        yield Problem(("train", "stop"), "no end: give steps, epochs or accuracy")
    if (train.recorded is not None) != (train.gradients == "recorded"):
        yield Problem(
            ("train", "recorded"), "`gradients: recorded` and the run's directory belong together"
        )
    yield from _known(("train", "task"), tasks, train.task)
    yield from _known(("train", "model"), models, train.model)


def _known(location: Place, registry: Registry[Any], name: str) -> Iterator[Problem]:
    if name not in registry:  # else it would be loaded, and torch with it
        yield from _caught(location, lambda: registry.get(name))


def _algorithms(scenario: Scenario) -> Iterator[Problem]:
    from testbed.compatibility import check_momentum, check_nodes, resolve

    momentum = scenario.train.optimizer.momentum

    def check_one(entry: str | Derived) -> None:
        row = resolve(entry)
        check_momentum(row, momentum)
        check_nodes(row, scenario)

    if not scenario.algorithms:
        yield Problem(("algorithms",), "no algorithm: name one, such as `none`")
    for i, entry in enumerate(scenario.algorithms):
        yield from _caught(("algorithms", i), partial(check_one, entry))
    names = [entry.name if isinstance(entry, Derived) else entry for entry in scenario.algorithms]
    for name in _repeated(names):
        yield Problem(("algorithms",), f"{name!r} is there twice")


def _seeds(scenario: Scenario) -> Iterator[Problem]:
    if not scenario.seeds:
        yield Problem(("seeds",), "no seed: give one, such as [1]")
    for seed in _repeated([str(seed) for seed in scenario.seeds]):
        yield Problem(("seeds",), f"seed {seed} is there twice")


def _history(scenario: Scenario, traces: Mapping[str, RateTrace]) -> Iterator[Problem]:
    """Dilation must leave a rate, and an outage must not look like the death of a node."""
    timeline = build(scenario, traces)
    location = ("events" if scenario.events else "links",)
    if timeline.change_count_estimate() > MAX_CHANGES:
        yield Problem(
            location, f"more than {MAX_CHANGES} changes in all: use shorter or fewer events"
        )
        return
    length, end = timeline.longest_outage_s()
    if 0 < timeline.lowest_rate() < scenario.dilation:
        lowest = Rate(timeline.lowest_rate())
        yield Problem(("dilation",), f"the lowest rate, {lowest}, would fall below 1 bit/s")
    if length == inf:
        yield Problem(location, f"{end} is at rate 0 for good: give it service again")
        return
    if scenario.peer_timeout * scenario.dilation > MOST_SILENCE_S:
        yield Problem(
            ("peer_timeout",),
            f"{scenario.peer_timeout} times dilation is more than {Duration(MOST_SILENCE_S)}, "
            f"which no kernel waits: write at most {Duration(MOST_SILENCE_S / scenario.dilation)}",
        )
    trip = longest_round_trip(scenario, timeline)
    if length + trip.time_s >= scenario.peer_timeout:
        outage = f"the longest outage, {Duration(length)} of {end}" if length else ""
        travel = f"the way there and back, {trip}" if trip.time_s else ""
        waits = " and ".join(filter(None, (outage, travel)))
        yield Problem(
            ("peer_timeout",),
            f"{scenario.peer_timeout} is not longer than {waits}: nodes would give each other up; "
            f"write more than {Duration(round(length + trip.time_s, 9))}",
        )


def _caught(location: Place, action: Callable[[], object]) -> Iterator[Problem]:
    try:
        action()
    except InputError as error:
        yield Problem(location, str(error))


def _repeated(names: list[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]
