"""One foreign job from its links' t0 to its last process's end, the hosts of its cross traffic,
and its connections and interfaces watched; its processes, started in their nodes and followed.
"""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from testbed.errors import ExperimentError
from testbed.links.agent.protocol import InterfaceSeen, SocketSeen
from testbed.links.network.namespaces import OWN
from testbed.process import seconds_given, within
from testbed.records.events import Event
from testbed.records.job_steps import CarriedRecord, MarkRecord, ProcessRecord, SocketRecord
from testbed.runner.exec.judge import conclude
from testbed.runner.exec.launch_spec import LaunchSpec, ProcessSlot, variables
from testbed.runner.exec.mark_listener import HeardMark, MarkListener
from testbed.runner.real_links import RealTrial
from testbed.runner.session import Session
from testbed.runner.signals import shielded
from testbed.runner.trial import TrialPlan
from testbed.topology import NodeSpec
from testbed.user_files import Output, lines

if TYPE_CHECKING:
    from testbed.fabric.base import Fabric, Launched
    from testbed.links.agent.client import AgentClient
    from testbed.topology import NodePlacement


GRACE_S = 5.0
"""How long others may take to end when one has failed, and then after each signal."""
_ATTEMPTS, _LOOK_S = 3, 0.02
_LAST_WORDS_S = 1.0
"""From a process's end to that of its output, which children of it may hold open."""
_KILLED = 128
"""A shell says this and the signal's number."""


@dataclass
class Member:
    """One process. Times are of the monotonic clock; ``end_requested``: it was told to end."""

    slot: ProcessSlot
    rank: int
    process: Launched
    started_ns: int
    ended_ns: int | None = None
    end_requested: bool = False

    @property
    def status(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs."""
        code = self.process.returncode
        if code is None or not _KILLED < code < _KILLED + signal.NSIG:
            return code
        return _KILLED - code

    @property
    def failed(self) -> bool:
        """Return whether it ended badly, of its own accord."""
        return bool(self.status) and not self.end_requested


class ProcessGroup:
    """All of them, by rank. ``output`` gets what they say."""

    def __init__(self, fabric: Fabric, spec: LaunchSpec, output: Output) -> None:
        self._fabric, self._spec, self._output = fabric, spec, output
        self.members: list[Member] = []
        self._end_at: float | None = None
        self._number = signal.SIGTERM

    def start(self, slot: ProcessSlot, environment: Mapping[str, str]) -> None:
        """One more; a signal waits until it is a member, which is asked to end. Raises OSError
        where nothing can be started at all, RuntimeError where there can be no more threads: one
        that nobody follows would never be seen to end."""
        with shielded():
            process = self._fabric.launch(slot.node, self._spec.command, environment)
            rank = slot.node_rank * self._spec.processes + slot.local_rank
            member = Member(slot, rank, process, time.monotonic_ns())
            reader = threading.Thread(target=self._read, args=(member,), daemon=True)
            reader.start()
            threading.Thread(target=self._follow, args=(member, reader), daemon=True).start()
            self.members.append(member)

    @property
    def running(self) -> list[Member]:
        """Those that have not ended."""
        return [member for member in self.members if member.ended_ns is None]

    @property
    def failed(self) -> list[Member]:
        """Those that ended badly, the first of them first."""
        bad = [member for member in self.members if member.ended_ns is not None and member.failed]
        return sorted(bad, key=lambda member: member.ended_ns or 0)

    def excuse(self, killed_ns: Mapping[str, int]) -> None:
        """Excuse processes of nodes that the scenario killed, unless they had ended before."""
        for member in self.members:
            at_ns = killed_ns.get(member.slot.node)
            if at_ns is not None and (member.ended_ns is None or member.ended_ns >= at_ns):
                member.end_requested = True

    def tend(self) -> None:
        """When one has failed, give the others ``GRACE_S``, then SIGTERM, then SIGKILL."""
        if self._end_at is None and self.failed:
            self._end_at = time.monotonic() + GRACE_S
        if self._end_at is not None and time.monotonic() > self._end_at and self.running:
            self.end()

    def end(self) -> None:
        """Ask all that run to end; the second time, make them."""
        running = self.running
        for member in running:
            member.end_requested = True
        for node in {member.slot.node for member in running}:
            self._fabric.resume(node)  # one that stands still would not hear it
            self._fabric.signal(node, self._number)
        self._number, self._end_at = signal.SIGKILL, time.monotonic() + GRACE_S

    def end_all(self) -> None:
        """Ask all that run to end, make those that do not, and wait until it is so."""
        for _ in range(_ATTEMPTS):
            if not self.running:
                return
            self.end()
            within(GRACE_S, _LOOK_S, lambda: not self.running)

    def _follow(self, member: Member, reader: threading.Thread) -> None:
        """In a thread of its own: until the process has ended, and a little longer for its last
        words.

        What it has started may hold its output open for good: nobody waits for that.
        """
        member.process.wait()
        ended_ns = time.monotonic_ns()
        reader.join(_LAST_WORDS_S)
        member.ended_ns = ended_ns

    def _read(self, member: Member) -> None:
        pipe = member.process.stdout
        assert pipe is not None
        for line in lines(pipe):
            self._output.line(member.slot.node, member.slot.local_rank, line)


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
    interfaces: Mapping[str, Iterable[InterfaceSeen]], data: Mapping[str, int]
) -> dict[str, Owner]:
    """Return the owner of each address, but for those of loopbacks, which every node has."""
    return {
        address: Owner(node, role_of(interface, data[node]))
        for node, own in interfaces.items()
        for interface in own
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
        sent, received = (
            (grown.sent_bytes, grown.sent_packets),
            (grown.received_bytes, grown.received_packets),
        )
        yield CarriedRecord(node, now.name, role_of(now, data), *sent, *received)


def connection(
    node: str, socket: SocketSeen, known: Mapping[str, Owner], seconds: Callable[[int], float]
) -> SocketRecord:
    """A connection with both ends' names. ``known``: owners of addresses; ``seconds``: since t0."""
    peer, role = _other_end(node, socket, known)
    counts = asdict(socket)
    del counts["cookie"]
    ended_ns = counts.pop("ended_ns")
    ended_s = None if ended_ns is None else seconds(ended_ns)
    return SocketRecord(node=node, peer_node=peer, interface=role, ended_s=ended_s, **counts)


def _other_end(node: str, socket: SocketSeen, known: Mapping[str, Owner]) -> tuple[str | None, str]:
    """Return the node at the other end, if any, and the interface on the way there."""
    own, peer = known.get(address_of(socket.own)), known.get(address_of(socket.peer))
    if own is None or (peer is not None and peer.node == node):
        return node, LOOPBACK  # an address that no other interface has, or its own
    if peer is None:
        return None, own.role
    return peer.node, peer.role


def address_of(end: str) -> str:
    """Without its port, and the brackets of IPv6."""
    return end.rpartition(":")[0].strip("[]")


class BypassMonitor:
    """Watches nodes until ``end``. Raises ExperimentError where the agent cannot."""

    def __init__(self, agent: AgentClient, places: Mapping[str, NodePlacement]) -> None:
        netns = {node: placement.nic.netns or OWN for node, placement in places.items()}
        self._agent = agent
        self._data = {node: placement.nic.index for node, placement in places.items()}
        self._before = agent.watch(netns)
        self.missed: list[str] = []
        """Why connections are missing, a sentence for each such node; known at the end."""

    def end(self, seconds: Callable[[int], float]) -> Iterator[tuple[str, Event]]:
        """Yield a node and a record, for everything seen. ``seconds``: an instant after t0."""
        watched, data = self._agent.watched(), self._data
        known = owners({node: counts.interfaces for node, counts in watched.items()}, data)
        for node, counts in watched.items():
            for interface in carried(node, self._before[node], counts.interfaces, data[node]):
                yield node, interface
            for socket in counts.sockets:
                yield node, connection(node, socket, known, seconds)
            if counts.missed is not None:
                self.missed.append(f"{node}: {counts.missed}")


LOOK_S = 0.2
"""How often it is looked whether processes have ended."""
MARKS_AT_ONCE = 10_000
"""Marks that are written down before it is looked at anything else."""
BEGIN_S = seconds_given("NARROWS_BEGIN_S", 600.0)
"""How long processes may take to call ``testbed.mark.begin``, where they are waited for."""


class ExecTrial(RealTrial):
    """One foreign job; ``row``: see ``TrialPlan``. What it leaves is in its directory."""

    bursty = True
    has_steps = False
    prepare_s = 60.0
    """How long hosts may take to be ready."""

    def __init__(
        self,
        session: Session,
        plan: TrialPlan,
        spec: LaunchSpec,
        marks: MarkListener,
        output: Output,
    ) -> None:
        super().__init__(session, plan)
        self._spec, self._marks, self._output = spec, marks, output
        self._nodes = [node.name for node in working(session.specs)]
        self.group = ProcessGroup(session.fabric, spec, output)
        self._monitor: BypassMonitor | None = None
        self.seconds = 0.0
        """From t0 to the last process's end."""

    @property
    def awaits_begin(self) -> bool:
        """Return whether the history of the links begins when the job says so."""
        return self._spec.await_begin

    def conclude(self) -> dict[str, Any]:
        """Judge links, connections and interfaces; see ``exec.judge.conclude``."""
        missed = [] if self._monitor is None else self._monitor.missed
        return conclude(
            self.plan,
            self.outcome,
            seconds=self.seconds,
            processes=self._spec.processes,
            missed=missed,
        )

    def _perform(self) -> None:
        """Raises ExperimentError when a process fails, with its node and its last words."""
        self._assign()
        if self._spec.await_begin:
            self._start()
            self._await_begin()
            self._begin()
        else:
            self._begin()
            self._start()
        self._attend()
        self._end_traffic()
        self._raise_failure()

    def _begin(self) -> None:
        super()._begin()
        assert self.t0_ns is not None
        time.sleep(max(0.0, (self.t0_ns - time.monotonic_ns()) / 1e9))

    def _release(self, t0_ns: int) -> None:
        self._marks.release(t0_ns, self.session.ahead_ns)
        super()._release(t0_ns)

    def _endings(self) -> Iterator[Callable[[], None]]:
        yield self.group.end_all
        yield from super()._endings()
        if self.outcome.links is not None:
            yield self._write_moved
        if self.t0_ns is not None:
            yield self._write

    def slots(self) -> Iterator[ProcessSlot]:
        """Yield a slot for every process that is started here."""
        names, places = self._nodes, self.session.places
        for node_rank, name in enumerate(names):
            for local_rank in range(self._spec.started):
                yield ProcessSlot(
                    nodes=names,
                    node_rank=node_rank,
                    local_rank=local_rank,
                    address=places[name].data_address,
                    master=places[names[0]].data_address,
                    interface=places[name].nic.name,
                )

    def _start(self) -> None:
        self._monitor = BypassMonitor(self.agent, self.session.places)
        slots = list(self.slots())
        for slot in slots:
            marks, threads = self._marks.path(slot.node), self._threads(slot.node)
            self.group.start(slot, variables(self._spec, slot, marks, threads))
        self.progress.say(f"{len(slots)} processes: {' '.join(self._spec.command)}")

    def _threads(self, node: str) -> int:
        """Return with how many each process of a node should compute: nodes share their host's
        processors."""
        here: dict[str, Any] = {"nodes": self._nodes, "processors": os.cpu_count() or 1}
        host = next((host for host in self.agent.hosts() if node in host["nodes"]), here)
        sharing = len(set(self._nodes) & set(host["nodes"]))
        return self._spec.threads(int(host["processors"]), sharing)

    def _await_begin(self) -> None:
        """Raises ExperimentError when processes end, or time runs out, before all are ready."""
        everybody = set(range(len(self._nodes) * self._spec.processes))
        give_up = time.monotonic() + BEGIN_S
        while missing := everybody - self._marks.waiting:
            self._look()
            if self.group.failed:
                self._raise_failure()
            late = time.monotonic() > give_up
            if late or len(self.group.running) < len(self._nodes) * self._spec.started:
                listed = ", ".join(map(str, sorted(missing)))
                limit = f" within {BEGIN_S:g} s (NARROWS_BEGIN_S gives more)" if late else ""
                raise ExperimentError(
                    f"--await-begin: ranks {listed} never called mark.begin(){limit}"
                )

    def _attend(self) -> None:
        """Until no process runs."""
        stop_at = float("inf")
        if self._spec.seconds is not None:
            stop_at = time.monotonic() + self._spec.seconds
        while self.group.running:
            self._look()
            self.group.excuse(self.session.killed_ns)
            self.group.tend()
            if time.monotonic() > stop_at:
                self.progress.say("the time is up")
                self.group.end_all()

    def _look(self) -> None:
        """Take in what has come. Raises what went wrong with hosts, fabric or agent."""
        for node, message in self.session.messages(LOOK_S):
            self._on_message(node, message)
        self._take_marks()

    def _take_marks(self) -> None:
        """Take marks that have come since t0, so few that the rest is looked at, too."""
        if self.t0_ns is None:
            return
        with suppress(queue.Empty):
            for _ in range(MARKS_AT_ONCE):
                self._mark(self._marks.heard.get_nowait())

    def _mark(self, heard: HeardMark) -> None:
        spec, mark = self.specs[heard.node], heard.mark
        about = heard.node, heard.rank, heard.local_rank, mark.what, mark.name, mark.number
        at_ns = mark.ns - self.session.ahead_ns(heard.node)
        record = MarkRecord(*about, time_s=self._seconds(at_ns), values=mark.values)
        self.directory.event(spec.role, spec.rank, record.to_json())

    def _write(self) -> None:
        """Write what is known of every process, and the marks that came last."""
        self._marks.close()
        while not self._marks.heard.empty():
            self._take_marks()
        for node, count in sorted(self._marks.left_out.items()):
            self.progress.say(
                f"{node}: {count} marks that made no sense, or came too fast, were left out"
            )
        if self._marks.strangers:
            self.progress.say(
                f"{self._marks.strangers} connections of other users to the marks' sockets were "
                "refused"
            )
        for member in self.group.members:
            spec, ended_ns = self.specs[member.slot.node], member.ended_ns or time.monotonic_ns()
            record = ProcessRecord(
                node=spec.name,
                rank=member.rank,
                local_rank=member.slot.local_rank,
                started_s=self._seconds(member.started_ns),
                ended_s=self._seconds(ended_ns),
                status=member.status or 0,
                asked=member.end_requested,
            )
            self.seconds = max(self.seconds, record.ended_s)
            self.directory.event(spec.role, spec.rank, record.to_json())

    def _write_moved(self) -> None:
        """Write what every node moved, by whatever route."""
        if self._monitor is not None:
            for node, record in self._monitor.end(self._seconds):
                spec = self.specs[node]
                self.directory.event(spec.role, spec.rank, record.to_json())

    def _seconds(self, monotonic_ns: int) -> float:
        return (monotonic_ns - (self.t0_ns or 0)) / 1e9

    def _raise_failure(self) -> None:
        if not (failed := self.group.failed):
            return
        first: Member = failed[0]
        node, status = first.slot.node, first.status or 0
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        last = self._output.last.get((node, first.slot.local_rank))
        output = f"; its last output: {last}" if last else "; it printed nothing"
        more = f" ({len(failed) - 1} others failed, too)" if len(failed) > 1 else ""
        raise ExperimentError(f"rank {first.rank} on node {node!r} {how}{output}{more}")


def working(specs: list[NodeSpec]) -> list[NodeSpec]:
    """The nodes that commands run in, by rank."""
    return sorted((spec for spec in specs if spec.role != "host"), key=lambda spec: spec.peer)
