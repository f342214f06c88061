"""One foreign job from its links' t0 to its last process's end, the hosts of its cross traffic,
and its connections and interfaces watched.
"""

from __future__ import annotations

import os
import queue
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from testbed.compatibility import resolve
from testbed.errors import ExperimentError, NarrowsError
from testbed.links.agent.client import LinkReport
from testbed.links.agent.protocol import InterfaceSeen, SocketSeen
from testbed.links.network.namespaces import OWN
from testbed.records.events import Event
from testbed.records.job_steps import CarriedRecord, MarkRecord, ProcessRecord, SocketRecord
from testbed.records.run_directory import RunDirectory
from testbed.runner.cross_traffic import TrialCrossTraffic
from testbed.runner.exec.launch_spec import LaunchSpec, ProcessSlot, variables
from testbed.runner.exec.mark_listener import HeardMark, MarkListener
from testbed.runner.exec.processes import Member, ProcessGroup
from testbed.runner.node_events import HostWatch, NodeEventScheduler
from testbed.runner.progress import Progress
from testbed.runner.session import Session, backlog_drops, lead_s, shape
from testbed.scenario.load import Loaded
from testbed.scenario.node_timeline import node_changes
from testbed.topology import NodeSpec
from testbed.training.job import Job
from testbed.user_files import Output

if TYPE_CHECKING:
    from testbed.links.agent.client import AgentClient
    from testbed.topology import NodePlacement


READY_S = 60.0
"""How long hosts may take to be ready."""


class TrafficHosts:
    """All hosts of a session. ``write`` gets the records of their traffic."""

    def __init__(
        self, session: Session, loaded: Loaded, write: Callable[[dict[str, Any]], None]
    ) -> None:
        self._session, self._scenario = session, loaded.wall()
        self._crossing = TrialCrossTraffic(session, self._scenario, loaded.timeline(), write)
        self._hosts = {spec.name: spec for spec in session.specs if spec.role == "host"}
        self._t0_ns: int | None = None

    @property
    def crossed(self) -> set[str]:
        """Names of the links that their traffic may be on."""
        return self._crossing.links

    def prepare(self) -> None:
        """Tell every host of its part, and wait until all are ready."""
        for name in self._hosts:
            self._hand_over(name)
        self._session.await_all("ready", self._hosts, READY_S, self.take)

    def start(self, t0_ns: int) -> None:
        """Their traffic counts from t0."""
        self._t0_ns = t0_ns
        for name in self._hosts:
            self._session.tell(name, "start", t0_ns=t0_ns)

    def take(self, node: str, message: dict[str, Any]) -> None:
        """A host's message; one that was restarted joins in again. Raises ExperimentError for
        traffic that failed."""
        kind = message["type"]
        if kind == "burst":
            self._crossing.take(message["record"])
        elif kind == "up" and self._t0_ns is not None:
            self._hand_over(node)
        elif kind == "ready" and self._t0_ns is not None:
            self._session.tell(node, "start", t0_ns=self._t0_ns)

    def end(self) -> None:
        """End their traffic; nothing happens where it never started."""
        if self._t0_ns is None:
            return
        self._t0_ns = None
        self._crossing.end(self.take)

    def _hand_over(self, name: str) -> None:
        """A host trains nothing: of its job only its name matters."""
        scenario, spec = self._scenario, self._hosts[name]
        job = Job(
            run=1,
            algorithm=resolve("none"),
            train=scenario.train,
            seed=0,
            workers=0,
            node=name,
            rank=spec.rank,
            peer=spec.peer,
            peer_timeout_s=float(scenario.peer_timeout),
        )
        labels = {"run": self._session.directory.name, "scenario": scenario.name}
        self._session.tell(
            name,
            "job",
            job=job.to_json(),
            role="host",
            peers={},
            addresses={},
            traffic=self._crossing.part(name),
            labels={**labels, "algorithm": "none", "role": "host", "node": name},
        )


DATA, CONTROL, LOOPBACK = "data", "control", "loopback"


class Owner(NamedTuple):
    """Whose an address is, and of what kind its interface."""

    node: str
    role: str


def role_of(interface: InterfaceSeen, data: int) -> str:
    """``data``: the index of the shaped one."""
    if interface.loopback:
        return LOOPBACK
    return DATA if interface.index == data else CONTROL


def owners(
    seen: Mapping[str, Iterable[InterfaceSeen]], data: Mapping[str, int]
) -> dict[str, Owner]:
    """Return the owner of each address, but for those of loopbacks, which every node has."""
    return {
        address: Owner(node, role_of(interface, data[node]))
        for node, interfaces in seen.items()
        for interface in interfaces
        if not interface.loopback
        for address in interface.addresses
    }


def carried(
    node: str, before: Sequence[InterfaceSeen], after: Sequence[InterfaceSeen], data: int
) -> Iterator[CarriedRecord]:
    """Yield what each interface carried between two looks; a new interface's, since it was made."""
    first = {interface.index: interface for interface in before}
    for now in after:
        grown = now.since(first[now.index]) if now.index in first else now
        yield CarriedRecord(
            node=node,
            interface=now.name,
            role=role_of(now, data),
            sent_bytes=grown.sent_bytes,
            sent_packets=grown.sent_packets,
            received_bytes=grown.received_bytes,
            received_packets=grown.received_packets,
        )


def connection(
    node: str, seen: SocketSeen, known: Mapping[str, Owner], seconds: Callable[[int], float]
) -> SocketRecord:
    """A connection with the names of both ends. ``known``: whose addresses are; ``seconds``: of the
    run's clock."""
    peer, role = _other_end(node, seen, known)
    return SocketRecord(
        node=node,
        own=seen.own,
        peer=seen.peer,
        peer_node=peer,
        interface=role,
        bytes_sent=seen.bytes_sent,
        bytes_received=seen.bytes_received,
        segments_out=seen.segments_out,
        retransmitted=seen.retransmitted,
        bytes_retransmitted=seen.bytes_retransmitted,
        least_rtt_us=seen.least_rtt_us,
        ended_s=None if seen.ended_ns is None else seconds(seen.ended_ns),
    )


def _other_end(node: str, seen: SocketSeen, known: Mapping[str, Owner]) -> tuple[str | None, str]:
    """Whose the other end is, and the interface on the way there: where it is, unless it is of no
    node."""
    own, peer = known.get(address_of(seen.own)), known.get(address_of(seen.peer))
    if own is None or (peer is not None and peer.node == node):
        return node, LOOPBACK  # an address that no other interface has, or its own
    if peer is None:
        return None, own.role
    return peer.node, peer.role


def address_of(end: str) -> str:
    """Without its port, and the brackets of IPv6."""
    return end.rpartition(":")[0].strip("[]")


class BypassMonitor:
    """Watches the nodes at ``places`` until ``end``. Raises ExperimentError where the agent
    cannot."""

    def __init__(self, agent: AgentClient, places: Mapping[str, NodePlacement]) -> None:
        netns = {node: place.nic.netns or OWN for node, place in places.items()}
        self._agent = agent
        self._data = {node: place.nic.index for node, place in places.items()}
        self._before = agent.watch(netns)
        self.missed: list[str] = []
        """Why connections are missing, a sentence for each node of which some are; known at the
        end."""

    def end(self, seconds: Callable[[int], float]) -> Iterator[tuple[str, Event]]:
        """Yield a node and a record, for everything that was seen. ``seconds``: an instant in the
        run's seconds."""
        watched = self._agent.watched()
        known = owners({node: found.interfaces for node, found in watched.items()}, self._data)
        for node, found in watched.items():
            for interface in carried(node, self._before[node], found.interfaces, self._data[node]):
                yield node, interface
            for seen in found.sockets:
                yield node, connection(node, seen, known, seconds)
            if found.missed is not None:
                self.missed.append(f"{node}: {found.missed}")


LOOK_S = 0.2
"""How often it is looked whether processes have ended."""
QUIET_AFTER_S = 0.2
"""From the last process's end to the last look at the links."""
MARKS_AT_ONCE = 10_000
"""Marks that are written down before it is looked at anything else."""
BEGIN_S = float(os.environ.get("NARROWS_BEGIN_S", "600"))
"""How long processes may take to call ``testbed.mark.begin``, where they are waited for."""


class ExecTrial:
    """``run`` it once. What it leaves is in ``directory`` and in the attributes."""

    def __init__(
        self,
        session: Session,
        loaded: Loaded,
        order: LaunchSpec,
        hearing: MarkListener,
        output: Output,
        directory: RunDirectory,
        progress: Progress,
    ) -> None:
        self._session, self._loaded, self._order = session, loaded, order
        self._hearing, self._directory, self._progress = hearing, directory, progress
        self._specs = {spec.name: spec for spec in session.specs}
        self.crew, self._output = ProcessGroup(session.fabric, order, output), output
        self._timeline = loaded.timeline()
        self.bystanders = TrafficHosts(session, loaded, directory.traffic)
        self._t0_ns: int | None = None
        self.watch: BypassMonitor | None = None
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
        watches: list[HostWatch | NodeEventScheduler] = []
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

    def seats(self) -> Iterator[ProcessSlot]:
        """A place for every process that is started here."""
        names = [spec.name for spec in working(self._session.specs)]
        places = self._session.places
        for node_rank, name in enumerate(names):
            for local_rank in range(self._order.started):
                yield ProcessSlot(
                    nodes=names,
                    node_rank=node_rank,
                    local_rank=local_rank,
                    address=places[name].data_address,
                    master=places[names[0]].data_address,
                    interface=places[name].nic.name,
                )

    def _start(self) -> None:
        self.watch = BypassMonitor(self._session.fabric.agent, self._session.places)
        seats = list(self.seats())
        threads = self._order.threads(os.cpu_count() or 1, len(working(self._session.specs)))
        for seat in seats:
            marks = self._hearing.path(seat.node)
            self.crew.start(seat, variables(self._order, seat, marks, threads))
        self._progress.say(f"{len(seats)} processes: {' '.join(self._order.command)}")

    def _begin(self, watches: list[HostWatch | NodeEventScheduler]) -> None:
        """Agree on t0, wait for it, and watch from then on."""
        t0_ns = time.monotonic_ns() + int(lead_s(self._timeline) * 1e9)
        self._session.fabric.agent.start(t0_ns, self._timeline.changes(0.0, float("inf")))
        self._t0_ns = t0_ns
        self._hearing.release(t0_ns)
        self.bystanders.start(t0_ns)
        watches.append(HostWatch(t0_ns, self._directory.link))
        changes = node_changes(self._loaded.wall())
        watches.append(NodeEventScheduler(self._session, changes, t0_ns, self._directory.link))
        while (left := (t0_ns - time.monotonic_ns()) / 1e9) > 0:
            time.sleep(left)

    def _await_begin(self) -> None:
        """Raises ExperimentError when processes end, or too much time passes, before all are
        ready."""
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
        """Take marks that have come, once there is a t0, and no more at a time than leaves time to
        look at the rest."""
        if self._t0_ns is None:
            return
        with suppress(queue.Empty):
            for _ in range(MARKS_AT_ONCE):
                self._mark(self._hearing.heard.get_nowait())

    def _mark(self, heard: HeardMark) -> None:
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
        """Write what is known of every process, and the marks that came last."""
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
                f"{self._hearing.strangers} connections of other users to the marks' sockets were "
                "refused"
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
        """Write what every node moved, by whatever route."""
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
