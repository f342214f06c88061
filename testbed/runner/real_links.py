"""Trials on real nodes and links: training, and replays of communication traces."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from testbed.errors import NarrowsError, NodeLost
from testbed.exchange.base import exchanges
from testbed.fidelity.verdict import Verdict
from testbed.records.events import LostRecord
from testbed.runner.comm_replay import CommReplay, replay_activity, summarise_replay
from testbed.runner.cross_traffic import TrialCrossTraffic
from testbed.runner.experiment import Experiment, JobFactory
from testbed.runner.judge import write_verdict
from testbed.runner.node_events import HostWatch, NodeEventScheduler, clock_record
from testbed.runner.session import (
    LostWorkerBudget,
    Session,
    backlog_drops,
    lead_s,
    shape,
    swarm_options,
)
from testbed.runner.trial import LinkTrial, TrialPlan
from testbed.scenario.expand import racks
from testbed.scenario.node_timeline import node_changes
from testbed.topology import NodeSpec
from testbed.training.job import Job
from testbed.training.membership import multicasts
from testbed.user_files import OpenedPath, PinnedFolder

if TYPE_CHECKING:
    from testbed.runner.observe import RunObserver

Observed = Callable[[Session], "AbstractContextManager[RunObserver]"]

_SOON_S = 10.0
"""The most that the clock of a node may be ahead, such as that of another host in a swarm."""
QUIET_AFTER_S = 0.2
"""From the nodes' end to the last look at the links: acknowledgements are still under way."""


class RealTrial(LinkTrial):
    """A trial on a session's nodes: links follow their timeline, watched, with cross traffic."""

    bursty = False
    """True where nobody knows how long messages are."""
    prepare_s = 120.0
    """How long nodes may take to load data, build the model and connect."""

    def __init__(self, session: Session, plan: TrialPlan) -> None:
        super().__init__(plan)
        self.session, self.agent = session, session.fabric.agent
        self.crossing = TrialCrossTraffic(
            session, self.scenario, self.timeline, self.directory.traffic
        )
        self.outcome.crossed = frozenset(self.crossing.links)
        self.t0_ns: int | None = None
        self.specs = {spec.name: spec for spec in session.specs}
        self._ours = {
            n: spec for n, spec in self.specs.items() if session.context.runs_our_process(spec)
        }
        """Nodes with a process of ours; of these, ``_training`` are no hosts."""
        self._training = {n: spec for n, spec in self._ours.items() if spec.role != "host"}
        self._under_way = False
        self._watches: list[HostWatch | NodeEventScheduler] = []
        self._dropped = 0

    def shape(self) -> None:
        """Bring every link to its state at t0, and write down what the kernel holds."""
        loaded = self.experiment.loaded
        state = shape(self.session, loaded, self.timeline, self._on_samples, gapped=self.bursty)
        self.outcome.shaped = state["links"]
        self._describe(state["links"], self.session.fabric_name, hosts=self.agent.hosts())

    def run(self) -> None:
        """See ``LinkTrial``; packets that the host drops meanwhile are counted."""
        self._dropped = backlog_drops()
        super().run()

    def collect(self) -> None:
        """Have the fabric save its logs."""
        self.session.fabric.save_logs()

    def _task(self, spec: NodeSpec) -> dict[str, Any]:
        """Return a node's part of its ``job`` message; of a host only its name matters."""
        job = Job(
            run=1,
            algorithm=self.plan.algorithm,
            train=self.scenario.train,
            seed=0,
            workers=0,
            node=spec.name,
            rank=spec.rank,
            peer=spec.peer,
            peer_timeout_s=float(self.scenario.peer_timeout),
        )
        return {"job": job.to_json()}

    def _assign(self) -> None:
        """Hand every node its job, and wait until all are ready for it, whatever a host that was
        late says of an earlier one."""
        for name in self._ours:
            self._hand_job(name)
        run = self.directory.path.name
        self.session.await_all("ready", self._ours, self.prepare_s, self._on_message, run)

    def _hand_job(self, name: str) -> None:
        spec, places = self.specs[name], [self.session.places[node] for node in self._training]
        about = {"algorithm": self.plan.algorithm.name, "role": spec.role, "node": name}
        self.session.control.send(
            name,
            "job",
            **self._task(spec),
            role=spec.role,
            peers={placement.spec.peer: placement.spec.name for placement in places},
            addresses={placement.spec.peer: placement.data_address for placement in places},
            ahead_ns=self.session.ahead_ns(name),
            traffic=self.crossing.part(name),
            labels={"run": self.directory.path.name, "scenario": self.scenario.name, **about},
        )

    def _follow(self, t0_ns: int) -> None:
        """Have the links follow their timeline from t0 on."""
        self.agent.start(t0_ns, self.timeline.changes(0.0, float("inf")))
        self.t0_ns = t0_ns

    def _begin(self) -> None:
        """Agree on t0 with everybody; watch the host, and carry out the nodes' events."""
        t0_ns = time.monotonic_ns() + int(lead_s(self.timeline) * 1e9)
        self._follow(t0_ns)
        self._under_way, write = True, self._take_record
        write(clock_record(t0_ns).to_json())
        self._watches.append(HostWatch(t0_ns, write))
        self._release(t0_ns)
        changes = node_changes(self.scenario)
        self._watches.append(NodeEventScheduler(self.session, changes, t0_ns, write))

    def _release(self, t0_ns: int) -> None:
        """Tell every node when t0 is."""
        for name in self._ours:
            self._start_node(name, t0_ns)

    def _start_node(self, name: str, t0_ns: int) -> None:
        """Tell one node when t0 is, by the clock of its own host."""
        self.session.control.send(name, "start", t0_ns=t0_ns + self.session.ahead_ns(name))

    def _end_traffic(self) -> None:
        """No node's events any more: all go on, and what is under way comes to its end."""
        self._watches.pop().stop()
        self._under_way = False
        self.crossing.end(self._on_message)
        time.sleep(QUIET_AFTER_S)

    def _stop(self) -> None:
        failed: NarrowsError | OSError | None = None
        for end in self._endings():
            try:
                end()
            except (NarrowsError, OSError) as error:
                failed = failed or error
        self.outcome.backlog_drops = backlog_drops() - self._dropped
        self.outcome.strangers = self.session.control.strangers
        if failed is not None and self.outcome.error is None:  # the run's only where it had none
            self.outcome.error = failed
            raise failed

    def _endings(self) -> Iterator[Callable[[], None]]:
        """Yield what is to be done in any case, in order."""
        yield from [watch.stop for watch in reversed(self._watches)]
        if self.t0_ns is not None and self.outcome.links is None and self.agent.alive():
            yield self._stop_links

    def _stop_links(self) -> None:
        self.outcome.links = self.agent.stop()

    def _on_message(self, node: str, message: dict[str, Any]) -> None:
        """Take in a node's message. A host that was restarted joins in again."""
        kind = message["type"]
        if kind == "burst":
            record, now_s = message["record"], time.monotonic() - (self.t0_ns or 0) / 1e9
            early = record.get("stop_s", 0.0) > now_s + _SOON_S
            if early or not self.crossing.concerns(node, record):
                raise NodeLost(node, None, "it spoke of traffic that is not its own, or not yet")
            self.crossing.take(record)
        elif kind == "up" and self._under_way:
            self._hand_job(node)
        elif kind == "ready" and self._under_way and message["run"] == self.directory.path.name:
            assert self.t0_ns is not None
            self._start_node(node, self.t0_ns)

    def _take_record(self, record: dict[str, Any]) -> None:
        """Write a record of the host or of a node's event. From any thread."""
        self.directory.link(record)

    def _on_samples(self, samples: list[dict[str, Any]]) -> None:
        """Take in what the agent saw of links; called in its client's reader thread."""
        self.directory.link(samples)


class TrainingTrial(RealTrial):
    """Trains one algorithm with one seed. ``shared``: the session's folder, if not its own.

    ``observer``: gets all records as they come.
    """

    def __init__(
        self,
        session: Session,
        plan: TrialPlan,
        shared: PinnedFolder | None = None,
        observer: RunObserver | None = None,
    ) -> None:
        super().__init__(session, plan)
        self._shared, self._observer = shared, observer
        self._lost: set[str] = set()
        self._link_subscribers = {name: {name} for name in self.specs}
        """Nodes that are told of a link's samples, by link."""

    def shape(self) -> None:
        """See ``RealTrial``; what observes the run begins anew."""
        if self._observer is not None:
            self._observer.begin(self.plan)
        super().shape()

    def conclude(self) -> dict[str, Any]:
        """Judge the links by what was measured; see ``judge.write_verdict``."""
        return write_verdict(self.plan, self.outcome)

    def collect(self) -> None:
        """Copy logs and the Compose or stack file, which belong to all trials of a session."""
        super().collect()
        if self._shared is not None:
            run = self.directory.folder()
            for name in ("compose.yaml", "stack.yaml"):
                self._shared.copy(name, run)
            logs, copies = self._shared.folder("log"), run.folder("log")
            for name in logs.names():
                logs.copy(name, copies)

    def _perform(self) -> None:
        """Train from t0 to the last node's end."""
        self.session.restart_lost_nodes()
        self._make_jobs(secrets.randbits(63))
        self._assign()
        self._begin()
        self.session.lost_worker_budget = self._spare()
        self.session.await_all("done", self._training, take=self._on_message)
        self._end_traffic()

    def _make_jobs(self, run: int) -> None:
        """Prepare the nodes' jobs; ``run`` marks all frames of this run."""
        self._jobs = JobFactory(self.experiment, self.plan.algorithm, self.plan.seed, run)

    def _task(self, spec: NodeSpec) -> dict[str, Any]:
        """Return the node's job; it is told of the links on its path."""
        job = self._jobs.of(spec)
        for link in (*job.way_up, *job.way_down):
            self._link_subscribers.setdefault(link.link, set()).add(spec.name)
        return {"job": job.to_json()}

    def _follow(self, t0_ns: int) -> None:
        if self._observer is not None:
            self._observer.start(t0_ns)
        super()._follow(t0_ns)

    def _spare(self) -> LostWorkerBudget:
        """The workers that the exchange can do without."""
        workers = [name for name, spec in self._training.items() if spec.role == "worker"]
        row = self.plan.algorithm
        count = exchanges.get(row.exchange).max_lost_workers(row.exchange_options, len(workers))
        return LostWorkerBudget(workers, count)

    def _on_message(self, node: str, message: dict[str, Any]) -> None:
        kind = message["type"]
        if kind == "event":
            self._record(node, message["event"])
        elif kind == "lost":
            self._lose(node, message["reason"])
        elif kind == "done":
            self.outcome.done[node] = message
        else:
            super()._on_message(node, message)

    def _lose(self, node: str, reason: str) -> None:
        """The session goes on without ``node``: once, in its own records."""
        if node in self._lost or self.t0_ns is None or not self._under_way:
            return
        self._lost.add(node)
        spec, at_s = self.specs[node], (time.monotonic_ns() - self.t0_ns) / 1e9
        record = LostRecord(node, node, self.steps.get(node, 0) + 1, at_s, reason)
        self.directory.event(spec.role, spec.rank, record.to_json())

    def _record(self, node: str, event: dict[str, Any]) -> None:
        spec = self.specs[node]
        self.directory.event(spec.role, spec.rank, event)
        if event["kind"] == "lost":
            self._drop_worker(event)
        if event.get("step") is not None:
            self.steps[node] = event["step"]
        self.progress.event(event)
        if self._observer is not None:
            self._observer.event(event)

    def _drop_worker(self, event: dict[str, Any]) -> None:
        """Go on without a worker, as the server does. Raises NodeLost where it cannot."""
        lost = NodeLost(event["lost"], event.get("step"), event["reason"])
        if event["lost"] in self.outcome.done:
            return
        if (forgiven := self.session.tolerate_loss(lost)) is None:
            raise lost
        self._lose(forgiven.node, forgiven.reason)

    def _take_record(self, record: dict[str, Any]) -> None:
        super()._take_record(record)
        if self._observer is not None:
            self._observer.record(record)

    def _on_samples(self, samples: list[dict[str, Any]]) -> None:
        """A paused node reads nothing: what is sent to it would hold up everybody."""
        super()._on_samples(samples)
        for sample in samples:
            self.progress.link(sample)
            if self._observer is not None:
                self._observer.record(sample)
            if sample["kind"] == "sample":
                for name in self._link_subscribers.get(sample["link"], ()):
                    if name not in self.session.paused:
                        self.session.send_best_effort(name, "link", sample=sample)


class CommReplayTrial(TrainingTrial):
    """A trial whose nodes play parts of a trace."""

    def __init__(self, session: Session, plan: TrialPlan, replay: CommReplay) -> None:
        super().__init__(session, plan)
        self._replay = replay

    def conclude(self) -> dict[str, Any]:
        """Judge the links by what was measured; see ``judge.write_verdict``."""

        def summary(path: Path, verdict: Verdict) -> dict[str, Any]:
            return summarise_replay(path, verdict, self.outcome.done)

        return write_verdict(self.plan, self.outcome, replay_activity, summary)

    def _make_jobs(self, run: int) -> None:
        self._scripts = self._replay.scripts(run)

    def _task(self, spec: NodeSpec) -> dict[str, Any]:
        return {"part": self._scripts[spec.name].to_json()}

    def _spare(self) -> LostWorkerBudget:
        """Every node is wanted."""
        return LostWorkerBudget()


@contextmanager
def training_trials(
    experiment: Experiment,
    fabric: str,
    directory: Path,
    shared: PinnedFolder,
    *,
    quiet: bool,
    keep_failed: bool,
    least: int,
    observed: Observed | None = None,
) -> Iterator[Callable[[TrialPlan], TrainingTrial]]:
    """One session for all trials of ``experiment``, which are made by what this yields.

    ``shared``: what was made at ``directory``. ``observed``: what observes the session once it is
    there.
    """
    with ExitStack() as stack:
        session = stack.enter_context(
            Session(
                experiment.specs,
                fabric,
                directory,
                quiet=quiet,
                keep_failed=keep_failed,
                folders=tuple(map(OpenedPath, experiment.folders)),
                racks=racks(experiment.scenario),
                multicast=multicasts(experiment.algorithms),
                least=least,
                folder=shared,
                swarm=swarm_options(experiment.scenario, experiment.timeline),
            )
        )
        observer = stack.enter_context(observed(session)) if observed is not None else None
        yield partial(TrainingTrial, session, shared=shared, observer=observer)


@contextmanager
def comm_replay_trial(
    plan: TrialPlan, replay: CommReplay, fabric: str, *, quiet: bool, keep_failed: bool, least: int
) -> Iterator[CommReplayTrial]:
    """A session of nodes that do not train, and its one trial."""
    with Session(
        plan.experiment.specs,
        fabric,
        plan.directory.path,
        quiet=quiet,
        keep_failed=keep_failed,
        racks=racks(plan.experiment.scenario),
        trains=False,
        least=least,
        folder=plan.directory.folder(),
        swarm=swarm_options(plan.experiment.scenario, plan.experiment.timeline),
    ) as session:
        yield CommReplayTrial(session, plan, replay)
