"""Nodes up, connected and ready for work, links brought to their state at t0, and everything gone
again at the end.

    with Session(specs, "netns", directory) as session: …

``keep_failed`` leaves a failed session standing for inspection until ``testbed clean --all``.
"""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from testbed.errors import ExperimentError, Interrupted, NarrowsError, NodeLost
from testbed.fabric.base import (
    START_S,
    ExecEnvironment,
    Networks,
    RunContext,
    SwarmOptions,
    fabrics,
    new_id,
)
from testbed.links.agent.protocol import LinkSettings
from testbed.links.tc.parameters import segments
from testbed.process import raise_open_files
from testbed.runner.control_channel import ControlServer
from testbed.runner.experiment import up_places
from testbed.runner.signals import Failures, shielded
from testbed.scenario.load import Loaded
from testbed.scenario.model import Scenario
from testbed.scenario.timeline import Timeline
from testbed.topology import CONTROL_PORT, Cable, NodePlacement, NodeSpec, RackSpec
from testbed.user_files import OpenedPath, PinnedFolder, last_line_in


class LostWorkerBudget:
    """``nodes``: who may be lost, ``count`` of them in all. ``lost``: who has been."""

    def __init__(self, nodes: Collection[str] = (), count: int = 0) -> None:
        self.nodes, self._count = frozenset(nodes), count
        self.lost: list[str] = []

    def lose(self, node: str) -> bool:
        """Count ``node`` as lost if the run can go on without it, too. Return whether it can."""
        if node in self.lost:
            return True
        if node not in self.nodes or len(self.lost) >= self._count:
            return False
        self.lost.append(node)
        return True


_AWAITED = {"up": "started (NARROWS_START_S gives more time)"}
"""Words for a kind of message that did not come, keyed by kind."""
LIVENESS_S = 1.0
"""How often the fabric is asked for dead nodes, and the agent for its health."""
_LISTEN_S, _ENDING_S = 1.0, 4.0
"""For how long further failures are listened to after the first; and for how long at most the
fabric is asked how a node ended whose connection is closed."""


class Session:
    """One fabric with its nodes, the agent and the control network."""

    networks: Networks
    places: dict[str, NodePlacement]
    cables: dict[str, Cable]
    control: ControlServer

    def __init__(
        self,
        specs: list[NodeSpec],
        fabric: str,
        directory: Path,
        *,
        quiet: bool = False,
        keep_failed: bool = False,
        folders: tuple[OpenedPath, ...] = (),
        racks: Sequence[RackSpec] = (),
        multicast: bool = False,
        exec_environment: ExecEnvironment | None = None,
        trains: bool = True,
        least: int = 1,
        folder: PinnedFolder | None = None,
        swarm: SwarmOptions | None = None,
    ) -> None:
        raise_open_files()
        self.racks = tuple(racks)
        self.least = least
        """Packets in an offload bundle that the machine needs, as ``preflight.check`` found."""
        self.killed: dict[str, str] = {}
        """Nodes that an event of the scenario has killed, each with what to say of it."""
        self.killed_ns: dict[str, int] = {}
        """When that was, by the monotonic clock."""
        self.paused: set[str] = set()
        self.lost_worker_budget = LostWorkerBudget()
        self.specs, self.keep_failed = specs, keep_failed
        self.fabric_name = fabric
        self.context = RunContext(
            new_id(),
            directory,
            secrets.token_hex(16),
            quiet,
            folders,
            multicast,
            exec_environment,
            trains,
            swarm or SwarmOptions(),
            folder,
        )
        self._staffed = [spec.name for spec in specs if self.context.runs_our_process(spec)]
        self.fabric = fabrics.get(fabric)(self.context)
        self._board: ControlServer | None = None
        self._looked = 0.0

    def __enter__(self) -> Self:
        try:
            self.networks = self.fabric.create(self.specs, self.racks)
            self.control = self._board = ControlServer(
                self.networks.control_host,
                CONTROL_PORT,
                self.context.token,
                self._staffed,
                self.networks.control_addresses,
                self.networks.control_netns,
            )
            self.places = self.fabric.start()
            cables = {name: placement.cable for name, placement in self.places.items()}
            self.cables = {**cables, **self.fabric.racks}
            self.await_all("up", self._staffed, START_S)
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        failed = isinstance(error, NarrowsError) and not isinstance(error, Interrupted)
        if self.keep_failed and failed and self._left_standing():
            return
        try:
            with shielded():
                if self._board is not None:
                    self._board.close()
                self.fabric.destroy()
        except Interrupted:
            if error is None:
                raise

    def messages(self, timeout_s: float) -> Iterator[tuple[str, dict[str, Any]]]:
        """Messages of nodes until ``timeout_s`` has passed; at most one every call of ``next``.

        Raises NodeLost for a dead or silent node, ExperimentError for what a node reports, and for
        a dead agent: of several that come together, the cause and not its consequences.
        """
        give_up = time.monotonic() + timeout_s
        while (left := give_up - time.monotonic()) > 0:
            got = None
            try:
                self._look()
                got = self.control.receive(min(left, 0.2))
                if got is not None and got[1]["type"] == "error":
                    raise Failures.reported(*got)
            except Interrupted:
                raise
            except NarrowsError as error:
                node = got[0] if got is not None else None
                if (
                    isinstance(error, NodeLost)
                    and (lost := self.tolerate_loss(error, node)) is not None
                ):
                    yield lost.node, {"type": "lost", "reason": lost.reason}
                    continue
                raise self._cause(error, node) from error
            if got is not None:
                yield got

    def await_all(
        self,
        kind: str,
        nodes: Iterable[str],
        timeout_s: float = float("inf"),
        take: Callable[[str, dict[str, Any]], None] | None = None,
        run: str | None = None,
    ) -> None:
        """Until all of ``nodes`` but those that the run goes on without have sent ``kind``, which
        must name ``run`` if that is given; ``take`` gets all that comes.

        Raises ExperimentError after ``timeout_s``, and what ``messages`` raises.
        """
        missing = set(nodes)
        if not missing:
            return
        for node, message in self.messages(timeout_s):
            if take is not None:
                take(node, message)
            sent = message["type"] == kind and run in (None, message.get("run"))
            if sent or message["type"] == "lost":
                missing.discard(node)
            missing -= set(self.lost_worker_budget.lost)
            if not missing:
                return
        what = _AWAITED.get(kind, kind)
        raise ExperimentError(f"after {timeout_s:g} s not {what}: {', '.join(sorted(missing))}")

    def tolerate_loss(self, lost: NodeLost, reporter: str | None = None) -> NodeLost | None:
        """Go on without a node, if the run can: its processes are ended, so that it does not come
        back half-way.

        ``reporter``: the node that misses another; a worker that does is itself what was cut off.
        None: the run cannot.
        """
        name = (
            lost.node
            if reporter is None or reporter not in self.lost_worker_budget.nodes
            else reporter
        )
        if name not in self.lost_worker_budget.lost and not self.lost_worker_budget.lose(name):
            return None
        self.control.expect_exit(name)
        self.paused.discard(name)
        self.fabric.kill(name)
        return NodeLost(name, lost.step, self.killed.get(name) or lost.reason)

    def send_best_effort(self, node: str, kind: str, **fields: Any) -> None:
        """Send something that may be missed: a node that is gone is noticed by ``messages``."""
        with suppress(NodeLost):
            self.control.send(node, kind, **fields)

    def ahead_ns(self, node: str) -> int:
        """Nanoseconds by which a node's host is ahead of this one (monotonic)."""
        return self.fabric.agent.ahead_ns(node)

    def pause(self, node: str) -> None:
        """Hold a node's processes; its silence is no loss meanwhile."""
        self.paused.add(node)
        self.control.pause_liveness(node)
        self.fabric.pause(node)

    def resume(self, node: str) -> None:
        """Let a paused node go on."""
        if node in self.lost_worker_budget.lost:
            return
        self.fabric.resume(node)
        if node in self._staffed:
            self.control.resume_liveness(node)
        self.paused.discard(node)

    def kill(self, node: str, time_s: float) -> None:
        """Kill a node's processes, as the event at ``time_s`` wants; of a host it is no loss."""
        self.killed[node] = f"the scenario's event at {time_s:g} s killed it"
        self.killed_ns[node] = time.monotonic_ns()
        self.paused.discard(node)
        if node in self._hosts():
            self.control.expect_exit(node)
        self.fabric.kill(node)

    def restart(self, node: str) -> None:
        """Start a killed node again; it says ``up`` when it is there."""
        self.fabric.restart(node)
        self.killed.pop(node, None)

    def restart_lost_nodes(self) -> None:
        """See to it that every node is there that an earlier run has gone on without."""
        absent = self._hosts() & set(self.killed) | set(self.lost_worker_budget.lost)
        for node in absent:
            self.restart(node)
        self.lost_worker_budget = LostWorkerBudget()
        messages = self.messages(START_S)
        while missing := (self._hosts() | absent) - set(self.control.connected()):
            if next(messages, None) is None:
                raise ExperimentError(f"not back: {', '.join(sorted(missing))}")

    def fail(self, node: str, error: NarrowsError) -> None:
        """Have ``messages`` raise ``error`` as one of ``node``. From any thread."""
        fields = {"message": str(error), "error": type(error).__name__}
        self.control.post(node, {"type": "error", **fields, "exit_code": error.exit_code})

    def _hosts(self) -> set[str]:
        return {spec.name for spec in self.specs if spec.role == "host"}

    def _left_standing(self) -> bool:
        """Ask for everything to be left as it is; False where there is nothing to leave."""
        try:
            self.fabric.keep()
        except NarrowsError:
            return False
        for name in self._staffed:
            self.send_best_effort(name, "keep")
        sys.stderr.write(
            f"testbed: run {self.context.id} is left standing; `testbed clean --all` removes it\n"
        )
        return True

    def _look(self) -> None:
        if time.monotonic() - self._looked < LIVENESS_S:
            return
        self._looked = time.monotonic()
        for lost in self._dead():
            raise lost
        if not self.fabric.agent.alive():
            raise ExperimentError("the links agent has ended: the links are not shaped any more")

    def _cause(self, first: NarrowsError, reporter: str | None) -> NarrowsError:
        """Listen a little longer: what fails first is often only the neighbour of what failed.

        A process that is ending closes its connection some time before the fabric can say how it
        ended: it is waited for.
        """
        failures = Failures(first, reporter)
        begun = time.monotonic()
        while (waited := time.monotonic() - begun) < _LISTEN_S or (
            waited < _ENDING_S and not self.control.disconnected <= self.fabric.dead().keys()
        ):
            try:
                got = self.control.receive(0.1)
                if got is not None and got[1]["type"] == "error":
                    failures.add(Failures.reported(*got), reporter=got[0])
            except NarrowsError as error:
                failures.add(error)
        for lost in self._dead():
            failures.add(lost, certain=True)
        cause = failures.cause()
        if isinstance(cause, NodeLost) and (event := self.killed.get(cause.node)) is not None:
            return NodeLost(cause.node, cause.step, event, phase=cause.phase)
        return cause

    def _dead(self) -> list[NodeLost]:
        """The nodes that have ended and are missed: killed hosts and spare workers are not."""
        return [
            NodeLost(name, None, self.killed.get(name) or f"{how}{self._last_words(name)}")
            for name, how in self.fabric.dead().items()
            if not (
                (name in self.killed and name in self._hosts())
                or name in self.lost_worker_budget.lost
            )
        ]

    def _last_words(self, name: str) -> str:
        """The end of the node's log, if it left one."""
        last = last_line_in(self.context.opened(), f"{name}.log")
        return f"; its last output: {last}" if last else ""


RTO_MIN_MS = 200
"""Linux's least retransmission time-out: with dilation it is made that much longer."""

LEAD_S = 0.5
"""From telling the agent of t0 to t0, at least: nodes and hosts are told in between."""
CHANGE_S = 30e-6
"""Seconds that it takes to tell the agent of one change."""

OnSample = Callable[[list[dict[str, Any]]], None]


def link_settings(
    loaded: Loaded, timeline: Timeline, *, least: int = 1, gapped: bool = False
) -> LinkSettings:
    """Return the settings that hold for all links of a run of ``loaded``.

    ``least``: packets in a bundle that the machine needs (``preflight.check``). ``gapped``: nobody
    knows how long its messages are.
    """
    scenario = loaded.wall()
    return LinkSettings(
        segments=segments(timeline, least),
        at=up_places(scenario),
        congestion=scenario.congestion,
        rto_min_ms=None if loaded.scenario.dilation == 1 else round(RTO_MIN_MS * scenario.dilation),
        ecn=timeline.marks(),
        gapped=gapped,
    )


def shape(
    session: Session,
    loaded: Loaded,
    timeline: Timeline,
    on_sample: OnSample,
    *,
    gapped: bool = False,
) -> dict[str, Any]:
    """Bring every link to its state at t0. Returns what the kernel holds, read back."""
    session.fabric.agent.on_sample = on_sample
    settings = link_settings(loaded, timeline, least=session.least, gapped=gapped)
    impaired = [end for end in timeline.ends if timeline.impaired(end)]
    return session.fabric.agent.prepare(session.cables, timeline.initial, settings, impaired)


def swarm_options(scenario: Scenario, timeline: Timeline) -> SwarmOptions:
    """Return what a swarm needs to know of a run."""
    swarm = scenario.swarm
    return SwarmOptions(swarm.registry, swarm.placement, timeline.highest_rates())


def lead_s(timeline: Timeline) -> float:
    """Before t0 the agent is told of all changes of the first minute, and then the nodes of t0."""
    return LEAD_S + CHANGE_S * sum(1 for _ in timeline.changes(0.0, 60.0))


def backlog_drops() -> int:
    """Packets that this host has dropped because a processor's receive backlog was full."""
    lines = Path("/proc/net/softnet_stat").read_text().splitlines()
    return sum(int(line.split()[1], 16) for line in lines)
