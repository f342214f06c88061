"""One job from its links' t0 to its last process's end."""

from __future__ import annotations

import os
import queue
import time
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from typing import Any

from testbed.errors import ExperimentError, NarrowsError
from testbed.fabric.base import NodeSpec
from testbed.job.bystanders import Bystanders
from testbed.job.crew import Crew, Member
from testbed.job.hearing import Heard, Hearing
from testbed.job.order import Order, Seat, variables
from testbed.job.output import Output
from testbed.job.watch import Watch
from testbed.links.client import LinkReport
from testbed.record.directory import RunDirectory
from testbed.record.job_events import MarkRecord, ProcessRecord
from testbed.scenario.load import Loaded
from testbed.scenario.node_events import node_changes
from testbed.session.conditions import backlog_drops, lead_s, shape
from testbed.session.disturbance import Disturbances
from testbed.session.host_watch import HostWatch
from testbed.session.progress import Progress
from testbed.session.session import Session

LOOK_S = 0.2
"""How often it is looked whether processes have ended."""
QUIET_AFTER_S = 0.2
"""From the last process's end to the last look at the links."""
MARKS_AT_ONCE = 10_000
"""Marks that are written down before it is looked at anything else."""
BEGIN_S = float(os.environ.get("NARROWS_BEGIN_S", "600"))
"""How long processes may take to call ``testbed.mark.begin``, where they are waited for."""


class Performance:
    """``run`` it once. What it leaves is in ``directory`` and in the attributes."""

    def __init__(
        self,
        session: Session,
        loaded: Loaded,
        order: Order,
        hearing: Hearing,
        output: Output,
        directory: RunDirectory,
        progress: Progress,
    ) -> None:
        self._session, self._loaded, self._order = session, loaded, order
        self._hearing, self._directory, self._progress = hearing, directory, progress
        self._specs = {spec.name: spec for spec in session.specs}
        self.crew, self._output = Crew(session.fabric, order, output), output
        self._timeline = loaded.timeline()
        self.bystanders = Bystanders(session, loaded, directory.traffic)
        self._t0_ns: int | None = None
        self.watch: Watch | None = None
        self.processes = order.processes
        self.links: LinkReport | None = None
        self.backlog_drops = 0
        self.seconds = 0.0
        """From t0 to the last process's end."""

    def shape(self) -> dict[str, Any]:
        """Bring every link to its state at t0. Returns what the kernel holds."""
        return shape(self._session, self._loaded, self._timeline, self._directory.link, gapped=True)

    def run(self) -> None:
        """Raises ExperimentError when a process fails, with its node and its last words."""
        dropped, agent = backlog_drops(), self._session.fabric.agent
        watches: list[HostWatch | Disturbances] = []
        failed = True
        try:
            self.bystanders.prepare()
            if self._order.await_begin:
                self._start()
                self._await_begin()
                self._begin(watches)
            else:
                self._begin(watches)
                self._start()
            self._attend()
            self.bystanders.end()
            time.sleep(QUIET_AFTER_S)
            failed = False
        finally:
            with suppress(NarrowsError) if failed else nullcontext():
                self.crew.end_all()
            for watch in watches:
                with suppress(NarrowsError, OSError) if failed else nullcontext():
                    watch.stop()
            if self._t0_ns is not None and agent.alive():
                with suppress(NarrowsError) if failed else nullcontext():
                    self.links = agent.stop()
                with suppress(NarrowsError) if failed else nullcontext():
                    self._write_moved()
            self.backlog_drops = backlog_drops() - dropped
            self._write()
        self._raise_failure()

    def seats(self) -> Iterator[Seat]:
        """A place for every process that is started here."""
        names = [spec.name for spec in working(self._session.specs)]
        places = self._session.places
        for node_rank, name in enumerate(names):
            for local_rank in range(self._order.started):
                yield Seat(
                    nodes=names,
                    node_rank=node_rank,
                    local_rank=local_rank,
                    address=places[name].data_address,
                    master=places[names[0]].data_address,
                    interface=places[name].nic.name,
                )

    def _start(self) -> None:
        self.watch = Watch(self._session.fabric.agent, self._session.places)
        seats = list(self.seats())
        threads = self._order.threads(os.cpu_count() or 1, len(working(self._session.specs)))
        for seat in seats:
            marks = self._hearing.path(seat.node)
            self.crew.start(seat, variables(self._order, seat, marks, threads))
        self._progress.say(f"{len(seats)} processes: {' '.join(self._order.command)}")

    def _begin(self, watches: list[HostWatch | Disturbances]) -> None:
        """Agree on t0, wait for it, and watch from then on."""
        t0_ns = time.monotonic_ns() + int(lead_s(self._timeline) * 1e9)
        self._session.fabric.agent.start(t0_ns, self._timeline.changes(0.0, float("inf")))
        self._t0_ns = t0_ns
        self._hearing.release(t0_ns)
        self.bystanders.start(t0_ns)
        watches.append(HostWatch(t0_ns, self._directory.link))
        changes = node_changes(self._loaded.wall())
        watches.append(Disturbances(self._session, changes, t0_ns, self._directory.link))
        while (left := (t0_ns - time.monotonic_ns()) / 1e9) > 0:
            time.sleep(left)

    def _await_begin(self) -> None:
        """Raises ExperimentError when processes end, or too much time passes, before all are ready."""
        nodes = len(working(self._session.specs))
        everybody = set(range(nodes * self._order.processes))
        give_up = time.monotonic() + BEGIN_S
        while missing := everybody - self._hearing.waiting:
            self._look()
            if self.crew.failed:
                self._raise_failure()
            late = time.monotonic() > give_up
            if late or len(self.crew.running) < nodes * self._order.started:
                listed = ", ".join(map(str, sorted(missing)))
                within = f" within {BEGIN_S:g} s (NARROWS_BEGIN_S gives more)" if late else ""
                raise ExperimentError(
                    f"--await-begin: ranks {listed} never called mark.begin(){within}"
                )

    def _attend(self) -> None:
        """Until no process runs."""
        stop_at = float("inf")
        if self._order.seconds is not None:
            stop_at = time.monotonic() + self._order.seconds
        while self.crew.running:
            self._look()
            self.crew.excuse(self._session.killed_ns)
            self.crew.tend()
            if time.monotonic() > stop_at:
                self._progress.say("the time is up")
                self.crew.end_all()

    def _look(self) -> None:
        """Take in what has come. Raises what went wrong with hosts, fabric or agent."""
        for node, message in self._session.messages(LOOK_S):
            self.bystanders.take(node, message)
        self._take_marks()

    def _take_marks(self) -> None:
        """What has come by now, once there is a t0, and no more at a time than leaves time to look at the rest."""
        if self._t0_ns is None:
            return
        with suppress(queue.Empty):
            for _ in range(MARKS_AT_ONCE):
                self._mark(self._hearing.heard.get_nowait())

    def _mark(self, heard: Heard) -> None:
        spec, said = self._specs[heard.node], heard.mark
        record = MarkRecord(
            node=heard.node,
            rank=heard.rank,
            local_rank=heard.local_rank,
            what=said.what,
            name=said.name,
            number=said.number,
            time_s=self._seconds(said.ns),
            values=said.values,
        )
        self._directory.event(spec.role, spec.rank, record.to_json())

    def _write(self) -> None:
        """What is known of every process, and the marks that came last."""
        if self._t0_ns is None:
            return
        self._hearing.close()
        while not self._hearing.heard.empty():
            self._take_marks()
        for node, count in sorted(self._hearing.left_out.items()):
            self._progress.say(
                f"{node}: {count} marks that made no sense, or came too fast, were left out"
            )
        if self._hearing.strangers:
            self._progress.say(
                f"{self._hearing.strangers} connections of other users to the marks' sockets were refused"
            )
        for member in self.crew.members:
            spec, ended_ns = self._specs[member.seat.node], member.ended_ns or time.monotonic_ns()
            record = ProcessRecord(
                node=spec.name,
                rank=member.rank,
                local_rank=member.seat.local_rank,
                started_s=self._seconds(member.started_ns),
                ended_s=self._seconds(ended_ns),
                status=member.status or 0,
                asked=member.asked,
            )
            self.seconds = max(self.seconds, record.ended_s)
            self._directory.event(spec.role, spec.rank, record.to_json())

    def _write_moved(self) -> None:
        """What every node moved, by whatever way."""
        if self.watch is None:
            return
        for node, record in self.watch.end(self._seconds):
            spec = self._specs[node]
            self._directory.event(spec.role, spec.rank, record.to_json())

    def _seconds(self, monotonic_ns: int) -> float:
        return (monotonic_ns - (self._t0_ns or 0)) / 1e9

    def _raise_failure(self) -> None:
        if not (failed := self.crew.failed):
            return
        first: Member = failed[0]
        node, status = first.seat.node, first.status or 0
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        last = self._output.last.get((node, first.seat.local_rank))
        said = f"; its last output: {last}" if last else "; it printed nothing"
        more = f" ({len(failed) - 1} others failed, too)" if len(failed) > 1 else ""
        raise ExperimentError(f"rank {first.rank} on node {node!r} {how}{said}{more}")


def working(specs: list[NodeSpec]) -> list[NodeSpec]:
    """The nodes that commands run in, by rank."""
    return sorted((spec for spec in specs if spec.role != "host"), key=lambda spec: spec.peer)
