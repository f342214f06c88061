"""The links agents of a swarm's hosts, as one: each has the links of its own host's nodes, and t0
by its own host's clock.

Every agent connects to the controller over the control network. It is asked for its clock once a
second, by questions and answers as in NTP: that is the sign of life of its host, too.
"""

from __future__ import annotations

import hmac
import json
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

from testbed.errors import ExperimentError, MachineError
from testbed.fabric.swarm.stack_file import SwarmHost, Underlay
from testbed.links.agent.client import (
    AgentClient,
    ConnectedAgent,
    LinkReport,
    ScheduleFeeder,
)
from testbed.links.agent.protocol import InterfaceSeen, LinkSettings, Place, Watched, read
from testbed.links.network.namespaces import inside
from testbed.links.network.wiring import RackPlan, Racks
from testbed.records.intervals import HostClockOffset
from testbed.scenario.link_state import LinkChange, LinkDirection, LinkState
from testbed.topology import AGENT_PORT, Cable, Interface
from testbed.transport.connection import TcpInfo

MOST_ERROR_NS = 5_000_000
"""A clock that is known less well, or has moved further during a run, is refused."""


@dataclass(frozen=True, slots=True)
class ClockReading:
    """One answer. ``ahead_ns``: by how much the host's monotonic clock is ahead, known to
    ``error_ns``, half of the round trip; ``wall_ahead_ns``: the same of its wall clock."""

    ahead_ns: int
    error_ns: int
    wall_ahead_ns: int

    def to_json(self) -> dict[str, Any]:
        """For the manifest."""
        return asdict(self)


def best(readings: Sequence[ClockReading]) -> ClockReading:
    """The reading of the shortest round trip: its answer cannot be off by more than half of it."""
    return min(readings, key=lambda reading: reading.error_ns)


def moved_ns(before: ClockReading, after: ClockReading) -> int:
    """The most by which two clocks can have moved against each other between two readings."""
    return abs(after.ahead_ns - before.ahead_ns) + before.error_ns + after.error_ns


T = TypeVar("T")
GREETING_S, GREETING_BYTES, _SHORTEST_S = 5.0, 4096, 1e-3
EVERY_S, SILENCE_S = 1.0, 4.0
"""Between two looks at a host's clock, and after which a host is taken for dead: nodes may be
silent for six seconds."""
READINGS = 16
POUR_S, ATTACH_S = 0.4, 30.0
UNHEARD_MS = 30_000
"""A connection on which nothing that is sent arrives for so long has ended."""
_BUFFER = 1 << 20
OVERLAY = "overlay"
"""In a plan of racks: the namespace of the overlay, whose path the agent of each host knows."""


class HostAgent(AgentClient):
    """The agent of one host; ``connected`` leads to it."""

    def __init__(self, host: SwarmHost, connected: socket.socket) -> None:
        self.host, self.connected = host, connected
        self.reading = ClockReading(0, 0, 0)
        """The clock at the last ``prepare``, by which t0 is told."""
        self.heard_s = time.monotonic()
        super().__init__(process=ConnectedAgent(connected))

    def alive(self) -> bool:
        """Return whether its connection is open and its host answers."""
        heard = max(self.heard_s, self._heard)
        return self._reader.is_alive() and time.monotonic() - heard < SILENCE_S

    def clock(self) -> ClockReading:
        """Ask for its clock."""
        before = time.monotonic_ns()
        remote_ns, unix = self.ask("clock")
        after = time.monotonic_ns()
        self.heard_s = time.monotonic()
        return ClockReading(
            remote_ns - (before + after) // 2, (after - before) // 2, unix - time.time_ns()
        )

    def ask(self, operation: str, **fields: Any) -> Any:
        """As the agent's own operations; for those that only agents of a swarm have."""
        return self._call(operation, **fields)


class AgentListener:
    """Takes in the agents of ``hosts`` (by id) where the controller's task listens."""

    def __init__(
        self, address: str, netns: str, token: str, hosts: Mapping[str, SwarmHost]
    ) -> None:
        self.address = address
        self._netns, self._token, self._hosts = netns, token, hosts
        with inside(netns):
            self._listener = socket.create_server((address, AGENT_PORT), backlog=64)

    def agents(self, within_s: float) -> list[HostAgent]:
        """Wait for the agent of every host. Raises ExperimentError, naming those that lack."""
        agents: dict[str, HostAgent] = {}
        give_up = time.monotonic() + within_s
        while len(agents) < len(self._hosts):
            greeted = self._next(give_up - time.monotonic(), "agent")
            if greeted is None:
                lacking = ", ".join(h.name for h in self._hosts.values() if h.id not in agents)
                raise ExperimentError(
                    f"after {within_s:g} s no links agent has connected from {lacking}"
                )
            host, connected = greeted
            if host not in agents:
                agents[host] = HostAgent(self._hosts[host], connected)
        return sorted(agents.values(), key=lambda agent: agent.host.name)

    def pour(self, agent: HostAgent) -> float:
        """Have an agent send as fast as its network takes it; bit/s that came."""
        with self.called_back(agent, "pour", seconds=POUR_S) as connected, connected:
            return _received_bits(connected)

    @contextmanager
    def called_back(
        self, agent: HostAgent, operation: str, **fields: Any
    ) -> Iterator[socket.socket]:
        """Have an agent connect once more, for ``operation``, which is over when this is.

        Raises ExperimentError where it does not, and what the operation raises.
        """
        with ThreadPoolExecutor(1) as asking:
            to = [self.address, AGENT_PORT]
            pending = asking.submit(agent.ask, operation, to=to, host=agent.host.id, **fields)
            greeted = self._next(GREETING_S, operation)
            if greeted is None:
                pending.result()
                raise ExperimentError(f"host {agent.host.name} did not connect to {operation}")
            try:
                yield greeted[1]
                pending.result()
            except BaseException:
                greeted[1].close()
                raise

    def close(self) -> None:
        """Listen no more."""
        self._listener.close()

    def _next(self, within_s: float, purpose: str) -> tuple[str, socket.socket] | None:
        """The next that has the token and this purpose: host, connection; None: nobody came."""
        give_up = time.monotonic() + within_s
        while (left := give_up - time.monotonic()) > 0:
            self._listener.settimeout(left)
            try:
                connected, _ = self._listener.accept()
            except OSError:
                return None
            if (host := self._greeted(connected, purpose)) is not None:
                connected.settimeout(None)
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNHEARD_MS)
                return host, connected
            connected.close()
        return None

    def _greeted(self, connected: socket.socket, purpose: str) -> str | None:
        """The host of whoever connected; None for a stranger."""
        try:
            said = json.loads(_line(connected))
            token, host = str(said["token"]).encode(), str(said["host"])
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            return None
        right = hmac.compare_digest(token, self._token.encode()) and said.get("purpose") == purpose
        return host if right and host in self._hosts else None


def _line(connected: socket.socket) -> bytes:
    """Return a line that comes within ``GREETING_S``, and nothing of what comes after it. Raises
    OSError."""
    line, give_up = b"", time.monotonic() + GREETING_S
    while not line.endswith(b"\n") and len(line) < GREETING_BYTES:
        connected.settimeout(max(give_up - time.monotonic(), _SHORTEST_S))
        if not (byte := connected.recv(1)):
            break
        line += byte
    return line


def _received_bits(connected: socket.socket) -> float:
    """The rate of what comes until the stream ends, after its first tenth of a second."""
    buffer, count, begin = bytearray(_BUFFER), 0, time.monotonic() + POUR_S / 4
    last = begin
    while got := connected.recv_into(buffer):
        if (now := time.monotonic()) > begin:
            count, last = count + got, now
    return count * 8 / max(last - begin, 1e-3)


class HostAgents(AgentClient):
    """All agents of a run. ``nodes``: the host's id, by node, whose name its link has."""

    def __init__(self, agents: Sequence[HostAgent], nodes: Mapping[str, str]) -> None:
        self._agents = {agent.host.id: agent for agent in agents}
        self._nodes = nodes
        self._links = dict(nodes)
        """The host's id by link: of nodes, and of racks once they are made."""
        self._netns: dict[str, str] = {}
        """The network namespace of each task on its host."""
        self.underlay: list[Underlay] = []
        self.shares: Mapping[str, float] = {}
        self._on_records: Callable[[list[dict[str, Any]]], None] | None = None
        self._follower: ScheduleFeeder | None = None
        self._began_ns: int | None = None
        self._order: list[LinkDirection] = []
        self._ended = threading.Event()
        for agent in agents:
            agent.heard_s = time.monotonic()
            threading.Thread(target=self._follow_clock, args=(agent,), daemon=True).start()

    @property
    def on_sample(self) -> Callable[[list[dict[str, Any]]], None] | None:
        """Who gets link records, of all hosts."""
        return self._on_records

    @on_sample.setter
    def on_sample(self, take: Callable[[list[dict[str, Any]]], None] | None) -> None:
        lock = threading.Lock()

        def in_turn(records: list[dict[str, Any]]) -> None:
            with lock:
                assert take is not None
                take(records)

        self._on_records = take
        for agent in self._agents.values():
            agent.on_sample = None if take is None else in_turn

    def ahead_ns(self, node: str) -> int:
        """Nanoseconds by which a node's host was ahead when links were prepared (monotonic)."""
        return self._agents[self._nodes[node]].reading.ahead_ns

    def hosts(self) -> list[dict[str, Any]]:
        """The hosts, their nodes, clocks, and the network between them."""
        real = {network.host: network.to_json() for network in self.underlay}
        return [
            {
                "id": agent.host.id,
                "name": agent.host.name,
                "address": agent.host.address,
                "nodes": [node for node, host in self._nodes.items() if host == agent.host.id],
                "processors": agent.host.processors,
                "clock": agent.reading.to_json(),
                "underlay": real.get(agent.host.name),
                "emulated_share": self.shares.get(agent.host.name),
            }
            for agent in self._agents.values()
        ]

    def alive(self) -> bool:
        """Return whether all are."""
        return not self.silent()

    def silent(self) -> dict[str, list[str]]:
        """Hosts that no longer answer, each with its nodes."""
        return {
            agent.host.name: [node for node, host in self._nodes.items() if host == agent.host.id]
            for agent in self._agents.values()
            if not agent.alive()
        }

    def locate_tasks(
        self, network: str, addresses: Mapping[str, str]
    ) -> dict[str, tuple[Interface, Interface]]:
        """Find every task's cable on its host, and have all know each other's addresses.

        ``addresses``: by node; what is no node is the controller's, which sends in a replay.
        """

        def ask(agent: HostAgent) -> dict[str, Place]:
            own = {n: a for n, a in addresses.items() if self._host_of(n) == agent.host.id}
            said = read(dict[str, Place], agent.ask("locate_tasks", network=network, addresses=own))
            agent.ask(
                "senders", devices=[nic for n, (_, nic, _) in said.items() if n not in self._nodes]
            )
            return said

        places = {node: location for own in self._each(ask) for node, location in own.items()}
        known = [(addresses[node], mac) for node, (mac, _, _) in places.items()]
        for node, (_, nic, _) in places.items():
            others = [pair for pair in known if pair[0] != addresses[node]]
            self._agents[self._host_of(node)].ask("neighbours", device=nic, neighbours=others)
            self._netns[node] = str(nic.netns)
        return {node: (nic, port) for node, (_, nic, port) in places.items()}

    def racks(self, plan: RackPlan) -> Racks:
        """Put nodes into racks, each on the host of its members, in the overlay's namespace."""
        whole = Racks({}, {})
        for rack in plan.racks:
            member, cable = next(iter(rack.members.items()))
            self._links[rack.name] = self._host_of(member)
            own = replace(plan, netns=str(cable.port.netns), racks=(rack,))
            part = AgentClient.racks(self._agents[self._host_of(member)], own)
            whole.cables.update(part.cables)
            whole.ports.update(part.ports)
        return whole

    def act(self, node: str, action: str) -> bool:
        """Have a node's task do ``pause``, ``resume``, ``kill`` or ``restart`` with its process.
        Return False where its host no longer answers. Raises ExperimentError."""
        agent = self._agents[self._host_of(node)]
        if not agent.alive():
            return False
        agent.ask("act", netns=self._netns[node], action=action)
        return True

    def attach(self, node: str, listener: AgentListener) -> socket.socket:
        """Return a connection to the first process of a node's task, which may still be starting.
        Raises ExperimentError."""
        agent = self._agents[self._host_of(node)]
        give_up = time.monotonic() + ATTACH_S
        while True:
            try:
                with listener.called_back(agent, "attach", netns=self._netns[node]) as connected:
                    return connected
            except ExperimentError:
                if not agent.alive() or time.monotonic() > give_up:
                    raise
                time.sleep(0.2)

    def watch(self, nodes: Mapping[str, str]) -> dict[str, list[InterfaceSeen]]:
        """Follow connections of nodes, each on its own host."""

        def follow(agent: HostAgent) -> dict[str, list[InterfaceSeen]]:
            own = {n: at for n, at in nodes.items() if self._host_of(n) == agent.host.id}
            return AgentClient.watch(agent, own)

        return {node: interfaces for own in self._each(follow) for node, interfaces in own.items()}

    def watched(self) -> dict[str, Watched]:
        """Follow them no longer; times are of this host's clock."""
        by_node = {n: each for own in self._each(AgentClient.watched) for n, each in own.items()}
        return {node: each.earlier(self.ahead_ns(node)) for node, each in by_node.items()}

    def _host_of(self, node: str) -> str:
        manager = next((a.host.id for a in self._agents.values() if a.host.manager), "")
        return self._nodes.get(node, manager)

    def measure(self, listener: AgentListener) -> list[Underlay]:
        """Measure the network between the manager's host and each other one, in turn."""
        self.underlay = []
        for agent in self._agents.values():
            rate = None if agent.host.manager else listener.pour(agent)
            least_us = TcpInfo.of(agent.connected).counters().least_rtt_us or 0
            self.underlay.append(Underlay(agent.host.name, rate, least_us / 1e6))
        return self.underlay

    def prepare(
        self,
        cables: Mapping[str, Cable],
        shapes: Mapping[LinkDirection, LinkState],
        settings: LinkSettings,
        impaired: Collection[LinkDirection] = (),
    ) -> dict[str, Any]:
        """Shape every link on its own host, all hosts at a time; read the hosts' clocks."""
        self._order = list(shapes)

        def shape(agent: HostAgent) -> dict[str, Any]:
            own = {link: c for link, c in cables.items() if self._links[link] == agent.host.id}
            ends = {end: state for end, state in shapes.items() if end.link in own}
            return AgentClient.prepare(
                agent, own, ends, settings, [end for end in impaired if end.link in own]
            )

        self._read_clocks()
        parts = self._each(shape)
        links = {
            (link["link"], link["direction"]): link for part in parts for link in part["links"]
        }
        return {**parts[0], "links": [links[end.link, end.direction] for end in shapes]}

    def start(self, t0_ns: int, changes: Iterator[LinkChange]) -> None:
        """Replay ``changes`` on all hosts from the same instant on."""
        self._record_clocks(0.0)
        self._follower = ScheduleFeeder(t0_ns, changes, self._feed)
        self._follower.begin()
        self._began_ns = t0_ns

    def stop(self) -> LinkReport:
        """End the replay everywhere. Raises ExperimentError where a clock has moved."""
        if self._follower is not None:
            self._follower.end()
            self._follower = None
        ends = {
            LinkDirection(end.link, end.direction): end  # type: ignore[arg-type]
            for part in self._each(lambda agent: agent.stop().links)
            for end in part
        }
        begun, self._began_ns = self._began_ns, None
        if begun is not None:
            self._check_clocks((time.monotonic_ns() - begun) / 1e9)
        return LinkReport(tuple(ends[end] for end in self._order if end in ends))

    def leave_standing(self) -> None:
        """Have everything left standing when the agents end."""
        self._each(AgentClient.leave_standing)

    def close(self) -> None:
        """Let every agent that answers undo everything and end; safe to call twice."""
        self._ended.set()
        if self._follower is not None:
            self._follower.end()
        for agent in self._agents.values():
            if agent.alive():
                with suppress(ExperimentError, MachineError):
                    agent.tear_down()
            agent.close()

    def _feed(self, operation: str, changes: list[Any], **fields: Any) -> None:
        for agent in self._agents.values():
            own = [change for change in changes if self._links[change[1]] == agent.host.id]
            if "t0_ns" in fields:
                message = {**fields, "t0_ns": fields["t0_ns"] + agent.reading.ahead_ns}
            else:
                message = fields
            agent.ask(operation, changes=own, **message)

    def _each(self, action: Callable[[HostAgent], T]) -> list[T]:
        """Do the same with every agent that has nodes, side by side; raises what one raises."""
        busy = [agent for agent in self._agents.values() if agent.host.id in self._nodes.values()]
        with ThreadPoolExecutor(len(busy)) as pool:
            return list(pool.map(action, busy))

    def _read_clocks(self) -> None:
        for agent in self._agents.values():
            agent.reading = best([agent.clock() for _ in range(READINGS)])
            if agent.reading.error_ns > MOST_ERROR_NS:
                raise MachineError(
                    f"the clock of host {agent.host.name} is known to "
                    f"{agent.reading.error_ns / 1e6:.1f} ms, and {MOST_ERROR_NS / 1e6:g} ms are "
                    "the most",
                    fix="Use a faster control network, or hosts that are less busy",
                )

    def _check_clocks(self, at_s: float) -> None:
        for agent in self._agents.values():
            now = best([agent.clock() for _ in range(READINGS)])
            moved = moved_ns(agent.reading, now)
            self._record(agent, now, at_s)
            if moved > MOST_ERROR_NS:
                raise ExperimentError(
                    f"in {at_s:.0f} s the clock of host {agent.host.name} moved by "
                    f"{moved / 1e6:.1f} ms against the controller's, and "
                    f"{MOST_ERROR_NS / 1e6:g} ms are the most: times across hosts are not to be "
                    "relied upon"
                )

    def _record_clocks(self, at_s: float) -> None:
        for agent in self._agents.values():
            self._record(agent, agent.reading, at_s)

    def _record(self, agent: HostAgent, reading: ClockReading, at_s: float) -> None:
        if self._on_records is not None:
            moved = reading.ahead_ns - agent.reading.ahead_ns
            record = HostClockOffset(
                agent.host.name, at_s, reading.ahead_ns, moved, reading.error_ns
            )
            self._on_records([record.to_json()])

    def _follow_clock(self, agent: HostAgent) -> None:
        """Ask a host for its clock from time to time; one that does not answer is silent."""
        while not self._ended.wait(EVERY_S):
            try:
                reading = agent.clock()
            except (ExperimentError, MachineError):
                return
            begun = self._began_ns
            if begun is not None and (at_s := (time.monotonic_ns() - begun) / 1e9) > 0:
                with suppress(OSError):
                    self._record(agent, reading, at_s)
