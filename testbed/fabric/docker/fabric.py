"""The docker fabric: every node a container of one Compose project, on a shaped and an unshaped
bridge.

The engine, which is root, looks for a container's folders by their paths when it starts. Whoever
owns a folder on the way may have put another, or a link, in its place: so what is mounted is
compared with what was there when the run began. Commands are started by the engine's own client.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from ipaddress import IPv4Network
from pathlib import Path
from typing import TYPE_CHECKING, Any

from testbed.errors import ExperimentError, MachineError
from testbed.fabric import cleanup
from testbed.fabric.base import Identity, Networks, RunContext
from testbed.fabric.cleanup import JournaledFabric
from testbed.fabric.docker import engine
from testbed.fabric.docker.compose_file import (
    SHAPER,
    ComposePlan,
    Document,
    address,
    container_name,
    gateway,
    load_templates,
    project,
    render,
    to_yaml,
)
from testbed.fabric.docker.container_init import KILL, START
from testbed.fabric.docker.engine import Compose, Objects, SubnetTaken, subnets_in_use
from testbed.fabric.file_view import between
from testbed.fabric.netns import install, plan_core, plan_racks, run_alias, run_tag
from testbed.host import images
from testbed.host.checks import free_subnets, routed
from testbed.host.packages import answer
from testbed.host.paths import shipped
from testbed.journal import Journal, start_time
from testbed.process import unescaped
from testbed.topology import Cable, NodePlacement, NodeSpec, RackSpec
from testbed.user_files import PinnedFolder

if TYPE_CHECKING:
    from testbed.links.agent.client import AgentClient


Mounts = Counter[Identity]
"""How often each folder or file is mounted."""
_LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def wanted(service: Document, pins: Mapping[Path, Identity]) -> Mounts:
    """Return the mounts of a service: by ``pins``, else what is there now. Raises OSError."""
    sources = [Path(volume["source"]) for volume in service.get("volumes", ())]
    return Counter(pins[path] if path in pins else _identity(path) for path in sources)


def check(node: str, process: int, expected: Mounts) -> None:
    """Raises ExperimentError where a container lacks any. ``process``: one of it, on the host."""
    if expected - _mounted(process):
        raise ExperimentError(
            f"{node}'s container was given another folder than the run began with: somebody put "
            "one in its place"
        )


def pins_below(folder: Path, below: Path) -> dict[Path, Identity]:
    """The working directory, whose path is ``folder``, and the folders from there to ``below``,
    which it does not count.

    No link is followed, so all of them are in it. Raises OSError.
    """
    paths = (folder, *between(folder, below))
    return {path: _close(_walk(".", path.relative_to(folder).parts)) for path in paths}


def _mounted(process: int) -> Mounts:
    mounts: Mounts = Counter()
    root = f"/proc/{process}/root"
    for line in Path(f"/proc/{process}/mountinfo").read_bytes().splitlines():
        fields = os.fsdecode(line).split(" ")
        number, point = fields[0], unescaped(fields[4])
        # Covered by another mount, or of a file system that nobody else may look into.
        with suppress(OSError):
            descriptor = _walk(root, Path(point).parts[1:])
            mount = _mount_of(descriptor)
            identity = _close(descriptor)
            mounts[identity] += mount == number
    return mounts


def _walk(begin: str, names: Iterable[str]) -> int:
    """A descriptor of what is reached without any link."""
    descriptor = os.open(begin, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    for name in names:
        try:
            below = os.open(name, _LOOK, dir_fd=descriptor)
        finally:
            os.close(descriptor)
        descriptor = below
    return descriptor


def _mount_of(descriptor: int) -> str:
    """The number of the mount that an open file is in."""
    (number,) = re.findall(
        r"^mnt_id:\s*(\d+)$", Path(f"/proc/self/fdinfo/{descriptor}").read_text(), re.M
    )
    return str(number)


def _identity(path: Path) -> Identity:
    return _close(os.open(path, os.O_PATH | os.O_CLOEXEC))


def _close(descriptor: int) -> Identity:
    try:
        state = os.fstat(descriptor)
        return state.st_dev, state.st_ino
    finally:
        os.close(descriptor)


_PROGRAM = "docker"
_PATIENCE_S = 10.0
_LINE_BYTES = 60_000
"""The client reads no longer lines in a file of variables."""


def launch(
    container: str, command: Sequence[str], environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a command; the client's status is the command's. It does not end with its client:
    ``send`` ends it.

    Variables are handed over in a file that has no name, and what fits no line of one in the
    client's own environment: everybody may read a command line.
    """
    lines = {name: value for name, value in environment.items() if _fits_a_line(name, value)}
    others = {name: value for name, value in environment.items() if name not in lines}
    named = [part for name in others for part in ("--env", name)]
    with _unnamed("".join(f"{name}={value}\n" for name, value in lines.items())) as file:
        # A session of its own: Ctrl-C is the run's to hear.
        return subprocess.Popen(
            [_PROGRAM, "exec", "--env-file", f"/proc/self/fd/{file}", *named, container, *command],
            env={**os.environ, **others},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=(file,),
        )


def _fits_a_line(name: str, value: str) -> bool:
    """Return whether the client would read the same variable from a line of a file."""
    line = f"{name}={value}"
    plain = not line.startswith("#") and not any(mark in line for mark in "\r\n")
    return plain and len(os.fsencode(line)) < _LINE_BYTES and "\ufeff" not in name


@contextmanager
def _unnamed(text: str) -> Iterator[int]:
    """A descriptor of a file in memory that holds ``text``; whoever inherited it keeps it."""
    descriptor = os.memfd_create("variables")
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(os.fsencode(text))
        yield descriptor
    finally:
        os.close(descriptor)


def send(container: str, number: int) -> None:
    """A signal to all processes of a container but its first; nothing happens where there is none,
    or no shell.

    Raises MachineError where the engine does not answer.
    """
    try:
        subprocess.run(
            [_PROGRAM, "exec", container, "sh", "-c", f"kill -{number} -1"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PATIENCE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise MachineError(
            f"the Docker engine did not signal {container} in {_PATIENCE_S:g} s"
        ) from None


_ATTEMPTS = 5
"""How often other subnets are tried when another run takes ours between looking and making."""


class DockerFabric(JournaledFabric):
    """Containers made by Compose. Raises MachineError when engine, Compose or images lack."""

    agent: AgentClient

    def __init__(self, context: RunContext) -> None:
        self.context = context
        for known in (cleanup, engine):
            known.register()
        self.image = images.require()
        self.objects = Objects(context.id)
        self.compose = Compose(context.id, context.token)
        self.folder: PinnedFolder | None = None
        self._mounts: Mapping[str, Mounts] = {}
        self._processes: dict[str, int] = {}
        self.specs: dict[str, NodeSpec] = {}
        self.plan: ComposePlan | None = None
        self.racks: dict[str, Cable] = {}
        self._racks: tuple[RackSpec, ...] = ()

    def create(self, specs: list[NodeSpec], racks: Sequence[RackSpec] = ()) -> Networks:
        """Write ``compose.yaml``; make networks and containers; have an agent."""
        self.folder = self.context.opened()
        self._racks = tuple(racks)
        self.specs = {spec.name: spec for spec in specs}
        self.journal = Journal.open(self.context.id)
        self.journal.add(engine.KIND, run=self.context.id)
        self.plan = self._make(specs)
        self.agent = self._agent()
        addresses = {spec.name: str(address(self.plan.control, spec)) for spec in specs}
        host, switch = str(gateway(self.plan.control)), str(gateway(self.plan.data))
        return Networks(host, switch, None, addresses)

    def start(self) -> dict[str, NodePlacement]:
        """Start the nodes' containers. Raises ExperimentError when one ends at once."""
        self.compose.start(*self.specs)
        containers = self.objects.containers()
        places = {
            name: self._placement(spec, containers[name]) for name, spec in self.specs.items()
        }
        if _is_root():  # no other may look; before any command of the job's is started
            for name, process in self._processes.items():
                check(name, process, self._mounts[name])
        assert self.plan is not None
        self.agent.fill_neighbour_tables(places.values(), str(gateway(self.plan.data)))
        tag, alias = run_tag(self.context.id), run_alias(self.context.id)
        core = None
        if self.context.multicast:
            _, places = install(self.agent, plan := plan_core(tag, alias, places), places)
            core = plan.netns
        plan = plan_racks(tag, alias, self._racks, places, core)
        self.racks, places = install(self.agent, plan, places)
        return places

    def dead(self) -> dict[str, str]:
        """Nodes whose container has ended, each with how; what they wrote is then in the log
        folder."""
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
        if not self.context.runs_our_process(self.specs[name]):
            self.signal(name, signal.SIGKILL)
            return
        self.objects.signal(name, "SIGKILL" if self.specs[name].role == "server" else KILL)

    def restart(self, name: str) -> None:
        """Start a killed node's processes again, in the same container with the same links."""
        self.objects.signal(name, START)

    def destroy(self) -> None:
        """Save the logs, then stop and remove whatever of this run is there."""
        self.remove(self.objects.close)

    def save_logs(self) -> None:
        """Write the output of every container with a process of ours to ``log/<node>.log``."""
        staffed = [name for name, spec in self.specs.items() if self.context.runs_our_process(spec)]
        if self.folder is not None:
            self.objects.save_logs(self.folder.folder("log"), staffed)

    def _make(self, specs: list[NodeSpec]) -> ComposePlan:
        templates = load_templates(shipped("compose"))
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
        pins = self.context.pins()
        services = document["services"].items()
        return {name: wanted(service, pins) for name, service in services}

    def _plan(self, specs: list[NodeSpec], data: IPv4Network, control: IPv4Network) -> ComposePlan:
        cuda = any(spec.device == "cuda" for spec in specs)
        gpus = len((answer(["nvidia-smi", "-L"]) or "").splitlines()) if cuda else 1
        if not gpus:
            raise MachineError(
                "`device: cuda` is asked for, and this machine has no CUDA device",
                fix="Use `device: cpu`, or a machine where `nvidia-smi -L` lists one",
            )
        return ComposePlan(
            id=self.context.id,
            image=self.image,
            data=data,
            control=control,
            shaper=not _is_root(),
            racks=bool(self._racks) or self.context.multicast,
            folders=tuple(each.path for each in self.context.folders),
            gpus=gpus,
            records=self.context.directory.absolute(),
            exec_environment=self.context.exec_environment,
            trains=self.context.trains,
        )

    def _agent(self) -> AgentClient:
        from testbed.links.agent.client import AgentClient

        if _is_root():
            return AgentClient.local(journal=self.journal)
        self.compose.start(SHAPER)
        inside = f"{project(self.context.id)}-{SHAPER}"
        server = ["python", "-P", "-m", "testbed.links.agent.server"]
        agent = AgentClient([_PROGRAM, "exec", "-i", inside, *server], journal=self.journal)
        assert self.journal is not None
        # When the container is killed, the engine's client may wait for it for good.
        self.journal.add("process", pid=agent.pid, start=start_time(agent.pid))
        return agent

    def _placement(self, spec: NodeSpec, container: Any) -> NodePlacement:
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
        data, control = (str(address(each, spec)) for each in (self.plan.data, self.plan.control))
        return NodePlacement(spec, data, control, nic, port)


def _is_root() -> bool:
    return os.geteuid() == 0
