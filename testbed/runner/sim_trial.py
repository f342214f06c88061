"""Trials in virtual time: the same roles and records on modelled links. Nothing waits, and nothing
is measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from math import inf
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from testbed.algorithms import Algorithm
from testbed.errors import InputError, NodeLost
from testbed.exchange.base import exchanges
from testbed.fabric.sim.clock import VirtualClock
from testbed.fabric.sim.endpoint import VirtualEndpoint
from testbed.fabric.sim.network import SAMPLED_ENDS, Costs, SimSampler, VirtualNetwork, costs_of
from testbed.fabric.sim.node import VirtualNode, bursts, play
from testbed.fidelity.summary import entry, lost_reasons, summarise
from testbed.fidelity.verdict import Verdict
from testbed.links.tc.parameters import segments
from testbed.records.events import SCHEMA, LostRecord, NodeChanged
from testbed.records.run_directory import RunDirectory, read_events
from testbed.runner.experiment import Experiment, JobFactory, unsent_bytes, up_places
from testbed.runner.judge import faults
from testbed.runner.manifest_writer import describe
from testbed.runner.progress import Progress
from testbed.runner.signals import located, seldom_collected
from testbed.scenario.expand import racks
from testbed.scenario.link_state import LinkDirection
from testbed.scenario.node_timeline import NodeChange, flows, node_changes
from testbed.topology import VIRTUAL, NodeSpec
from testbed.training.roles import Role, role

if TYPE_CHECKING:
    from testbed.training.shared_replica import ReplicaProvider


_RECORDED = 1_000
"""Most workers whose steps are recorded, evenly spread over the ranks."""
_WRITE_EVERY_S, _WRITE_SHARE = 1.0, 10.0
"""Records are written so often, and at most in one tenth of the time."""

MULTICAST = "multicast"
"""Among the peers of a node's counters: all groups together."""


class SimNodes:
    """Nodes of ``specs`` but for hosts, on ``network``."""

    measured = False
    """True where computation takes as long as it takes here."""
    spares = 0
    """How many workers the run can do without."""

    def __init__(
        self,
        specs: list[NodeSpec],
        network: VirtualNetwork,
        directory: RunDirectory,
        progress: Progress,
    ) -> None:
        self.specs = [spec for spec in specs if spec.role != "host"]
        workers = [spec for spec in self.specs if spec.role == "worker"]
        self.recorded_every = -(-len(workers) // _RECORDED)
        """The records of every so-many-th worker's steps are kept."""
        self.recorded = [w.name for w in workers if w.rank % self.recorded_every == 0]
        self.steps: dict[str, int] = {}
        """The last step that each node has finished."""
        self._names = {spec.peer: spec.name for spec in self.specs}
        self._network, self._directory, self._progress = network, directory, progress
        self._endpoints: dict[str, VirtualEndpoint] = {}
        self._records: dict[tuple[str, int], list[dict[str, Any]]] = {}
        self._write_at_s = time.monotonic() + _WRITE_EVERY_S

    def roles(self) -> Mapping[str, Role]:
        """All of them by name, not prepared."""
        raise NotImplementedError

    def flush(self) -> None:
        """Write what has been recorded."""
        begun_s = time.monotonic()
        for place, events in self._records.items():
            self._directory.events(*place, events)
        self._records.clear()
        now_s = time.monotonic()
        self._write_at_s = now_s + max(_WRITE_EVERY_S, _WRITE_SHARE * (now_s - begun_s))

    def record(self, spec: NodeSpec, event: dict[str, Any]) -> None:
        """Something about a node that it did not record itself."""
        self._records.setdefault((spec.role, spec.rank), []).append(event)

    def counters(self, name: str) -> dict[str, dict[str, int]]:
        """Return the network's counts of a node's frames, keyed by peer; what it multicast is
        nobody's alone."""
        endpoint = self._endpoints[name]
        peers = endpoint.sent.keys() | endpoint.received.keys()
        counted = {
            self._names[peer]: (endpoint.sent.get(peer, 0), endpoint.received.get(peer, 0))
            for peer in peers
        }
        if endpoint.multicast_sent:
            counted[MULTICAST] = (endpoint.multicast_sent, 0)
        return {
            peer: {"bytes_sent": sent, "bytes_retransmitted": 0, "bytes_received": received}
            for peer, (sent, received) in counted.items()
        }

    def _recorder(self, spec: NodeSpec) -> Callable[[dict[str, Any]], None]:
        key = spec.role, spec.rank

        def record(event: dict[str, Any]) -> None:
            self._records.setdefault(key, []).append(event)
            if "step" in event:
                self.steps[spec.name] = event["step"]
            self._progress.event(event)
            if time.monotonic() > self._write_at_s:
                self.flush()

        return record


MAX_PRIVATE_REPLICAS = 32
"""So many workers have models of their own, and the very gradients of other fabrics; more share one
model."""
_RUN = 1
"""Marks the frames of a run on real fabrics; here no others can come between."""


class SimTrainingNodes(SimNodes):
    """Servers and workers that train."""

    def __init__(
        self,
        experiment: Experiment,
        algorithm: Algorithm,
        seed: int,
        network: VirtualNetwork,
        directory: RunDirectory,
        progress: Progress,
    ) -> None:
        super().__init__(experiment.specs, network, directory, progress)
        self.measured = experiment.scenario.train.pace is None
        kind = exchanges.get(algorithm.exchange)
        workers = sum(spec.role == "worker" for spec in self.specs)
        self.spares = kind.max_lost_workers(algorithm.exchange_options, workers)
        self._exchange = algorithm.exchange
        self._leave = any(one.kind == "absent" for one in experiment.scenario.events)
        self._train, self._seed = experiment.scenario.train, seed
        self._jobs = JobFactory(experiment, algorithm, seed, _RUN)

    def roles(self) -> dict[str, Role]:
        """All of them by name, not prepared."""
        provider = self._provider()
        return {spec.name: self._role(spec, provider) for spec in self.specs}

    def _provider(self) -> ReplicaProvider | None:
        if self._train.gradients != "real":
            return None
        if sum(spec.role == "worker" for spec in self.specs) <= MAX_PRIVATE_REPLICAS:
            from testbed.training.compute import PrivateReplicaProvider

            return PrivateReplicaProvider()
        if self._leave:
            raise InputError(
                f"more than {MAX_PRIVATE_REPLICAS} simulated workers share one replica, and those "
                "that are `absent` need their own",
                hint=f"Simulate at most {MAX_PRIVATE_REPLICAS} workers",
            )
        if not exchanges.get(self._exchange).lockstep:
            raise InputError(
                f"more than {MAX_PRIVATE_REPLICAS} simulated workers share one replica, and by "
                f"{self._exchange!r} they would need one each",
                hint=f"Simulate at most {MAX_PRIVATE_REPLICAS} workers",
            )
        from testbed.training.shared_replica import SharedReplicaProvider

        return SharedReplicaProvider()

    def _role(self, spec: NodeSpec, provider: ReplicaProvider | None) -> Role:
        job = self._jobs.of(spec)
        endpoint = VirtualEndpoint(self._network, spec.peer, spec.name, unsent_bytes(job))
        self._endpoints[spec.name] = endpoint
        recording = spec.role == "server" or spec.rank % self.recorded_every == 0
        node = VirtualNode(
            endpoint,
            self._seed,
            self._recorder(spec) if recording else _drop,
            measured=self.measured,
            recording=recording,
        )
        return role(node, job, spec.role, provider)


def _drop(_: dict[str, Any]) -> None:
    """Not recorded."""


class SimBackend:
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
        self._sampler = SimSampler(self._network, timeline, self._sampled(), directory.link)
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
        """Return what the manifest says of what is run."""
        return self.algorithm.to_json()

    def _make_cast(self) -> SimNodes:
        """The nodes that take part."""
        return SimTrainingNodes(
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
        """Judge whether what nodes count and keep agrees; of links there is nothing to judge."""
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
        """Yield what the scenario asks for and has no effect here."""
        congestion = self.experiment.scenario.congestion
        if congestion not in (None, "cubic"):
            yield f"TCP is modelled as cubic, not as {congestion}"
        asked = self._network.board.seen
        for name in ("reorder", "duplicate"):
            if any(getattr(impairments, name) for impairments in asked):
                yield f"the effect of `{name}` is not modelled"

    def _sampled(self) -> list[LinkDirection]:
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
