"""The swarm fabric: every node a task of a Docker Swarm, on an existing swarm's hosts.

The controller runs as root on a manager. Its own task keeps a network namespace there, which is on
both networks: in it the session listens, and it stands for the switch.
"""

from __future__ import annotations

import os
import shutil
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from testbed.errors import ExperimentError, MachineError
from testbed.fabric import cleanup
from testbed.fabric.base import Launched, Networks, RunContext
from testbed.fabric.cleanup import JournaledFabric
from testbed.fabric.docker.compose_file import Document, load_templates, to_yaml
from testbed.fabric.netns import install, plan_racks, run_alias, run_tag
from testbed.fabric.swarm import engine
from testbed.fabric.swarm.agents import OVERLAY, AgentListener, HostAgents
from testbed.fabric.swarm.engine import SwarmManager, image_reference
from testbed.fabric.swarm.stack_file import (
    AGENT,
    CONTROLLER,
    StackPlan,
    assign,
    check_underlay,
    refuse,
    render,
    without_nodes,
)
from testbed.host import images
from testbed.host.checks import free_subnets, routed
from testbed.host.paths import shipped
from testbed.journal import Journal
from testbed.topology import Cable, NodePlacement, NodeSpec, RackSpec
from testbed.user_files import PinnedFolder

FILE = "stack.yaml"
CONNECT_S = 30.0
LOGS_S = 10.0


class SwarmFabric(JournaledFabric):
    """Tasks of a swarm. Raises InputError for what no swarm has, MachineError where this is no
    manager, or not root."""

    agent: HostAgents

    def __init__(self, context: RunContext) -> None:
        self.context = context
        self._check()
        for known in (cleanup, engine):
            known.register()
        if os.geteuid() != 0:
            raise MachineError(
                "the controller of a swarm enters its task's network, which takes root",
                fix="Run it with sudo, on a manager of the swarm",
            )
        if shutil.which("docker") is None:
            raise MachineError("the program `docker` is missing", fix="Run `testbed setup`")
        images.require()
        self.swarm = SwarmManager(context.id)
        self.racks: dict[str, Cable] = {}
        self._racks: tuple[RackSpec, ...] = ()
        self.specs: dict[str, NodeSpec] = {}
        self.folder: PinnedFolder | None = None
        self.plan: StackPlan | None = None
        self._switch = ""
        self._listener: AgentListener | None = None

    def create(self, specs: list[NodeSpec], racks: Sequence[RackSpec] = ()) -> Networks:
        """Make both networks and the controller's task."""
        self._racks = tuple(racks)
        self.folder = self.context.opened()
        self.specs = {spec.name: spec for spec in specs}
        hosts = assign(specs, self.swarm.hosts(), self.context.swarm.placement, racks)
        image = image_reference(self.context.swarm.registry)
        self.journal = Journal.open(self.context.id)
        self.journal.add(engine.KIND, run=self.context.id)
        self.swarm.add_secret(self.context.token)
        taken = [*routed(), *self.swarm.taken()]
        # hosts may have networks that this one knows nothing of: so where to begin is random
        start = zlib.crc32(self.context.id.encode())
        data, control = free_subnets(taken, len(specs) + 2 * len(hosts), start=start)
        self.plan = StackPlan(
            id=self.context.id,
            image=image,
            data=data,
            control_network=control,
            hosts=hosts,
            folders=tuple(each.path for each in self.context.folders),
            trains=self.context.trains,
        )
        self.swarm.deploy(without_nodes(self._document()))
        (task,) = self.swarm.await_running([CONTROLLER])[CONTROLLER]
        netns = f"/proc/{self.swarm.process(task)}/ns/net"
        here = task.addresses["control"]
        self._listener = AgentListener(
            here, netns, self.context.token, {host.id: host for host in hosts.values()}
        )
        self.plan = replace(self.plan, control=here)
        self._switch = task.addresses["data"]
        return Networks(here, task.addresses["data"], netns, control_netns=netns)

    def start(self) -> dict[str, NodePlacement]:
        """Start agents and nodes; measure the network between hosts. Raises ExperimentError."""
        assert self.plan is not None and self.folder is not None and self._listener is not None
        document = self._document()
        self.folder.write(FILE, to_yaml(document).encode())
        self.swarm.deploy(document)
        nodes = {name: host.id for name, host in self.plan.hosts.items()}
        running = self.swarm.await_running([*self.specs, AGENT])
        self.agent = HostAgents(self._listener.agents(CONNECT_S), nodes)
        measured = self.agent.measure(self._listener)
        self.agent.shares = check_underlay(measured, self.plan.hosts, self.context.swarm.rates)
        addresses = {name: running[name][0].addresses for name in self.specs}
        data = {name: own["data"] for name, own in addresses.items()}
        if any(host.manager for host in self.plan.hosts.values()):
            data[CONTROLLER] = self._switch
        cables = self.agent.locate_tasks(self.swarm.network_id("data"), data)
        places = {
            name: NodePlacement(
                spec, addresses[name]["data"], addresses[name]["control"], *cables[name]
            )
            for name, spec in self.specs.items()
        }
        tag, alias = run_tag(self.context.id), run_alias(self.context.id)
        plan = plan_racks(tag, alias, self._racks, places, OVERLAY)
        self.racks, places = install(self.agent, plan, places)
        return places

    def launch(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> Launched:
        """No command can be launched in a task of another host."""
        del name, command, environment
        refuse("commands")

    def signal(self, name: str, number: int) -> None:
        """Nor can it be sent a signal."""
        del name, number
        refuse("signals")

    def pause(self, name: str) -> None:
        """Stop every process of a node's session, by the agent of its host."""
        self.agent.act(name, "pause")

    def resume(self, name: str) -> None:
        """Let them go on."""
        self.agent.act(name, "resume")

    def kill(self, name: str) -> None:
        """Kill them; the task stays, and with it the links. On a host that no longer answers, the
        task is ended."""
        if not self.agent.act(name, "kill"):
            self.swarm.stop_node(name)

    def restart(self, name: str) -> None:
        """Start a killed node's process in its task. Raises ExperimentError."""
        if not self.agent.act(name, "restart"):
            raise ExperimentError(f"the host of node {name!r} no longer answers")

    def dead(self) -> dict[str, str]:
        """Nodes whose task has ended, or whose host no longer answers, each with how."""
        dead: dict[str, str] = {}
        if hasattr(self, "agent"):
            for host, nodes in self.agent.silent().items():
                also = f", with {', '.join(nodes)}" if len(nodes) > 1 else ""
                dead |= dict.fromkeys(nodes, f"its host {host} no longer answers{also}")
        with suppress(MachineError):
            for task in self.swarm.tasks():
                if task.node and task.state in ("complete", "failed", "rejected", "orphaned"):
                    how = task.error or f"ended with exit code {task.exit_code}"
                    dead.setdefault(task.node, how)
        return dead

    def save_logs(self) -> None:
        """Write the output of every node's task to ``log/<node>.log``."""
        if self.folder is not None and self.plan is not None:
            silent = self.agent.silent() if hasattr(self, "agent") else {}
            gone = {node for nodes in silent.values() for node in nodes}
            there = [name for name in self.specs if name not in gone]
            self.swarm.save_logs(self.folder.folder("log"), there, LOGS_S)

    def destroy(self) -> None:
        """Save the logs, then remove whatever of this run is there, on every host."""
        listening = () if self._listener is None else (self._listener.close,)
        self.remove(self.swarm.close, *listening)

    def _document(self) -> Document:
        assert self.plan is not None
        return render([*self.specs.values()], self.plan, load_templates(shipped("compose")))

    def _check(self) -> None:
        if self.context.multicast:
            refuse("multicasts")
        if self.context.exec_environment is not None:
            refuse("commands")
