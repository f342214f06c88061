"""The fabric protocol and the fabrics that ship. Order of calls: create, (the session listens on
``control_host``), start, destroy.

Two networks on every fabric: ``data`` is shaped; ``control`` is not, and carries no training bytes.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol

from testbed.errors import InputError
from testbed.fabric.file_view import Shown
from testbed.process import seconds_given
from testbed.registry import Registry
from testbed.scenario.link_state import LinkDirection
from testbed.topology import Cable, NodePlacement, NodeSpec, RackSpec
from testbed.user_files import OpenedPath, PinnedFolder

if TYPE_CHECKING:
    from testbed.links.agent.client import AgentClient


_ID_BYTES = 8
"""Size of a run's id: two of as many runs as there will ever be do not get the same."""

START_S = seconds_given("NARROWS_START_S", 90.0)
"""How long nodes may take to start and import torch; machines that are very slow are given more."""


def new_id() -> str:
    """An id for a run, which nobody has had before."""
    return secrets.token_hex(_ID_BYTES)


@dataclass(frozen=True, slots=True)
class Networks:
    """The networks that ``create`` made. ``switch_address`` is the switch's own address on the data
    network.

    Namespaces are paths; None: this process's own.
    """

    control_host: str
    switch_address: str
    switch_netns: str | None
    control_addresses: Mapping[str, str] = field(default_factory=dict)
    """Address from which a node connects to ``control_host``, by node, if known."""
    control_netns: str | None = None


Identity = tuple[int, int]
"""The device and inode number of a file or a folder."""


@dataclass(frozen=True, slots=True)
class ExecEnvironment:
    """The environment that nodes offer to a command. Except in hosts, no process of ours runs."""

    directory: Path
    """Where the command starts. Containers have it under the same path, to read and to write; tasks
    of a swarm have a copy of its ``files``."""
    rendezvous_dir: Path
    """A folder of sockets through which the command's processes are heard; the same everywhere."""
    user: str
    """The user of their processes in containers, as ``uid:gid``, never root."""
    images: Mapping[str, str] = field(default_factory=dict)
    """The container image that a node has instead of ours, by node."""
    output: Path | None = None
    """A folder of that user's, in the run's directory; containers have it under another path."""
    home_of_root: Path | None = None
    """The folder that containers have as ``/root``; None: that of their images."""
    writable_root: bool = False
    """True if the root of other images than ours may be written to."""
    pins: Mapping[Path, Identity] = field(default_factory=dict)
    """Which folders those above, and the run's directory, are, whatever has their paths later."""

    files: bytes = field(default=b"", repr=False)
    """The contents of ``directory``, as an archive, for nodes that do not share it."""

    def shown(self, path: Path, *, writable: bool = True) -> Shown:
        """One of those folders, as nodes without containers have it."""
        return Shown(str(path), writable, self.pins.get(path))


@dataclass(frozen=True, slots=True)
class SwarmOptions:
    """Needs of the fabric ``swarm``. ``registry``: of the image; ``placement``: labels of
    hosts, by group of nodes; ``rates``: the highest of each link direction, bit/s."""

    registry: str | None = None
    placement: Mapping[str, str] = field(default_factory=dict)
    rates: Mapping[LinkDirection, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunContext:
    """The facts of the run that a fabric needs: a short unique id, and where files may go."""

    id: str
    directory: Path
    token: str
    """Secret that nodes show when they connect to the control network."""
    quiet: bool = False
    folders: tuple[OpenedPath, ...] = ()
    """Folders and files that every node must be able to read under these paths: a task's data."""
    multicast: bool = False
    """True if nodes send multicasts."""
    exec_environment: ExecEnvironment | None = None
    """The environment of nodes in which commands are launched, instead of processes of ours."""
    trains: bool = True
    """True if nodes other than hosts train; those that do not need no PyTorch."""

    swarm: SwarmOptions = field(default_factory=SwarmOptions)
    """Needs of the fabric ``swarm``."""

    folder: PinnedFolder | None = None
    """The run's directory, kept open as it was made; None: whatever is at its path."""

    def opened(self) -> PinnedFolder:
        """Return the run's directory; what its path leads to is made where nothing is there.
        Raises OSError."""
        if self.folder is not None:
            return self.folder
        self.directory.mkdir(parents=True, exist_ok=True)
        return PinnedFolder(self.directory.resolve())

    def pins(self) -> dict[Path, Identity]:
        """Return which folders nodes are shown, whatever has their paths later."""
        offered = {} if self.exec_environment is None else self.exec_environment.pins
        return {**{each.path: each.identity for each in self.folders}, **offered}

    def runs_our_process(self, spec: NodeSpec) -> bool:
        """Return whether a process of ours is in that node."""
        return self.exec_environment is None or spec.role == "host"


class Launched(Protocol):
    """A command's process, as ``subprocess.Popen`` has it."""

    stdout: IO[bytes] | None

    @property
    def returncode(self) -> int | None:
        """Exit status, negative for a signal; None before ``wait``."""

    def wait(self, timeout: float | None = None) -> int:
        """Exit status. Raises subprocess.TimeoutExpired."""
        ...


class Fabric(Protocol):
    """Where nodes run. Made from a ``RunContext``; ``destroy`` is safe at any time, and twice."""

    agent: AgentClient
    """The links agent of this fabric's host; usable after ``create``."""
    racks: dict[str, Cable]
    """The racks' cables by the racks' names; complete after ``start``."""

    def create(self, specs: list[NodeSpec], racks: Sequence[RackSpec] = ()) -> Networks:
        """Make networks (and, where nodes are containers, the containers, not started)."""
        ...

    def start(self) -> dict[str, NodePlacement]:
        """Start the nodes' processes; each connects to ``control_host``. Returns them by name.

        The racks are made, and each node's port is where it belongs.
        """
        ...

    def launch(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> Launched:
        """Start a command in a node of ``exec_environment``, unprivileged, outputs in its pipe.

        Its status is what a shell would say: 127, not found; 128 + n or -n, killed by signal n.
        """
        ...

    def signal(self, name: str, number: int) -> None:
        """Send a signal to everything that was launched in a node, and to what that has started."""
        ...

    def pause(self, name: str) -> None:
        """Hold every process of a node where it is. Raises ExperimentError when it cannot be."""
        ...

    def resume(self, name: str) -> None:
        """Let the processes of a paused node go on; nothing happens to another."""
        ...

    def kill(self, name: str) -> None:
        """Kill every process of a node; its network stays. ``dead`` omits it if it is a host."""
        ...

    def restart(self, name: str) -> None:
        """Start the processes of a killed host anew; it connects to ``control_host`` again."""
        ...

    def dead(self) -> dict[str, str]:
        """Nodes whose process has ended, by name, each with how (``"killed by signal 9"``)."""
        ...

    def save_logs(self) -> None:
        """Bring ``log/<node>.log`` in the context's directory up to date."""
        ...

    def keep(self) -> None:
        """Leave everything standing when this process ends; ``testbed clean --all`` removes it."""
        ...

    def destroy(self) -> None:
        """Stop every process and remove everything that was made."""
        ...


FabricMaker = Callable[[RunContext], Fabric]
"""Returns a fabric for one run; nothing is made yet. Raises MachineError where it cannot work."""

fabrics: Registry[FabricMaker] = Registry("fabric", "narrows.fabrics")


def _when_wanted(module: str, name: str) -> FabricMaker:
    """A fabric whose module is imported when one is made."""

    def make(context: RunContext) -> Fabric:
        fabric: Fabric = getattr(import_module(module), name)(context)
        return fabric

    return make


def _no_processes(context: RunContext) -> Fabric:  # noqa: ARG001
    raise InputError(
        "the fabric 'sim' has neither processes nor links: `run` and `compare` can be carried out "
        "on it",
        where="--fabric",
        hint="Real links have 'netns', 'docker' and 'swarm'",
    )


fabrics.add("netns", _when_wanted("testbed.fabric.netns", "NetnsFabric"))
fabrics.add("docker", _when_wanted("testbed.fabric.docker.fabric", "DockerFabric"))
fabrics.add("swarm", _when_wanted("testbed.fabric.swarm.fabric", "SwarmFabric"))
fabrics.add("sim", _no_processes)
