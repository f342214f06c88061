"""Nodes as processes in network namespaces: no engine, no images, the same links."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from hashlib import blake2s
from ipaddress import IPv4Network

from testbed import cgroups
from testbed.cgroups import ControlGroup
from testbed.errors import ExperimentError, MachineError
from testbed.fabric.base import Networks, RunContext
from testbed.fabric.cleanup import JournaledFabric, register, sweep
from testbed.fabric.file_view import Shown, account, named, programs, sizes_in_memory
from testbed.fabric.forker import Forked, Forker, ForkSetting, Imports, NodeLogs, take
from testbed.fabric.node_launcher import offer
from testbed.host.checks import free_subnets, routed
from testbed.journal import Journal, folder, journals, start_time
from testbed.links.agent.client import AgentClient, AgentGone
from testbed.links.capabilities import REQUIRED, probe
from testbed.links.network.namespaces import inhabitants, path_of
from testbed.links.network.wiring import NodeWires, RackPlan, RackWires, TopologyPlan
from testbed.process import for_nodes, node_environment, users_environment
from testbed.topology import (
    CONTROL_PORT,
    Cable,
    Interface,
    NodePlacement,
    NodeSpec,
    RackSpec,
    limits,
    to_json,
)

_TAG_BYTES = 8
_DEVICE_DIGITS = 6
"""Digits of a tag in a device's name, which has 15 characters at most: on a host they are told
apart by what is written on them."""


def run_tag(run: str) -> str:
    """Hexadecimal digits that stand for a run in names of namespaces and devices."""
    return blake2s(run.encode(), digest_size=_TAG_BYTES).hexdigest()


def run_alias(run: str) -> str:
    """Return the alias that a run's devices have in the host's namespace."""
    return f"narrows {run}"


def plan_topology(
    run: str, specs: Sequence[NodeSpec], taken: Iterable[IPv4Network]
) -> tuple[TopologyPlan, tuple[IPv4Network, IPv4Network]]:
    """Plan a run; returns the plan and its subnets (data, control).

    Every name bears a tag made from the run's id, and fits the 15 characters that devices may have.
    Raises MachineError when no subnets are free.
    """
    tag = run_tag(run)
    data, control = free_subnets(taken, len(specs), start=int(tag, 16))
    nodes = tuple(
        NodeWires(
            name=spec.name,
            netns=f"nw-{tag}-{spec.name}",
            data_address=str(data[1 + spec.peer]),
            control_address=str(control[2 + spec.peer]),
            port=f"port{spec.peer}",
            control_port=f"port{spec.peer}",
        )
        for spec in specs
    )
    plan = TopologyPlan(
        alias=run_alias(run),
        switch_netns=f"nw-{tag}-switch",
        # The last address of the subnet; nodes count from the first.
        switch_address=str(data[-2]),
        control_netns=f"nw-{tag}-control",
        control_bridge="control",
        control_host=str(control[1]),
        prefix_bits=data.prefixlen,
        nodes=nodes,
    )
    return plan, (data, control)


def plan_racks(
    tag: str,
    alias: str,
    specs: Sequence[RackSpec],
    places: Mapping[str, NodePlacement],
    switch: str | None = None,
) -> RackPlan:
    """Names for the racks of a run, each with its ``tag`` and within 15 characters.

    ``switch``: the name of the namespace that the core is in; None: the host's, so that the racks
    get one.
    """
    racks = tuple(
        RackWires(
            name=spec.name,
            bridge=f"rack{number}",
            uplink=f"uplink{number}",
            port=f"nw{tag[:_DEVICE_DIGITS]}-r{number}",
            members={member: places[member].cable for member in spec.members},
        )
        for number, spec in enumerate(specs)
    )
    return RackPlan(alias, switch or f"nw-{tag}-racks", switch is None, racks)


def plan_core(tag: str, alias: str, places: Mapping[str, NodePlacement]) -> RackPlan:
    """One rack that all nodes are in: the core for other racks, in a namespace made for it.

    For multicasts: the host's firewall lets none of them through a bridge that it looks at.
    """
    members = {name: node.cable for name, node in places.items()}
    wires = RackWires("core", "core", "coreup", f"nw{tag[:_DEVICE_DIGITS]}-core", members)
    return RackPlan(alias, f"nw-{tag}-racks", True, (wires,))


def install(
    agent: AgentClient, plan: RackPlan, places: Mapping[str, NodePlacement]
) -> tuple[dict[str, Cable], dict[str, NodePlacement]]:
    """Have the agent make the racks; returns their cables, and all nodes with their ports."""
    if not plan.racks:
        return {}, dict(places)
    racks = agent.racks(plan)
    moved = {
        name: replace(node, port=racks.ports.get(name, node.port)) for name, node in places.items()
    }
    return racks.cables, moved


_END_S = 2.0


class NetnsFabric(JournaledFabric):
    """One run's namespaces and processes. Raises MachineError when this machine or user cannot."""

    agent: AgentClient

    def __init__(self, context: RunContext) -> None:
        self.context = context
        register()
        if missing := probe().missing(REQUIRED):
            raise missing
        self._plan: TopologyPlan | None = None
        self._specs: dict[str, NodeSpec] = {}
        self._wired: dict[str, tuple[Interface, Interface]] = {}
        self._processes: dict[str, Forked] = {}
        self._rooms: dict[str, Forked] = {}
        self._groups: dict[str, ControlGroup | None] = {}
        # Nodes die with the thread that starts them, so one thread does, and lives as long as they
        # shall.
        self._starter = ThreadPoolExecutor(1, "starter")
        self._forker: Forker | None = None
        self._logs = NodeLogs(lambda: context.opened().folder("log"))
        self._racks: tuple[RackSpec, ...] = ()
        self.racks: dict[str, Cable] = {}

    def create(self, specs: list[NodeSpec], racks: Sequence[RackSpec] = ()) -> Networks:
        """Make a namespace per node, the switch and the control network. Raises MachineError."""
        self._specs = {spec.name: spec for spec in specs}
        self._racks = tuple(racks)
        imports = self._imports()
        begin = partial(Forker, node_environment(), imports)
        ahead = take() if imports == "torch" else None
        self._forker = ahead or self._starter.submit(begin).result()
        plan = self._plan = self._reserve(specs)
        self.agent = AgentClient.local(journal=self.journal)
        try:
            self._wired = self.agent.build(plan)
        except AgentGone:
            raise
        except ExperimentError as error:
            raise MachineError(
                f"the nodes' namespaces could not be made: {error}",
                fix="Run `testbed clean`, then `testbed doctor`.",
            ) from error
        return Networks(
            plan.control_host,
            plan.switch_address,
            path_of(plan.switch_netns),
            {node.name: node.control_address for node in plan.nodes},
            path_of(plan.control_netns),
        )

    def start(self) -> dict[str, NodePlacement]:
        """Start every node's process, without privileges; its output goes to ``log/<node>.log``."""
        assert self._plan is not None
        places = self._places(self._plan)
        plan = self._plan
        racks = plan_racks(
            run_tag(self.context.id), plan.alias, self._racks, places, plan.switch_netns
        )
        self.racks, places = install(self.agent, racks, places)
        for name, spec in self._specs.items():
            if self.context.runs_our_process(spec):
                self.restart(name)
        return places

    def dead(self) -> dict[str, str]:
        """Nodes whose process has ended, by name, each with how."""
        codes = {name: process.poll() for name, process in dict(self._processes).items()}
        ended = {name: code for name, code in codes.items() if code is not None}
        for name in ended:
            self._logs.settle(name)
        return {name: _how(code) for name, code in ended.items()}

    def launch(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> Forked:
        """Start a command in a node's namespaces, and in the environment's folder."""
        offered = self.context.exec_environment
        assert offered is not None and self._forker is not None
        given = for_nodes(users_environment())
        path = environment.get("PYTHONPATH", given.get("PYTHONPATH"))
        path = os.pathsep.join(filter(None, [path, str(offer(offered.rendezvous_dir))]))
        own = {} if offered.output is None else {"NARROWS_OUTPUT": str(offered.output)}
        variables = {**given, **_at_home(), **own, **environment, "PYTHONPATH": path}
        if (room := self._rooms.get(name)) is None or room.poll() is not None:
            view = [*self._view(variables), *named(command, offered.directory)]
            view += [Shown(str(offered.rendezvous_dir)), offered.shown(offered.directory)]
            # a job does not write its own records
            view += [offered.shown(self.context.directory.absolute(), writable=False)]
            view += [] if offered.output is None else [offered.shown(offered.output)]
            room = self._forker.room(self._setting(name, view))
            self._rooms[name] = room
            self._note(room.pid)
        return self._forker.command(room, command, variables, offered.directory)

    def signal(self, name: str, number: int) -> None:
        """To every process in the node's namespace."""
        for pid in inhabitants(self._netns(name)):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def pause(self, name: str) -> None:
        """Stop every process of a node's session."""
        self._signal(name, signal.SIGSTOP)

    def resume(self, name: str) -> None:
        """Let them go on."""
        self._signal(name, signal.SIGCONT)

    def kill(self, name: str) -> None:
        """Kill them; the namespace stays, and with it the node's links."""
        self._signal(name, signal.SIGKILL)
        if (process := self._processes.get(name)) is None:
            return
        process.wait()
        if self._specs[name].role == "host":
            del self._processes[name]

    def restart(self, name: str) -> None:
        """Start a node's process in its namespace, without any privilege."""
        assert self._plan is not None and self._forker is not None
        control = f"{self._plan.control_host}:{CONTROL_PORT}"
        role = self._specs[name].role
        options = ["--name", name, "--control", control, "--role", role]
        options += [] if self.context.trains else ["--untrained"]
        # What root's nodes run themselves is the system's: of PATH they need no folder.
        hidden = () if account() is None else ("PATH",)
        variables = {key: value for key, value in os.environ.items() if key not in hidden}
        setting = self._setting(name, self._view(variables))
        with self._logs.open(name) as output:
            more = {"NARROWS_TOKEN": self.context.token, **_at_home()}
            process = self._forker.node(setting, options, more, output)
        self._processes[name] = process
        self._note(process.pid)

    def destroy(self) -> None:
        """End every process and remove everything, without the agent if that is dead: each in turn,
        whatever another raises."""
        with ExitStack() as stack:  # from its end
            if self.journal is not None:
                stack.callback(sweep, self.journal)
            stack.callback(self._starter.shutdown)
            stack.callback(self._logs.close)
            if self._forker is not None:
                stack.callback(self._forker.close)
            if hasattr(self, "agent"):
                stack.callback(self.agent.close)
                stack.callback(self._tear_down)
            self._end_processes()

    def _tear_down(self) -> None:
        with suppress(ExperimentError):
            self.agent.tear_down()

    def _reserve(self, specs: list[NodeSpec]) -> TopologyPlan:
        """Plan, and write down all names before anything is made; one run at a time does so."""
        with _planning():
            noted = [entry for other in journals() for entry in other.entries]
            taken = [IPv4Network(entry["network"]) for entry in noted if entry["kind"] == "subnet"]
            plan, subnets = plan_topology(self.context.id, specs, [*taken, *routed()])
            journal = self.journal = Journal.open(self.context.id)
            for subnet in subnets:
                journal.add("subnet", network=str(subnet))
            own = [plan.switch_netns, plan.control_netns]
            for name in [*own, *(node.netns for node in plan.nodes)]:
                journal.add("namespace", name=name)
            for node in plan.nodes:
                journal.add("link", name=node.port, alias=None, netns=plan.switch_netns)
                journal.add("link", name=node.control_port, alias=None, netns=plan.control_netns)
        return plan

    def _imports(self) -> Imports:
        """Return the imports that processes of ours will need in the nodes."""
        staffed = [spec for spec in self._specs.values() if self.context.runs_our_process(spec)]
        if not staffed:
            return "nothing"
        trains = self.context.trains and any(spec.role != "host" for spec in staffed)
        return "torch" if trains else "testbed"

    def _setting(self, name: str, view: list[Shown]) -> ForkSetting:
        group = self._group(name)
        folders = () if group is None else tuple(map(str, group.folders))
        spec = self._specs[name]
        alone = group is None and spec.device == "cpu"  # a GPU's driver maps far more than it uses
        bounds = limits(spec.limits, len(self._specs))
        return ForkSetting(
            name,
            self._netns(name),
            view,
            self._hosts(),
            folders,
            to_json(bounds) if alone else None,
            len(self._specs),
            sizes_in_memory(bounds),
        )

    def _group(self, name: str) -> ControlGroup | None:
        """A node's control group, made once; None where this process may make none."""
        if name not in self._groups:
            spec = self._specs[name]
            self._groups[name] = None
            with suppress(MachineError, OSError):
                base, bounds = cgroups.find(), limits(spec.limits, len(self._specs))
                self._groups[name] = cgroups.make(base, self.context.id, name, bounds, self.journal)
        return self._groups[name]

    def _view(self, variables: Mapping[str, str]) -> list[Shown]:
        named_folders = [Shown(str(each.path), pin=each.identity) for each in self.context.folders]
        return [*programs(variables), *named_folders]

    def _hosts(self) -> str:
        """Return ``/etc/hosts`` of every node: all nodes by their addresses on the data network."""
        assert self._plan is not None
        names = [f"{node.data_address} {node.name}" for node in self._plan.nodes]
        return "\n".join(["127.0.0.1 localhost", "::1 localhost", *names, ""])

    def _note(self, pid: int) -> None:
        """Write a process that was started into the journal."""
        assert self.journal is not None
        if start := start_time(pid):
            self.journal.add("process", pid=pid, start=start)

    def _netns(self, name: str) -> str:
        return self._wired[name][0].netns or ""

    def _signal(self, name: str, number: int) -> None:
        """Signal the process group of a node's process, or all processes of a node without one."""
        process = self._processes.get(name)
        if process is None and not self.context.runs_our_process(self._specs[name]):
            self.signal(name, number)
        elif process is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)

    def _places(self, plan: TopologyPlan) -> dict[str, NodePlacement]:
        return {
            node.name: NodePlacement(
                self._specs[node.name],
                node.data_address,
                node.control_address,
                *self._wired[node.name],
            )
            for node in plan.nodes
        }

    def _end_processes(self) -> None:
        """All are killed first, so that they end side by side. Of what was launched, only what
        others should have ended is left. Who takes long to die is left to ``sweep``, and so is a
        group that stays, which it names."""
        for name in self._wired:
            if not self.context.runs_our_process(self._specs[name]):
                self.signal(name, signal.SIGKILL)
        running = {name: p for name, p in self._processes.items() if p.poll() is None}
        for name in running:
            self._signal(name, signal.SIGKILL)
        for process in running.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)
        for group in self._groups.values():
            if group is not None:
                with suppress(MachineError):
                    group.remove()


@contextmanager
def _planning() -> Iterator[None]:
    descriptor = os.open(folder() / "planning.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _at_home() -> dict[str, str]:
    """Variables of a node: folders of its own for temporary files, its session and its home."""
    own = {"TMPDIR": "/tmp", "XDG_RUNTIME_DIR": "/run"}
    if account() is not None:
        own |= {"HOME": "/tmp", "USER": "narrows", "LOGNAME": "narrows"}
    return own


def _how(code: int) -> str:
    return f"killed by signal {-code}" if code < 0 else f"ended with status {code}"
