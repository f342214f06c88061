"""Trials in virtual time: the same roles and records on modelled links. Nothing waits, and nothing
is measured.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from testbed.records.run_directory import SUMMARY, read_events
from testbed.runner.experiment import JobFactory, unsent_bytes, up_places
from testbed.runner.judge import faults
from testbed.runner.signals import seldom_collected
from testbed.runner.trial import LinkTrial, TrialPlan
from testbed.scenario.expand import racks
from testbed.scenario.link_state import SEGMENT_BYTES, LinkDirection
from testbed.scenario.node_timeline import NodeChange, flows, node_changes
from testbed.topology import VIRTUAL, NodeSpec
from testbed.training.roles import Role, role

if TYPE_CHECKING:
    from testbed.training.shared_replica import ReplicaProvider


_RECORDED = 1_000
"""Most workers whose steps are recorded, evenly spread over the ranks; where no server records
rounds, which have everybody's messages, all are."""
_WRITE_EVERY_S, _WRITE_SHARE = 1.0, 10.0
"""Records are written so often, and at most in one tenth of the time."""

MULTICAST = "multicast"
"""Among the peers of a node's counters: all groups together."""


class SimNodes:
    """The nodes of ``plan`` on ``network``, but for hosts: their end points and records."""

    def __init__(self, plan: TrialPlan, network: VirtualNetwork) -> None:
        self.specs = [spec for spec in plan.experiment.specs if spec.role != "host"]
        self.workers = [spec for spec in self.specs if spec.role == "worker"]
        kind = exchanges.get(plan.algorithm.exchange)
        rounds = kind.server is not None and not kind.asynchronous
        self.recorded_every = -(-len(self.workers) // _RECORDED) if rounds else 1
        """The records of every so-many-th worker's steps are kept."""
        self.recorded = [w.name for w in self.workers if w.rank % self.recorded_every == 0]
        self.steps: dict[str, int] = {}
        """The last step that each node has finished."""
        self._names = {spec.peer: spec.name for spec in self.specs}
        self._plan, self._network = plan, network
        self._endpoints: dict[str, VirtualEndpoint] = {}
        self._records: dict[tuple[str, int], list[dict[str, Any]]] = {}
        self._write_at_s = time.monotonic() + _WRITE_EVERY_S

    def node(
        self,
        spec: NodeSpec,
        unsent_bytes: int | None = None,
        *,
        measured: bool = False,
        recording: bool = True,
    ) -> VirtualNode:
        """Return the world of one node, whose records are kept if ``recording``."""
        endpoint = VirtualEndpoint(self._network, spec.peer, spec.name, unsent_bytes)
        self._endpoints[spec.name] = endpoint
        record = self._recorder(spec) if recording else _drop
        return VirtualNode(
            endpoint, self._plan.seed, record, measured=measured, recording=recording
        )

    def flush(self) -> None:
        """Write what has been recorded."""
        begun_s = time.monotonic()
        for node, events in self._records.items():
            self._plan.directory.events(*node, events)
        self._records.clear()
        now_s = time.monotonic()
        self._write_at_s = now_s + max(_WRITE_EVERY_S, _WRITE_SHARE * (now_s - begun_s))

    def record(self, spec: NodeSpec, event: dict[str, Any]) -> None:
        """Something about a node that it did not record itself."""
        self._records.setdefault((spec.role, spec.rank), []).append(event)

    def counters(self, name: str) -> dict[str, dict[str, int]]:
        """Return the network's counts of a node's frames, by peer, multicasts apart."""
        endpoint = self._endpoints[name]
        peers = endpoint.sent.keys() | endpoint.received.keys()
        counted = {
            self._names[peer]: (endpoint.sent.get(peer, 0), endpoint.received.get(peer, 0))
            for peer in peers
        }
        if endpoint.multicast_sent:
            counted[MULTICAST] = (endpoint.multicast_sent, 0)
        return {
            peer: {
                "bytes_sent": sent,
                "bytes_retransmitted": 0,
                "bytes_received": received,
                "segment_bytes": SEGMENT_BYTES,
            }
            for peer, (sent, received) in counted.items()
        }

    def _recorder(self, spec: NodeSpec) -> Callable[[dict[str, Any]], None]:
        key = spec.role, spec.rank

        def record(event: dict[str, Any]) -> None:
            self._records.setdefault(key, []).append(event)
            if "step" in event:
                self.steps[spec.name] = event["step"]
            self._plan.progress.event(event)
            if time.monotonic() > self._write_at_s:
                self.flush()

        return record


def _drop(_: dict[str, Any]) -> None:
    """Not recorded."""


class SimTrial(LinkTrial):
    """One trial on a clock and links of its own."""

    measured = False
    """True where computation takes as long as it takes here."""
    spares = 0
    """How many workers the run can do without."""

    def __init__(self, plan: TrialPlan, costs: Costs) -> None:
        super().__init__(plan)
        scenario, timeline = self.scenario, self.timeline
        self.network = VirtualNetwork(
            VirtualClock(),
            timeline.initial,
            changes=timeline.changes(0.0, inf),
            racks={rack.name: rack.members for rack in racks(scenario)},
            elsewhere=[name for name, at in up_places(scenario).items() if at == "network"],
            bundle=segments(timeline),
            seed=plan.seed,
            costs=costs,
        )
        self.nodes = SimNodes(plan, self.network)
        self.steps = self.nodes.steps
        self._sampler = SimSampler(self.network, timeline, self._sampled(), self.directory.link)
        self.network.on_change = self._sampler.changed
        self._traffic = bursts(
            self.network,
            flows(scenario),
            lambda record: self.directory.traffic({"v": SCHEMA, **record}),
        )
        self.network.at_start += [self._sampler.start, self._plan_node_changes]
        self._lost = 0

    @abstractmethod
    def _roles(self) -> Mapping[str, Role]:
        """All roles by node, not prepared."""

    def shape(self) -> None:
        """Write down how every link begins."""
        links = [
            {"link": end.link, "direction": end.direction, "asked": state.to_json()}
            for end, state in self.timeline.initial.items()
        ]
        model = {
            "compute": "measured" if self.measured else "paced",
            **asdict(self.network.costs),
            "recorded_every": self.nodes.recorded_every,
        }
        self._describe(links, VIRTUAL, model=model)

    def _perform(self) -> None:
        with seldom_collected():
            summaries = play(self.network, self._roles())
        self.outcome.done = {
            name: {"summary": summary, "counters": self.nodes.counters(name)}
            for name, summary in summaries.items()
        }

    def _stop(self) -> None:
        for flow in self._traffic:
            flow.finish()
        self._sampler.finish()
        self.nodes.flush()

    def conclude(self) -> dict[str, Any]:
        """Judge whether what nodes count and keep agrees; of links there is nothing to judge."""
        path = self.directory.path
        with seldom_collected():
            summary = self._summarise(path, self._verdict(path))
        self.directory.write_json(SUMMARY, summary)
        return entry(summary)

    def collect(self) -> None:
        """There are no logs: nothing but records."""

    def _summarise(self, path: Path, verdict: Verdict) -> dict[str, Any]:
        return summarise(path, verdict)

    def _verdict(self, path: Path) -> Verdict:
        if self.outcome.error is not None:
            return Verdict.of_failure(self.outcome.error)
        events = read_events(path)
        steps, epochs = events.get("step", []), events.get("epoch", [])
        lost = lost_reasons(events)
        recorded = [name for name in self.nodes.recorded if name in self.outcome.done]
        if wrong := faults(self.outcome.done, steps, epochs, recorded, lost=bool(lost)):
            return Verdict("invalid", [*wrong, *lost])
        modelled = ["virtual time: links are modelled", *self._not_modelled()]
        return Verdict("valid", [*modelled, *lost])

    def _not_modelled(self) -> Iterator[str]:
        """Yield what the scenario asks for and has no effect here."""
        congestion = self.scenario.congestion
        if congestion not in (None, "cubic"):
            yield f"TCP is modelled as cubic, not as {congestion}"
        requested = self.network.links.impairments_used
        for name in ("reorder", "duplicate"):
            if any(getattr(impairments, name) for impairments in requested):
                yield f"the effect of `{name}` is not modelled"

    def _sampled(self) -> list[LinkDirection]:
        """The directions whose samples are taken all the time."""
        ends = self.network.links.ends
        if len(ends) <= SAMPLED_ENDS:
            return ends
        names = {spec.name for spec in self.experiment.specs if spec.role == "server"}
        names |= {rack.name for rack in racks(self.scenario)}
        return [end for end in ends if end.link in names]

    def _plan_node_changes(self) -> None:
        network = self.network
        for change in node_changes(self.scenario):
            network.clock.at(network.t0_s + change.time_s, partial(self._apply, change))

    def _kill(self, node: str, reason: str) -> None:
        """Raises NodeLost where the run cannot do without it."""
        spec = next(spec for spec in self.nodes.specs if spec.name == node)
        if spec.role != "worker" or self._lost >= self.spares:
            raise NodeLost(node, None, reason)
        self._lost += 1
        clock = self.network.clock
        clock.kill(node)
        for endpoint in self.network.endpoints.values():
            endpoint.lose(spec.peer, node)
        at_s, step = clock.now - self.network.t0_s, self.nodes.steps.get(node, 0) + 1
        lost = LostRecord(node, node, step, at_s, reason)
        self.nodes.record(spec, lost.to_json())

    def _apply(self, change: NodeChange) -> None:
        node, clock = change.node, self.network.clock
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


MAX_PRIVATE_REPLICAS = 32
"""So many workers have models, and gradients, of their own; more share one model."""
_RUN = 1
"""Marks the frames of a run on real fabrics; here no others can come between."""


class SimTraining(SimTrial):
    """Trains one algorithm with one seed."""

    def __init__(self, plan: TrialPlan, costs: Costs | None = None) -> None:
        super().__init__(plan, costs or costs_of(plan.experiment.scenario.sim))
        row = plan.algorithm
        self.measured = self.scenario.train.pace is None
        self._exchange = exchanges.get(row.exchange)
        self.spares = self._exchange.max_lost_workers(row.exchange_options, len(self.nodes.workers))
        self._jobs = JobFactory(self.experiment, row, plan.seed, _RUN)

    def _roles(self) -> Mapping[str, Role]:
        provider = self._replica_provider()
        return {spec.name: self._role(spec, provider) for spec in self.nodes.specs}

    def _replica_provider(self) -> ReplicaProvider | None:
        if self.scenario.train.gradients != "real":
            return None
        if len(self.nodes.workers) <= MAX_PRIVATE_REPLICAS:
            from testbed.training.compute import PrivateReplicaProvider

            return PrivateReplicaProvider()
        shared = f"more than {MAX_PRIVATE_REPLICAS} simulated workers share one replica, and"
        hint = f"Simulate at most {MAX_PRIVATE_REPLICAS} workers"
        if any(event.kind == "absent" for event in self.scenario.events):
            raise InputError(f"{shared} those that are `absent` need their own", hint=hint)
        if not self._exchange.lockstep:
            name = self.plan.algorithm.exchange
            raise InputError(f"{shared} by {name!r} they would need one each", hint=hint)
        from testbed.training.shared_replica import SharedReplicaProvider

        return SharedReplicaProvider()

    def _role(self, spec: NodeSpec, provider: ReplicaProvider | None) -> Role:
        job = self._jobs.of(spec)
        recording = spec.role == "server" or spec.rank % self.nodes.recorded_every == 0
        node = self.nodes.node(spec, unsent_bytes(job), measured=self.measured, recording=recording)
        return role(node, job, spec.role, provider)
