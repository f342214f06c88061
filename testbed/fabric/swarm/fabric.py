"""The swarm fabric: every node a task of a Docker Swarm, on an existing swarm's hosts.

The controller runs as root on a manager. Its own task keeps a network namespace there, which is on
both networks: in it the session listens, and it stands for the switch.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import zlib
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from itertools import count
from threading import Event, Lock, Thread
from typing import IO

from testbed.errors import ExperimentError, MachineError
from testbed.fabric import cleanup
from testbed.fabric.base import Launched, Networks, RunContext
from testbed.fabric.cleanup import JournaledFabric
from testbed.fabric.docker import container_init as frames
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
UNPACK_S = 60.0
"""How long a task may take to write the files of the working folder, and to send what is kept."""
OUTPUT_BYTES = 256 << 20
"""Most bytes of a node's output that are brought back."""
_CHUNK, _AT_ONCE = 1 << 16, 4
"""Bytes that are read at once, and nodes whose output is brought back at a time."""

_MOST_STATUS = 255
"""The highest status with which a process ends; the lowest is that of a signal."""


class RemoteProcess:
    """A command's process on another host, as ``subprocess.Popen`` has it."""

    def __init__(self) -> None:
        reading, writing = os.pipe()
        self.stdout: IO[bytes] | None = os.fdopen(reading, "rb")
        self._writing: IO[bytes] | None = os.fdopen(writing, "wb", buffering=0)
        self._ended = Event()
        self.returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """Exit status. Raises subprocess.TimeoutExpired."""
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired("a command on another host", timeout or 0.0)
        assert self.returncode is not None
        return self.returncode

    def print(self, data: bytes) -> None:
        """Take in output; nothing: there will be no more."""
        if self._writing is not None and data:
            with suppress(OSError):  # nobody reads it any more
                self._writing.write(data)
        elif self._writing is not None:
            self._writing.close()
            self._writing = None

    def end(self, status: int) -> None:
        """Take in its exit status, of which the first counts."""
        if self.returncode is None:
            self.returncode = status
        self._ended.set()


class CommandChannel:
    """A connection to the first process of a task, which starts commands; see ``CommandKeeper``."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket, self._lock = connected, Lock()
        self._numbers = count(1)
        self._unpacked: Future[str] = Future()
        self._kept: Future[bytes] = Future()
        self._processes: dict[int, RemoteProcess] = {}
        self._marks: dict[int, socket.socket] = {}
        self._listener = ""
        """The path of the socket where marks are heard here."""
        self._lost = False
        Thread(target=self._read, name="commands", daemon=True).start()

    def unpack(self, node: str, archive: bytes) -> None:
        """Have the files of the working folder written. Raises ExperimentError."""
        self._send(frames.FILES, 0, archive)
        try:
            wrong = self._unpacked.result(UNPACK_S)
        except TimeoutError:
            wrong = f"it took more than {UNPACK_S:g} s"
        if wrong:
            raise ExperimentError(f"the working folder could not be copied to {node}: {wrong}")

    def launch(self, command: Sequence[str], environment: Mapping[str, str]) -> RemoteProcess:
        """Start a command. Its marks come to the listener that ``NARROWS_MARKS`` names here."""
        process, number = RemoteProcess(), next(self._numbers)
        self._listener = environment["NARROWS_MARKS"]
        with self._lock:
            self._processes[number] = process
            lost = self._lost
        if lost:
            self._end(process)
        self._send(frames.LAUNCH, number, json.dumps([list(command), dict(environment)]).encode())
        return process

    def signal(self, number: int) -> None:
        """Send a signal to every process of the task but the first."""
        self._send(frames.SIGNAL, number)

    def kept(self) -> bytes:
        """Return the task's output as an archive; nothing where it cannot be had, and an archive of
        nothing where it has been before. Every process of the task but the first has ended then."""
        if not self._kept.done():
            self._send(frames.KEPT, OUTPUT_BYTES)
        try:
            kept = self._kept.result(UNPACK_S)
        except TimeoutError:
            return b""
        with self._lock:
            if kept or not self._lost:
                again: Future[bytes] = Future()
                if kept:
                    again.set_result(bytes(1))
                self._kept = again  # what was had may be large
        return kept

    def keep(self) -> None:
        """Have all stay when this end is closed."""
        self._send(frames.KEEP, 0)

    def close(self) -> None:
        """End the connection, and the task with it; for us its processes have ended."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _send(self, kind: int, number: int, data: bytes = b"") -> None:
        with self._lock, suppress(OSError):  # noticed where it is read
            frames.send_frame(self._socket, kind, number, data)

    def _read(self) -> None:
        try:
            with self._socket, suppress(LookupError, ValueError, InvalidStateError):
                while self._take(frames.take_frame(self._socket)):
                    pass
        finally:
            self._lose()

    def _take(self, frame: tuple[int, int, bytes] | None) -> bool:
        """Do what a frame says; False where the connection has ended."""
        if frame is None:
            return False
        kind, number, data = frame
        if kind == frames.FILES:
            self._unpacked.set_result(data.decode(errors="replace"))
        elif kind == frames.KEPT:
            self._kept.set_result(data)
        elif kind == frames.PRINTED:
            self._processes[number].print(data)
        elif kind == frames.ENDED:
            self._processes[number].end(max(-_MOST_STATUS, min(int(data), _MOST_STATUS)))
        elif kind == frames.OPENED:
            self._open(number)
        elif kind in (frames.MARKS, frames.CLOSED):
            self._hear(number, data)
        return True

    def _lose(self) -> None:
        """For us all has ended."""
        with self._lock:
            self._lost = True
            processes = list(self._processes.values())
        for process in processes:
            self._end(process)
        for connected in [*self._marks.values()]:
            connected.close()
        if not self._unpacked.done():
            self._unpacked.set_result("its task has ended")
        if not self._kept.done():
            self._kept.set_result(b"")

    @staticmethod
    def _end(process: RemoteProcess) -> None:
        process.print(b"")
        process.end(-signal.SIGKILL)

    def _open(self, number: int) -> None:
        """Connect to the listener of marks for a process that has connected there."""
        try:
            connected = self._marks[number] = socket.socket(socket.AF_UNIX)
            connected.connect(self._listener)
            Thread(target=self._answer, args=(number, connected), daemon=True).start()
        except (OSError, RuntimeError):
            if (failed := self._marks.pop(number, None)) is not None:
                failed.close()
            self._send(frames.CLOSED, number)

    def _hear(self, number: int, data: bytes) -> None:
        """Pass on what a process says to the listener of marks; nothing: its end."""
        connected = self._marks.get(number) if data else self._marks.pop(number, None)
        if connected is not None:
            with suppress(OSError):
                connected.sendall(data) if data else connected.shutdown(socket.SHUT_RDWR)

    def _answer(self, number: int, connected: socket.socket) -> None:
        """Pass on what the listener answers, until either end has closed."""
        with connected:
            data = b"."
            while data:
                data = b""
                with suppress(OSError):
                    data = connected.recv(_CHUNK)
                self._send(frames.MARKS if data else frames.CLOSED, number, data)
        self._marks.pop(number, None)


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
        self._commands: dict[str, CommandChannel] = {}
        """Connections to nodes in which commands are launched, by node."""

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
            manager=self.swarm.own,
            folders=tuple(each.path for each in self.context.folders),
            trains=self.context.trains,
            exec_environment=self.context.exec_environment,
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
        if (offered := self.context.exec_environment) is not None:
            self._attach(offered.files)
        return places

    def _attach(self, files: bytes) -> None:
        """Reach the first process of every node's task, and give it the working folder's files."""
        assert self._listener is not None
        for name, spec in self.specs.items():
            if not self.context.runs_our_process(spec):
                self._commands[name] = CommandChannel(self.agent.attach(name, self._listener))
        with ThreadPoolExecutor(max(1, len(self._commands))) as pool:
            unpacking = [
                pool.submit(commands.unpack, name, files)
                for name, commands in self._commands.items()
            ]
        for each in unpacking:
            each.result()

    def launch(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> Launched:
        """Start a command by the first process of the node's task."""
        return self._commands[name].launch(command, environment)

    def signal(self, name: str, number: int) -> None:
        """To all processes in the task but the first; on a host that no longer answers they have
        ended."""
        if any(name in nodes for nodes in self.agent.silent().values()):
            self._commands[name].close()
        self._commands[name].signal(number)

    def keep(self) -> None:
        """Save output; leave commands' tasks standing, too."""
        self._save_output()
        for commands in self._commands.values():
            commands.keep()
        super().keep()

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
            staffed = [
                name
                for name, spec in self.specs.items()
                if name not in gone and self.context.runs_our_process(spec)
            ]
            self.swarm.save_logs(self.folder.folder("log"), staffed, LOGS_S)

    def destroy(self) -> None:
        """Save output and logs, then remove whatever of this run is there, on every host."""
        listening = () if self._listener is None else (self._listener.close,)
        connected = [each.close for each in self._commands.values()]
        try:
            self._save_output()
        finally:
            self._commands = {}
            self.remove(self.swarm.close, *connected, *listening)

    def _save_output(self) -> None:
        """Write what commands want kept to ``output/<node>.tar``, of a few nodes at a time."""
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(self._save_output_of, self._commands))

    def _save_output_of(self, node: str) -> None:
        silent = any(node in nodes for nodes in self.agent.silent().values())
        kept = b"" if silent else self._commands[node].kept()
        if not kept:
            sys.stderr.write(
                f"testbed: what {node} wrote to {frames.OUTPUT_PATH} was not kept: its task has "
                f"ended, or it has more than {OUTPUT_BYTES >> 20} MiB, or a file that cannot be "
                "read\n"
            )
        elif any(kept) and self.folder is not None:
            self.folder.folder("output").write(f"{node}.tar", kept)

    def _document(self) -> Document:
        assert self.plan is not None
        return render([*self.specs.values()], self.plan, load_templates(shipped("compose")))

    def _check(self) -> None:
        if self.context.multicast:
            refuse("multicasts")
