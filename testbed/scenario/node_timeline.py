"""Timeline of nodes: processes paused or killed, workers absent, and cross traffic. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from random import Random
from typing import Literal, NamedTuple

from testbed.errors import InputError
from testbed.scenario.expand import groups_of_nodes, named_nodes
from testbed.scenario.link_model import AbsentEvent, KillEvent, PauseEvent
from testbed.scenario.load import Loaded
from testbed.scenario.model import Scenario, TrafficModel
from testbed.topology import NodeSpec

Action = Literal["pause", "resume", "kill", "restart"]


class NodeChange(NamedTuple):
    """At ``time_s`` (after t0) ``action`` happens to the processes of ``node``."""

    time_s: float
    node: str
    action: Action


def node_changes(scenario: Scenario) -> list[NodeChange]:
    """All of them, by time; those at one time in the file's order."""
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


Spans = tuple[tuple[float, float], ...]


class Absences:
    """The absences of workers in ``scenario``, in its own time, wall or model."""

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
    """Raises InputError for `absent` where nodes do not train by our roles."""
    for number, event in enumerate(loaded.scenario.events):
        if isinstance(event, AbsentEvent):
            raise InputError(
                f"events.{number}: only `testbed run` and `compare` tell nodes to be absent, and "
                "train on without them",
                where=str(loaded.source),
                hint="Leave it out, or use `pause`, `kill` or `outage`",
            )


class Burst(NamedTuple):
    """A flow sends from ``start_s`` to ``stop_s`` (after t0; infinite: until the run ends)."""

    start_s: float
    stop_s: float


@dataclass(frozen=True, slots=True)
class Flow:
    """Traffic from node ``source`` to node ``sink``. ``rate_bits``: of UDP while it sends."""

    name: str
    source: str
    sink: str
    kind: Literal["tcp", "udp"]
    rate_bits: int | None
    congestion: str | None
    streams: int
    start_s: float
    stop_s: float
    on_s: float | None = None
    """How long it sends before a pause; None: it never pauses."""
    off_s: float = 0.0
    exponential: bool = False
    """``on_s`` and ``off_s`` are means of exponentially distributed times."""
    seed: int = 0

    def bursts(self) -> Iterator[Burst]:
        """When it sends, by time: always the same. Lazy, and endless if the flow is."""
        if self.on_s is None:
            yield Burst(self.start_s, self.stop_s)
            return
        random = Random(f"{self.seed} {self.name}")
        start = self.start_s
        while start < self.stop_s:
            on, off = self.on_s, self.off_s
            if self.exponential:
                on, off = random.expovariate(1.0) * on, random.expovariate(1.0) * off
            yield Burst(start, min(start + on, self.stop_s))
            start += on + off

    def bursts_until(self, stop_s: float) -> Iterator[Burst]:
        """Bursts that begin before ``stop_s``, cut off there."""
        for burst in self.bursts():
            if burst.start_s >= stop_s:
                return
            yield Burst(burst.start_s, min(burst.stop_s, stop_s))


def flows(scenario: Scenario) -> list[Flow]:
    """The flows of a scenario in wall time, in the order of the file."""
    return [_flow(traffic, scenario.congestion) for traffic in scenario.traffic]


def _flow(traffic: TrafficModel, congestion: str | None) -> Flow:
    start = float(traffic.at)
    return Flow(
        name=traffic.name,
        source=traffic.from_,
        sink=traffic.to,
        kind=traffic.kind,
        rate_bits=None if traffic.rate is None else int(traffic.rate),
        congestion=(traffic.congestion or congestion) if traffic.kind == "tcp" else None,
        streams=traffic.streams,
        start_s=start,
        stop_s=inf if traffic.for_ is None else start + traffic.for_,
        on_s=None if traffic.on is None else float(traffic.on),
        off_s=float(traffic.off or 0.0),
        exponential=traffic.timing == "exponential",
        seed=traffic.seed,
    )
