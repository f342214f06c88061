"""Trials in virtual time: the same roles and records on modelled links. Nothing waits, and nothing is measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from math import inf
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from testbed.algorithms import Algorithm
from testbed.errors import NodeLost
from testbed.fabric.base import VIRTUAL
from testbed.fabric.sim.clock import VirtualClock
from testbed.fabric.sim.costs import costs_of
from testbed.fabric.sim.network import Costs, VirtualNetwork
from testbed.fabric.sim.play import play
from testbed.fabric.sim.sampler import SAMPLED_ENDS, Sampler
from testbed.fabric.sim.traffic import bursts
from testbed.links.plan import segments
from testbed.record.apart_events import LostRecord
from testbed.record.directory import RunDirectory, read_events
from testbed.record.events import SCHEMA, NodeChanged
from testbed.record.lost import lost_reasons
from testbed.record.summary import entry, summarise
from testbed.record.verdict import Verdict
from testbed.scenario.expand import racks
from testbed.scenario.node_events import NodeChange, node_changes
from testbed.scenario.shape import End
from testbed.scenario.traffic import flows
from testbed.session.cast import Cast
from testbed.session.consistency import faults
from testbed.session.description import describe
from testbed.session.ensemble import Ensemble
from testbed.session.experiment import Experiment, up_places
from testbed.session.failure import located
from testbed.session.garbage import seldom_collected
from testbed.session.progress import Progress


class VirtualStage:
    """Carries out trials one after the other, each in a world of its own."""

    def __init__(self, experiment: Experiment, costs: Costs | None = None) -> None:
        self._experiment = experiment
        self._costs = costs or costs_of(experiment.scenario.sim)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Nothing was made."""

    def trial(
        self, algorithm: Algorithm, seed: int, directory: RunDirectory, progress: Progress
    ) -> VirtualTrial:
        """One trial on a clock of its own."""
        experiment = self._experiment.for_seed(seed)
        return VirtualTrial(experiment, algorithm, seed, directory, progress, self._costs)

    def collect(self, run: RunDirectory) -> None:
        """There is nothing besides the records."""


class VirtualTrial:
    """One algorithm with one seed."""

    def __init__(
        self,
        experiment: Experiment,
        algorithm: Algorithm,
        seed: int,
        directory: RunDirectory,
        progress: Progress,
        costs: Costs,
    ) -> None:
        self.experiment, self.algorithm, self.seed = experiment, algorithm, seed
        self.directory, self.progress = directory, progress
        scenario, timeline = experiment.scenario, experiment.timeline
        self._network = VirtualNetwork(
            VirtualClock(),
            timeline.initial,
            changes=timeline.changes(0.0, inf),
            racks={rack.name: rack.members for rack in racks(scenario)},
            elsewhere=[name for name, at in up_places(scenario).items() if at == "network"],
            bundle=segments(timeline),
            seed=seed,
            costs=costs,
        )
        self._cast = self._make_cast()
        self._sampler = Sampler(self._network, timeline, self._sampled(), directory.link)
        self._network.on_change = self._sampler.changed
        self._traffic = bursts(
            self._network,
            flows(scenario),
            lambda record: directory.traffic({"v": SCHEMA, **record}),
        )
        self._network.at_start += [self._sampler.start, self._plan_node_changes]
        self._done: dict[str, dict[str, Any]] = {}
        self._error: BaseException | None = None
        self._lost = 0

    def row(self) -> dict[str, Any]:
        """What the manifest says of what is run."""
        return self.algorithm.to_json()

    def _make_cast(self) -> Ensemble:
        """The nodes that take part."""
        return Cast(
            self.experiment, self.algorithm, self.seed, self._network, self.directory, self.progress
        )

    def shape(self) -> None:
        """Write down how every link begins."""
        links = [
            {"link": end.link, "direction": end.direction, "asked": shape.to_json()}
            for end, shape in self.experiment.timeline.initial.items()
        ]
        describe(
            self.directory,
            self.experiment.loaded,
            self.experiment.specs,
            links,
            fabric=VIRTUAL,
            algorithm=self.row(),
            seed=self.seed,
            model={
                "compute": "measured" if self._cast.measured else "paced",
                **asdict(self._network.costs),
                "recorded_every": self._cast.recorded_every,
            },
        )

    def run(self) -> None:
        """Train from t0 to the last node's end."""
        try:
            with seldom_collected():
                summaries = play(self._network, self._cast.roles())
        except NodeLost as lost:
            self._error = located(lost, self._cast.steps)
            raise self._error from lost
        except BaseException as error:
            self._error = error
            raise
        finally:
            for flow in self._traffic:
                flow.finish()
            self._sampler.finish()
            self._cast.flush()
        self._done = {
            name: {"summary": summary, "counters": self._cast.counters(name)}
            for name, summary in summaries.items()
        }

    def conclude(self) -> dict[str, Any]:
        """What nodes count and keep must agree; of links there is nothing to judge."""
        path = self.directory.path
        with seldom_collected():
            summary = self._summarise(path, self._verdict(path))
        self.directory.write_json("summary.json", summary)
        return entry(summary)

    def _summarise(self, path: Path, verdict: Verdict) -> dict[str, Any]:
        return summarise(path, verdict)

    def _verdict(self, path: Path) -> Verdict:
        if self._error is not None:
            return Verdict.of_failure(self._error)
        events = read_events(path)
        steps, epochs = events.get("step", []), events.get("epoch", [])
        lost = lost_reasons(events)
        recorded = [name for name in self._cast.recorded if name in self._done]
        if wrong := faults(self._done, steps, epochs, recorded, lost=bool(lost)):
            return Verdict("invalid", [*wrong, *lost])
        modelled = ["virtual time: links are modelled", *self._not_modelled()]
        return Verdict("valid", [*modelled, *lost])

    def _not_modelled(self) -> Iterator[str]:
        """What the scenario asks for and has no effect here."""
        congestion = self.experiment.scenario.congestion
        if congestion not in (None, "cubic"):
            yield f"TCP is modelled as cubic, not as {congestion}"
        asked = self._network.board.seen
        for name in ("reorder", "duplicate"):
            if any(getattr(impairments, name) for impairments in asked):
                yield f"the effect of `{name}` is not modelled"

    def _sampled(self) -> list[End]:
        """The directions whose samples are taken all the time."""
        ends = self._network.board.ends
        if len(ends) <= SAMPLED_ENDS:
            return ends
        names = {spec.name for spec in self.experiment.specs if spec.role == "server"}
        names |= {rack.name for rack in racks(self.experiment.scenario)}
        return [end for end in ends if end.link in names]

    def _plan_node_changes(self) -> None:
        network = self._network
        for change in node_changes(self.experiment.scenario):
            network.clock.at(network.t0_s + change.time_s, partial(self._apply, change))

    def _kill(self, node: str, reason: str) -> None:
        """Raises NodeLost where the run cannot do without it."""
        spec = next(spec for spec in self._cast.specs if spec.name == node)
        if spec.role != "worker" or self._lost >= self._cast.spares:
            raise NodeLost(node, None, reason)
        self._lost += 1
        clock = self._network.clock
        clock.kill(node)
        for endpoint in self._network.endpoints.values():
            endpoint.lose(spec.peer, node)
        at_s, step = clock.now - self._network.t0_s, self._cast.steps.get(node, 0) + 1
        lost = LostRecord(node, node, step, at_s, reason)
        self._cast.record(spec, lost.to_json())

    def _apply(self, change: NodeChange) -> None:
        node, clock = change.node, self._network.clock
        self.directory.link(
            NodeChanged(node, change.action, change.time_s, change.time_s).to_json()
        )
        if change.action == "kill" and clock.running(node):
            self._kill(node, f"the scenario's event at {change.time_s:g} s killed it")
        for flow in self._traffic:
            (flow.leave if change.action in ("pause", "kill") else flow.join)(node)
        if change.action == "pause":
            clock.hold(node)
        elif change.action == "resume":
            clock.release(node)
