"""One algorithm with one seed, from shaping the links to the last record."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from testbed.algorithms import Algorithm
from testbed.errors import NarrowsError, NodeLost
from testbed.exchange.base import exchanges
from testbed.links.agent.client import LinkReport
from testbed.records.events import LostRecord
from testbed.records.run_directory import RunDirectory
from testbed.runner.cross_traffic import TrialCrossTraffic
from testbed.runner.experiment import Experiment, JobFactory
from testbed.runner.manifest_writer import describe
from testbed.runner.node_events import HostWatch, NodeEventScheduler
from testbed.runner.progress import Progress
from testbed.runner.session import LostWorkerBudget, Session, backlog_drops, lead_s, shape
from testbed.runner.signals import located
from testbed.scenario.node_timeline import node_changes
from testbed.topology import NodeSpec

PREPARE_S = 120.0
"""How long nodes may take to load data, build the model and connect."""
QUIET_AFTER_S = 0.2
"""From the last node's ``done`` to the last look at the links: acknowledgements are still under
way."""


@dataclass
class TrialOutcome:
    """Results that a trial left in memory; everything else is in its directory."""

    links: LinkReport | None = None
    done: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Each node's ``done`` message."""
    backlog_drops: int = 0
    """Packets that the host itself dropped meanwhile, for want of time."""
    error: BaseException | None = None
    """The error that ended the trial before its time."""
    crossed: frozenset[str] = frozenset()
    """Names of the links that cross traffic may be on: their bytes are not the training's alone."""


class Trial:
    """Runs one algorithm with one seed on a session's nodes."""

    def __init__(
        self,
        session: Session,
        experiment: Experiment,
        algorithm: Algorithm,
        seed: int,
        directory: RunDirectory,
        progress: Progress,
    ) -> None:
        self.session, self.experiment = session, experiment
        self.algorithm, self.seed = algorithm, seed
        self.directory, self.progress = directory, progress
        scenario = experiment.scenario
        self._changes = node_changes(scenario)
        self._crossing = TrialCrossTraffic(
            session, scenario, experiment.timeline, directory.traffic
        )
        self.outcome = TrialOutcome(crossed=frozenset(self._crossing.links))
        self._t0_ns: int | None = None
        self._specs = {spec.name: spec for spec in session.specs}
        self._training = {n: spec for n, spec in self._specs.items() if spec.role != "host"}
        self._steps: dict[str, int] = {}
        self._lost: set[str] = set()
        self._hearers = {name: {name} for name in self._specs}
        """Who is told of a link."""

    def shape(self) -> None:
        """Bring every link to its state at t0, and write down what the kernel holds."""
        held = shape(self.session, self.experiment.loaded, self.experiment.timeline, self._samples)
        describe(
            self.directory,
            self.experiment.loaded,
            self.session.specs,
            held["links"],
            fabric=self.session.fabric_name,
            algorithm=self.row(),
            seed=self.seed,
        )

    def row(self) -> dict[str, Any]:
        """Return what the manifest says of what is run."""
        return self.algorithm.to_json()

    def run(self) -> None:
        """Train from t0 to the last node's end. Raises what made it fail, with the step filled
        in."""
        agent = self.session.fabric.agent
        started, dropped = False, backlog_drops()
        watch: HostWatch | None = None
        disturbances: NodeEventScheduler | None = None
        try:
            self.session.revive()
            self._assign()
            self.session.await_all("ready", self._specs, PREPARE_S, self._take)
            self._t0_ns = t0_ns = time.monotonic_ns() + int(lead_s(self.experiment.timeline) * 1e9)
            agent.start(t0_ns, self.experiment.timeline.changes(0.0, float("inf")))
            started = True
            watch = HostWatch(t0_ns, self.directory.link)
            for name in self._specs:
                self.session.switchboard.send(name, "start", t0_ns=t0_ns)
            disturbances = NodeEventScheduler(
                self.session, self._changes, t0_ns, self.directory.link
            )
            self.session.spare = self._spare()
            self.session.await_all("done", self._training, take=self._take)
            disturbances.stop()
            self._t0_ns = None
            self._crossing.end(self._take)
            time.sleep(QUIET_AFTER_S)
        except NodeLost as lost:
            self.outcome.error = located(lost, self._steps)
            raise self.outcome.error from lost
        except BaseException as error:
            self.outcome.error = error
            raise
        finally:
            if disturbances is not None:
                with self._ending():
                    disturbances.stop()
            if watch is not None:
                with self._ending():
                    watch.stop()
            if started and agent.alive():
                with self._ending():
                    self.outcome.links = agent.stop()
            self.outcome.backlog_drops = backlog_drops() - dropped

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """An error here is the run's only where it had none."""
        try:
            yield
        except (NarrowsError, OSError) as error:
            if self.outcome.error is None:
                self.outcome.error = error
                raise

    def _assign(self) -> None:
        """The job to every node; the same number marks all frames of this run."""
        run = secrets.randbits(63)
        self._jobs = JobFactory(self.experiment, self.algorithm, self.seed, run)
        for name in self._specs:
            self._hand_job(name)

    def _hand_job(self, name: str) -> None:
        spec = self._specs[name]
        places = [self.session.places[node] for node in self._training]
        peers = {place.spec.peer: place.spec.name for place in places}
        addresses = {place.spec.peer: place.data_address for place in places}
        labels = {
            "run": self.directory.path.name,
            "scenario": self.experiment.scenario.name,
            "algorithm": self.algorithm.name,
        }
        task = self._task(spec)
        self.session.switchboard.send(
            name,
            "job",
            **task,
            role=spec.role,
            peers=peers,
            addresses=addresses,
            traffic=self._crossing.part(name),
            labels={**labels, "role": spec.role, "node": name},
        )

    def _task(self, spec: NodeSpec) -> dict[str, Any]:
        """Return the node's job; it is told of the links on its path."""
        job = self._jobs.of(spec)
        for link in (*job.way_up, *job.way_down):
            self._hearers.setdefault(link.link, set()).add(spec.name)
        return {"job": job.to_json()}

    def _take(self, node: str, message: dict[str, Any]) -> None:
        """A node's message. A host that was restarted joins in again."""
        kind = message["type"]
        if kind == "event":
            self._record(node, message["event"])
        elif kind == "burst":
            self._crossing.take(message["record"])
        elif kind == "lost":
            self._lose(node, message["reason"])
        elif kind == "done":
            self.outcome.done[node] = message
        elif kind == "up" and self._t0_ns is not None:
            self._hand_job(node)
        elif kind == "ready" and self._t0_ns is not None:
            self.session.switchboard.send(node, "start", t0_ns=self._t0_ns)

    def _spare(self) -> LostWorkerBudget:
        """The workers that the exchange can do without."""
        workers = [name for name, spec in self._training.items() if spec.role == "worker"]
        kind, row = exchanges.get(self.algorithm.exchange), self.algorithm
        return LostWorkerBudget(workers, kind.max_lost_workers(row.exchange_options, len(workers)))

    def _lose(self, node: str, reason: str) -> None:
        """The session goes on without ``node``: once, in its own records."""
        if node in self._lost or self._t0_ns is None:
            return
        self._lost.add(node)
        spec, at_s = self._specs[node], (time.monotonic_ns() - self._t0_ns) / 1e9
        step = self._steps.get(node, 0) + 1
        record = LostRecord(node, node, step, at_s, reason)
        self.directory.event(spec.role, spec.rank, record.to_json())

    def _record(self, node: str, event: dict[str, Any]) -> None:
        spec = self._specs[node]
        self.directory.event(spec.role, spec.rank, event)
        if event["kind"] == "lost":
            self._give_up(event)
        if event.get("step") is not None:
            self._steps[node] = event["step"]
        self.progress.event(event)

    def _give_up(self, event: dict[str, Any]) -> None:
        """The server goes on without a worker: so does the session. Raises NodeLost where it
        cannot."""
        lost = NodeLost(event["lost"], event.get("step"), event["reason"])
        if event["lost"] in self.outcome.done:
            return
        if (forgiven := self.session.forgive(lost)) is None:
            raise lost
        self._lose(forgiven.node, forgiven.reason)

    def _samples(self, samples: list[dict[str, Any]]) -> None:
        """Called in the agent client's reader thread.

        A node that is paused reads nothing: what was sent to it would fill up, and then hold up
        everybody.
        """
        self.directory.link(samples)
        for sample in samples:
            self.progress.link(sample)
            if sample["kind"] == "sample":
                for name in self._hearers.get(sample["link"], ()):
                    if name not in self.session.paused:
                        self.session.tell(name, "link", sample=sample)
