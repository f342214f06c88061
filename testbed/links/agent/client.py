"""The controller's end of the links agent: one process, spoken to over pipes."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import count, islice
from threading import Event, Lock, Thread
from typing import IO, Any

from testbed.errors import ExperimentError, WireError
from testbed.journal import Journal
from testbed.links.agent.protocol import (
    InterfaceSeen,
    LinkSettings,
    Object,
    Watched,
    change_to_json,
    dump,
    error_from_json,
    lines_of,
    read,
)
from testbed.links.capabilities import Capabilities
from testbed.links.network.wiring import RackPlan, Racks, Resident, TopologyPlan, hops
from testbed.links.replay.delivery_report import EndReport
from testbed.links.tc.parameters import ALIAS
from testbed.process import environment, module_command
from testbed.scenario.link_state import LinkChange, LinkDirection, LinkState
from testbed.topology import Cable, Interface, NodePlacement

_ANSWER_S, _LATEST_S = 60.0, 600.0
"""An agent that says nothing for so long does not answer; one that still hands over records has
until then: of hundreds of links there may be many before its answer."""
_END_S = 15.0
_NO_ANSWER = (AttributeError, LookupError, TypeError, ValueError, RecursionError, WireError)
"""Errors of reading a line that is no answer."""
AHEAD_S, EVERY_S = 45.0, 5.0
"""The agent knows at least 40 s ahead: an outage's end is known long before it comes."""

_BATCH = 2000
"""Changes in one message, so that none is long to read."""


@dataclass(frozen=True, slots=True)
class LinkReport:
    """How every link direction followed its history."""

    links: tuple[EndReport, ...]

    def to_json(self) -> dict[str, Any]:
        """``{"links": [...]}``, one object per link direction."""
        return {"links": [asdict(end) for end in self.links]}


class ConnectedAgent:
    """A links agent at the other end of a connection, as its process would be here."""

    pid = 0

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self.stdin: IO[str] | None = connected.makefile("w", encoding="utf-8", newline="\n")
        self.stdout: IO[str] | None = connected.makefile("r", encoding="utf-8", errors="replace")
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """None: the other end is noticed when it is read."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """End the connection: nothing more is to be waited for."""
        del timeout
        self.kill()
        return 0

    def terminate(self) -> None:
        """Its input ends: it undoes what it made."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def kill(self) -> None:
        """End both directions."""
        self.returncode = 0
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


AgentProcess = subprocess.Popen[str] | ConnectedAgent


class AgentGone(ExperimentError):
    """The agent's process has ended, whatever it was asked."""


class AgentClient:
    """Starts ``command``, which must be a links agent, or takes ``process``; speaks to it.

    ``on_sample`` gets link records (``LinkSample`` and ``LinkChanged`` as JSON objects) in the
    thread that reads; it may be set at any time. ``journal`` learns of devices that outlive an
    agent that is killed. Every call raises the agent's own error (MachineError, LinkError,
    InputError), or ExperimentError when the agent is gone.
    """

    def __init__(
        self,
        command: Sequence[str] = (),
        *,
        process: AgentProcess | None = None,
        journal: Journal | None = None,
    ) -> None:
        self.on_sample: Callable[[list[dict[str, Any]]], None] | None = None
        self._journal = journal
        self._waiting: dict[int, Future[Any]] = {}
        self._numbers, self._lock = count(1), Lock()
        self._feeder: ScheduleFeeder | None = None
        self._complaint: BaseException | None = None
        self._deaf: ExperimentError | None = None
        """Why nobody hears the agent any more."""
        self._heard = 0.0
        self._process: AgentProcess = _started(command) if process is None else process
        self._reader = Thread(target=self._read, name="links agent", daemon=True)
        self._reader.start()

    @classmethod
    def local(cls, *, journal: Journal | None = None) -> AgentClient:
        """An agent of this host, as this user."""
        return cls(module_command("testbed.links.agent.server"), journal=journal)

    @property
    def pid(self) -> int:
        """Process id of the command that was started."""
        return self._process.pid

    def alive(self) -> bool:
        """Return whether the process runs."""
        return self._process.poll() is None

    def ahead_ns(self, node: str) -> int:  # noqa: ARG002
        """Nanoseconds by which a node's host is ahead of this one: here it is the same."""
        return 0

    def hosts(self) -> list[dict[str, Any]]:
        """The hosts that nodes are on, for the manifest, where they are several."""
        return []

    def capabilities(self) -> Capabilities:
        """Return the kernel's capabilities, tried out where the agent runs."""
        return read(Capabilities, self._call("capabilities"))

    def build(self, plan: TopologyPlan) -> dict[str, tuple[Interface, Interface]]:
        """Make nodes as namespaces; by name, their NIC and its port at the switch."""
        return read(dict[str, tuple[Interface, Interface]], self._call("build", plan=plan))

    def racks(self, plan: RackPlan) -> Racks:
        """Put nodes into racks; their ports are then elsewhere. Undone with everything else."""
        if self._journal is not None:
            if plan.own:
                self._journal.add("namespace", name=plan.netns)
            for rack in plan.racks:
                netns = None if plan.own else plan.netns
                self._journal.add("link", name=rack.port, alias=plan.alias, netns=netns)
        return read(Racks, self._call("racks", plan=plan))

    def fill_neighbour_tables(self, places: Iterable[NodePlacement], switch_address: str) -> None:
        """Have everyone on a data network know everyone else: nobody asks while it is measured."""
        known = {node.data_address: node for node in places}
        nodes = [Resident(at.nic.netns, at.nic.index, own) for own, at in known.items()]
        port = next(iter(known.values())).port
        switch = Resident(port.netns, port.index, switch_address)
        self._call("acquaint", residents=nodes, switch=switch)

    def tear_down(self) -> list[str]:
        """Undo everything that the agent made; returns what it could not undo, in words."""
        failures: list[str] = self._call("unbuild")
        return failures

    def leave_standing(self) -> None:
        """Have everything left standing when the agent ends."""
        self._call("keep")

    def locate(self, netns: str, mac: str) -> tuple[Interface, Interface]:
        """A container's interface by its address, and the switch's end of its cable."""
        return read(tuple[Interface, Interface], self._call("locate", netns=netns, mac=mac))

    def prepare(
        self,
        cables: Mapping[str, Cable],
        shapes: Mapping[LinkDirection, LinkState],
        settings: LinkSettings,
        impaired: Collection[LinkDirection] = (),
    ) -> dict[str, Any]:
        """Shape every end; later calls change in place. Returns what the kernel holds, read back.

        ``impaired``: ends that will have impairments though they begin with none. ``{"links":
        [{"link", "direction", "at", "device", "rate_bits", "limit_bytes", "line", …}], …}``;
        ``line``: ``{"device", "impairments", "limit_packets", "read_back"}``, or None for an end
        without any. A rate of 0 lets nothing pass until t0 and is an outage from then on. Raises
        LinkError (asked for, held) and MachineError (congestion control, no netem).
        """
        self._journal_ifbs(cables, shapes, settings, impaired)
        actual: dict[str, Any] = self._call(
            "prepare",
            cables=dict(cables),
            shapes=[(end, shape.to_json()) for end, shape in shapes.items()],
            settings=settings,
            impaired=list(impaired),
        )
        return actual

    def start(self, t0_ns: int, changes: Iterator[LinkChange]) -> None:
        """Replay ``changes`` (by time, possibly endless) from ``t0_ns`` of the monotonic clock."""
        self._feeder = ScheduleFeeder(t0_ns, changes, self._call)
        self._feeder.begin()

    def stop(self) -> LinkReport:
        """End the replay; the last samples have been handed over when this returns."""
        if self._feeder is not None:
            self._feeder.end()
            self._feeder = None
        report = LinkReport(tuple(EndReport(**end) for end in self._call("stop")))
        if self._complaint is not None:
            complaint, self._complaint = self._complaint, None
            raise complaint
        return report

    def watch(self, nodes: Mapping[str, str]) -> dict[str, list[InterfaceSeen]]:
        """Follow all TCP connections of nodes, by namespace; returns interface counters."""
        return read(dict[str, list[InterfaceSeen]], self._call("watch", nodes=dict(nodes)))

    def watched(self) -> dict[str, Watched]:
        """Follow them no longer; by node, what there was."""
        return read(dict[str, Watched], self._call("watched"))

    def close(self) -> None:
        """Let the agent undo everything and end; safe to call at any time, and twice."""
        if self._feeder is not None:
            self._feeder.end()
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()
        for give_up in (self._process.terminate, self._process.kill, lambda: None):
            try:
                self._process.wait(_END_S)
                break
            except subprocess.TimeoutExpired:
                give_up()
        self._reader.join(_END_S)
        if self._process.stdout is not None and not self._reader.is_alive():
            self._process.stdout.close()

    def _call(self, operation: str, **fields: Any) -> Any:
        answer: Future[Any] = Future()
        with self._lock:
            if self._deaf is not None:
                raise self._deaf
            number = next(self._numbers)
            self._waiting[number] = answer
            line = dump({"id": number, "op": operation, **fields}) + "\n"
            try:
                assert self._process.stdin is not None
                self._process.stdin.write(line)
                self._process.stdin.flush()
            except (OSError, ValueError) as error:
                self._waiting.pop(number, None)
                raise self._gone() from error
        begun = time.monotonic()
        while True:
            try:
                return answer.result(_ANSWER_S)
            except TimeoutError as error:
                now = time.monotonic()
                if now - self._heard > _ANSWER_S or now - begun > _LATEST_S:
                    raise ExperimentError(
                        f"the links agent did not answer {operation!r} within {now - begun:.0f} s"
                    ) from error

    def _read(self) -> None:
        assert self._process.stdout is not None
        wrong: ExperimentError | None = None
        try:
            with suppress(OSError):  # the connection was reset: its end, too
                for line in lines_of(self._process.stdout):
                    self._heard = time.monotonic()
                    self._take(json.loads(line))
        except _NO_ANSWER as error:
            wrong = ExperimentError(f"the links agent said what is no answer: {error!r:.200}")
            self._process.terminate()  # nobody hears it any more: it undoes what it made
        with self._lock:
            self._deaf = wrong
            waiting, self._waiting = self._waiting, {}
        for answer in waiting.values():
            answer.set_exception(wrong or self._gone())

    def _take(self, message: Object) -> None:
        if "records" in message:
            try:
                if self.on_sample is not None:
                    self.on_sample(message["records"])
            except Exception as error:  # raised again by ``stop``: here it would end the reader
                self._complaint = self._complaint or error
            return
        failed = "error" in message
        outcome = error_from_json(message["error"]) if failed else message["ok"]
        number = message["id"]
        if not isinstance(number, int):  # an empty dictionary would not even look at it
            raise TypeError(f"the number of a question is {number!r:.100}")
        with self._lock:
            answer = self._waiting.pop(number, None)
        if answer is not None:
            (answer.set_exception if failed else answer.set_result)(outcome)

    def _gone(self) -> ExperimentError:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        code = self._process.returncode
        how = f"by signal {-code}" if code is not None and code < 0 else f"with status {code}"
        return AgentGone(f"the links agent ended {how}: the links are not shaped any more")

    def _journal_ifbs(
        self,
        cables: Mapping[str, Cable],
        shapes: Mapping[LinkDirection, LinkState],
        settings: LinkSettings,
        impaired: Collection[LinkDirection],
    ) -> None:
        """Intermediate devices in the host's namespace would outlive a killed agent."""
        if self._journal is None:
            return
        noted = {entry.get("name") for entry in self._journal.entries}
        for end, shape in shapes.items():
            placement = hops(end, cables[end.link], settings.at.get(end.link, "nic"))
            delayed = shape.impairments or end in impaired
            for hop in placement if delayed else (placement.queue,):
                needs_ifb = hop.passing == "arriving" and hop.interface.netns is None
                if needs_ifb and hop.device not in noted:
                    self._journal.add("link", name=hop.device, alias=ALIAS)
                    noted.add(hop.device)


def _started(command: Sequence[str]) -> AgentProcess:
    """In a session of its own: Ctrl-C is the controller's to hear; it sees its input close."""
    return subprocess.Popen(
        list(command),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        errors="replace",
        env=environment(),
        start_new_session=True,
    )


class ScheduleFeeder:
    """Hands a possibly endless history to the agent, always a good while ahead of the clock.

    ``call(operation, **fields)`` is how the agent is asked.
    """

    def __init__(self, t0_ns: int, changes: Iterator[LinkChange], call: Callable[..., Any]) -> None:
        self._t0_ns, self._changes, self._call = t0_ns, changes, call
        self._next: LinkChange | None = None
        self._exhausted = False
        self._stop = Event()
        self._thread = Thread(target=self._run, name="feeder", daemon=True)

    def begin(self) -> None:
        """Start the replay with the first stretch of the history."""
        first = list(self._until(AHEAD_S))
        self._send("start", first, AHEAD_S, t0_ns=self._t0_ns)
        self._thread.start()

    def end(self) -> None:
        """Feed no more."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        # An agent that is gone is noticed by whoever asks it for something that matters.
        with suppress(ExperimentError):
            while not self._exhausted and not self._stop.wait(EVERY_S):
                ahead = max(0.0, (time.monotonic_ns() - self._t0_ns) / 1e9) + AHEAD_S
                self._send("feed", list(self._until(ahead)), ahead)

    def _send(
        self, operation: str, changes: list[LinkChange], known_to_s: float, **fields: Any
    ) -> None:
        remaining = iter(changes)
        while True:
            batch = list(islice(remaining, _BATCH))
            last = len(batch) < _BATCH
            known: float | None = known_to_s if last else batch[-1].time_s
            if last and self._next is not None:  # nothing comes before it
                known = self._next.time_s
            elif last and self._exhausted:
                known = None
            self._call(
                operation, changes=list(map(change_to_json, batch)), known_to_s=known, **fields
            )
            if last:
                return
            operation, fields = "feed", {}

    def _until(self, time_s: float) -> Iterator[LinkChange]:
        while True:
            change = self._next or next(self._changes, None)
            self._next = None
            if change is None:
                self._exhausted = True
                return
            if change.time_s >= time_s:
                self._next = change
                return
            yield change
