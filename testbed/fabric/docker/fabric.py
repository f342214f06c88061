"""The docker fabric: every node a container of one Compose project, on a shaped and an unshaped bridge."""

from __future__ import annotations

import os
import signal
import subprocess
import zlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from ipaddress import IPv4Network
from typing import TYPE_CHECKING, Any

from testbed.errors import ExperimentError, MachineError
from testbed.fabric import netns_clean
from testbed.fabric.base import Cable, Networks, NodeSpec, Place, RackSpec, RunContext
from testbed.fabric.docker import clean, mounts
from testbed.fabric.docker.compose import Compose, SubnetTaken
from testbed.fabric.docker.keeper import KILL, START
from testbed.fabric.docker.launch import launch, send
from testbed.fabric.docker.mounts import Mounts
from testbed.fabric.docker.objects import Objects, subnets_in_use
from testbed.fabric.docker.render import (
    SHAPER,
    Document,
    Plan,
    address,
    container_name,
    gateway,
    load_templates,
    project,
    render,
    to_yaml,
)
from testbed.fabric.docker.subnets import free_subnets, routed
from testbed.fabric.journal import KEPT, Journal, start_time
from testbed.fabric.netns_plan import install, plan_core, plan_racks, run_alias, run_tag
from testbed.fabric.netns_sweep import sweep
from testbed.setup import images
from testbed.setup.command import answer
from testbed.setup.paths import in_checkout
from testbed.user_files import PinnedFolder

if TYPE_CHECKING:
    from testbed.links.client import Agent

_ATTEMPTS = 5
"""How often other subnets are tried when another run takes ours between looking and making."""


class DockerFabric:
    """Containers made by Compose. Raises MachineError when engine, Compose or images are missing."""

    agent: Agent

    def __init__(self, context: RunContext) -> None:
        self.context = context
        for known in (netns_clean, clean):
            known.register()
        self.image = images.require()
        self.objects = Objects(context.id)
        self.compose = Compose(context.id, context.token)
        self.folder: PinnedFolder | None = None
        self._mounts: Mapping[str, Mounts] = {}
        self._processes: dict[str, int] = {}
        self.specs: dict[str, NodeSpec] = {}
        self.plan: Plan | None = None
        self.racks: dict[str, Cable] = {}
        self._racks: tuple[RackSpec, ...] = ()
        self.journal: Journal | None = None

    def create(self, specs: list[NodeSpec], racks: Sequence[RackSpec] = ()) -> Networks:
        """Write ``compose.yaml``; make networks and containers; have an agent."""
        self.context.directory.mkdir(parents=True, exist_ok=True)
        self.folder = PinnedFolder(self.context.directory.resolve())
        self._racks = tuple(racks)
        self.specs = {spec.name: spec for spec in specs}
        self.journal = Journal.open(self.context.id)
        self.journal.add(clean.KIND, run=self.context.id)
        if self.context.premises is not None:
            self.journal.add("folder", path=str(self.context.premises.meeting))
        self.plan = self._make(specs)
        self.agent = self._agent()
        addresses = {spec.name: str(address(self.plan.control, spec)) for spec in specs}
        host, switch = str(gateway(self.plan.control)), str(gateway(self.plan.data))
        return Networks(host, switch, None, addresses)

    def start(self) -> dict[str, Place]:
        """Start the nodes' containers. Raises ExperimentError when one ends at once."""
        self.compose.start(*self.specs)
        containers = self.objects.containers()
        places = {name: self._place(spec, containers[name]) for name, spec in self.specs.items()}
        if _is_root():  # no other may look; before any command of the job's is started
            for name, process in self._processes.items():
                mounts.check(name, process, self._mounts[name])
        assert self.plan is not None
        self.agent.acquaint(places.values(), str(gateway(self.plan.data)))
        tag, alias = run_tag(self.context.id), run_alias(self.context.id)
        core = None
        if self.context.multicast:
            _, places = install(self.agent, plan := plan_core(tag, alias, places), places)
            core = plan.netns
        plan = plan_racks(tag, alias, self._racks, places, core)
        self.racks, places = install(self.agent, plan, places)
        return places

    def dead(self) -> dict[str, str]:
        """Nodes whose container has ended, each with how; what they wrote is then in the log folder."""
        dead = self.objects.dead()
        if dead:
            self.save_logs()
        return dead

    def launch(
        self, name: str, command: Sequence[str], environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        """Start a command in a node's container, by the engine's own client."""
        return launch(container_name(self.context.id, name), command, environment)

    def signal(self, name: str, number: int) -> None:
        """To all processes in the container but the first, which keeps it."""
        send(container_name(self.context.id, name), number)

    def pause(self, name: str) -> None:
        """Freeze the node's container."""
        self.objects.pause(name)

    def resume(self, name: str) -> None:
        """Thaw it."""
        self.objects.resume(name)

    def kill(self, name: str) -> None:
        """Kill a node's processes inside its container, or a server with its container."""
        self.objects.resume(name)
        if not self.context.staffed(self.specs[name]):
            self.signal(name, signal.SIGKILL)
            return
        self.objects.signal(name, "SIGKILL" if self.specs[name].role == "server" else KILL)

    def restart(self, name: str) -> None:
        """Start a killed node's processes again, in the same container with the same links."""
        self.objects.signal(name, START)

    def keep(self) -> None:
        """Leave everything standing when this process ends, until ``testbed clean --all``."""
        if hasattr(self, "agent"):
            self.agent.keep()
        if self.journal is not None:
            self.journal.add(KEPT)

    def destroy(self) -> None:
        """Save the logs, then stop and remove whatever of this run is there."""
        if self.journal is None:
            self.objects.close()
            return
        with ExitStack() as stack:  # each in turn, last first, whatever another raises
            stack.callback(self.objects.close)
            stack.callback(sweep, self.journal)
            stack.callback(self.save_logs)
            if hasattr(self, "agent"):
                self.agent.close()

    def save_logs(self) -> None:
        """Write the output of every container with a process of ours to ``log/<node>.log``."""
        staffed = [name for name, spec in self.specs.items() if self.context.staffed(spec)]
        if self.folder is not None:
            self.objects.save_logs(self.folder.folder("log"), staffed)

    def _make(self, specs: list[NodeSpec]) -> Plan:
        templates = load_templates(in_checkout("compose"))
        start = zlib.crc32(self.context.id.encode())
        for attempt in range(_ATTEMPTS):
            taken = [*routed(), *subnets_in_use(self.objects.client)]
            subnets = free_subnets(taken, len(specs), start=start + attempt)
            plan = self._plan(specs, *subnets)
            document = render(specs, plan, templates)
            self._mounts = self._wanted(document)
            assert self.folder is not None
            self.compose.write(to_yaml(document), self.folder)
            try:
                self.compose.create()
                return plan
            except SubnetTaken:
                self.objects.remove()
        raise MachineError(
            "every subnet was taken by another run at the last moment", fix="Start the run again"
        )

    def _wanted(self, document: Document) -> dict[str, Mounts]:
        pins = {} if self.context.premises is None else self.context.premises.pins
        services = document["services"].items()
        return {name: mounts.wanted(service, pins) for name, service in services}

    def _plan(self, specs: list[NodeSpec], data: IPv4Network, control: IPv4Network) -> Plan:
        cuda = any(spec.device == "cuda" for spec in specs)
        gpus = len((answer(["nvidia-smi", "-L"]) or "").splitlines()) if cuda else 1
        if not gpus:
            raise MachineError(
                "`device: cuda` is asked for, and this machine has no CUDA device",
                fix="Use `device: cpu`, or a machine where `nvidia-smi -L` lists one",
            )
        return Plan(
            id=self.context.id,
            image=self.image,
            data=data,
            control=control,
            shaper=not _is_root(),
            racks=bool(self._racks) or self.context.multicast,
            folders=self.context.folders,
            gpus=gpus,
            records=self.context.directory.absolute(),
            premises=self.context.premises,
            trains=self.context.trains,
        )

    def _agent(self) -> Agent:
        from testbed.links.client import Agent

        if _is_root():
            return Agent.local(journal=self.journal)
        self.compose.start(SHAPER)
        inside = f"{project(self.context.id)}-{SHAPER}"
        command = ["docker", "exec", "-i", inside, "python", "-P", "-m", "testbed.links.agent"]
        agent = Agent(command, journal=self.journal)
        assert self.journal is not None
        # When the container is killed, the engine's client may wait for it for good.
        self.journal.add("process", pid=agent.pid, start=start_time(agent.pid))
        return agent

    def _place(self, spec: NodeSpec, container: Any) -> Place:
        container.reload()
        process = int(container.attrs["State"]["Pid"])
        if process == 0:
            how = self.dead().get(spec.name, "it did not start")
            said = container.logs(tail=5).decode(errors="replace").strip()
            raise ExperimentError(f"node {spec.name!r} {how}: {said}")
        self._processes[spec.name] = process
        assert self.plan is not None
        endpoint = container.attrs["NetworkSettings"]["Networks"][f"{project(self.plan.id)}-data"]
        nic, port = self.agent.locate(f"/proc/{process}/ns/net", endpoint["MacAddress"])
        return Place(
            spec=spec,
            data_address=str(address(self.plan.data, spec)),
            control_address=str(address(self.plan.control, spec)),
            nic=nic,
            port=port,
        )


def _is_root() -> bool:
    return os.geteuid() == 0
