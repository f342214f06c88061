"""Command, environment and user of a foreign job's processes, and whether they can run there.

Rank and world are told under the names that torchrun (``PET_…``), PyTorch, gloo, NCCL, TensorPipe
and programs made for Open MPI's ``mpirun`` read.

Variables of a job that its user names, as Docker's ``--env`` and ``--env-file`` read them. Which
others reach nodes: ``testbed/process.py``.

What a command line has everybody may read: secrets are given in a file, or by their names alone.

A line is ``NAME=VALUE``, the value taken as it is, or ``NAME`` for a variable that this process
has; empty lines and those that begin with ``#`` say nothing. No message shows what a line holds: it
may be a secret.
"""

from __future__ import annotations

import os
import pwd
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path, PurePath
from typing import Any

from testbed.errors import InputError
from testbed.fabric.file_view import account
from testbed.scenario.expand import expand
from testbed.scenario.load import Loaded
from testbed.scenario.node_timeline import flows, nobody_leaves
from testbed.user_files import PinnedFolder, home, text_of

MASTER_PORT = 29500
"""Where the first process answers the others: PyTorch's own choice."""
_LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch")
LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,40}")
"""The names that a job may have."""


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """A command for all nodes but hosts. ``processes``: of each; ``seconds``: wall time."""

    command: tuple[str, ...]
    name: str = "job"
    processes: int = 1
    await_begin: bool = False
    """The links' history starts when every process has called ``testbed.mark.begin``."""
    seconds: float | None = None
    environment: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Variables besides, the last of a name being the one that counts. Values may be secrets."""

    @property
    def launches(self) -> bool:
        """Return whether the command starts a node's processes itself, as torchrun does."""
        if PurePath(self.command[0]).name == "torchrun":
            return True
        return any(
            first == "-m" and module in _LAUNCHERS for first, module in pairwise(self.command)
        )

    @property
    def started(self) -> int:
        """How many processes of a node are started by us."""
        return 1 if self.launches else self.processes

    def threads(self, processors: int, nodes: int) -> int:
        """With how many each process should compute, whoever starts it."""
        return max(1, processors // (nodes * self.processes))

    def to_json(self) -> dict[str, Any]:
        """Return what a manifest says of it, as of an algorithm; of variables the names alone."""
        row = {"name": self.name, "command": list(self.command), "nproc": self.processes}
        names = sorted(dict(self.environment))
        return {**row, "variables": names} if names else row


@dataclass(frozen=True, slots=True)
class ProcessSlot:
    """One process's place: all ``nodes`` by rank; data network's addresses and interface."""

    nodes: Sequence[str]
    node_rank: int
    local_rank: int
    address: str
    master: str
    interface: str

    @property
    def node(self) -> str:
        """Its node's name."""
        return self.nodes[self.node_rank]


def variables(spec: LaunchSpec, slot: ProcessSlot, marks: str, threads: int) -> dict[str, str]:
    """The environment of the process in ``slot``. ``marks``: where ``testbed.mark`` finds its
    listener; ``threads``: that it should compute with."""
    return {
        **dict(_ranks(spec, slot)),
        **_network(slot, alone=spec.processes == 1),
        "NARROWS_NODE": slot.node,
        "NARROWS_ADDRESS": slot.address,
        "NARROWS_INTERFACE": slot.interface,
        "NARROWS_MARKS": marks,
        "OMP_NUM_THREADS": str(threads),
        "PYTHONUNBUFFERED": "1",
        **dict(spec.environment),
    }


def _ranks(spec: LaunchSpec, slot: ProcessSlot) -> Iterator[tuple[str, str]]:
    nodes, each = len(slot.nodes), spec.processes
    rank, world = slot.node_rank * each + slot.local_rank, nodes * each
    if spec.launches:
        yield "PET_NNODES", str(nodes)
        yield "PET_NPROC_PER_NODE", str(each)
        yield "PET_NODE_RANK", str(slot.node_rank)
        yield "PET_MASTER_ADDR", slot.master
        yield "PET_MASTER_PORT", str(MASTER_PORT)
    for name, value in (
        ("RANK", rank),
        ("WORLD_SIZE", world),
        ("LOCAL_RANK", slot.local_rank),
        ("LOCAL_WORLD_SIZE", each),
    ):
        yield name, str(value)
        mpi = {"RANK": "RANK", "WORLD_SIZE": "SIZE", "LOCAL_WORLD_SIZE": "LOCAL_SIZE"}
        yield f"OMPI_COMM_WORLD_{mpi.get(name, name)}", str(value)
    for name in ("NODE_RANK", "GROUP_RANK"):
        yield name, str(slot.node_rank)
    yield "MASTER_ADDR", slot.master
    yield "MASTER_PORT", str(MASTER_PORT)


def _network(slot: ProcessSlot, *, alone: bool) -> dict[str, str]:
    """Libraries left to themselves take the address of the host's name, or pass data through
    memory.

    ``alone``: a node's only process has nobody whom memory would be the right way to.
    """
    around = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"} if alone else {}
    return {
        **around,
        "GLOO_SOCKET_IFNAME": slot.interface,
        "TP_SOCKET_IFNAME": slot.interface,
        "NCCL_SOCKET_IFNAME": slot.interface,
        "NCCL_HOSTID": slot.node,  # nodes are hosts of their own, though they share one
        "NCCL_IB_DISABLE": "1",
    }


MOST_BYTES = 1 << 16
"""Most bytes of a job's variables in all: half of the kernel's longest environment string."""
_FILE_BYTES = 1 << 20
_NAME = re.compile(r"[^\s=\0]+")


def read_env_file(path: Path, own: Mapping[str, str] = os.environ) -> tuple[tuple[str, str], ...]:
    """The variables that a file lists, in its order. ``own``: where those without a value are taken
    from, if there.

    Raises InputError with the line that is none.
    """
    text = text_of(path, _FILE_BYTES, "Write one NAME=VALUE in a line")
    lines = ((n, line.removesuffix("\r").lstrip()) for n, line in enumerate(text.split("\n"), 1))
    variables = [
        _variable(line, f"{path}:{number}", own)
        for number, line in lines
        if line and not line.startswith("#")
    ]
    return tuple((name, value) for name, value in variables if value is not None)


def named(text: str, own: Mapping[str, str] = os.environ) -> tuple[str, str]:
    """The variable that ``NAME=VALUE`` is, or that ``NAME`` is in ``own``.

    Raises InputError where there is no name, or no variable of that name.
    """
    name, value = _variable(text, "--env", own)
    if value is None:
        raise InputError(
            f"{name!r} is not set where the command was started",
            where="--env",
            hint="Write NAME=VALUE, or name a file with it: --env-file FILE",
        )
    return name, value


def _variable(text: str, where: str, own: Mapping[str, str]) -> tuple[str, str | None]:
    """Return name and value; None where the text has no value, and ``own`` no such variable."""
    name, equals, value = text.partition("=")
    if not _NAME.fullmatch(name):
        raise InputError(
            "the name of a variable is missing, or has a space in it",
            where=where,
            hint="Write NAME=VALUE",
        )
    return name, value if equals else own.get(name)


def check_size(variables: tuple[tuple[str, str], ...]) -> None:
    """Raises InputError where variables are more than a process can be given."""
    size = sum(len(os.fsencode(f"{name}={value}")) for name, value in variables)
    if size > MOST_BYTES:
        raise InputError(
            f"the variables of the command have {size} bytes, of {MOST_BYTES} that can be given",
            where="--env, --env-file",
            hint="Put what is long into a file, and its name into a variable",
        )


NOBODY = 10001
"""Who it is where nobody else is known: the user and the group of our own image."""
FOLDER = "output"
"""In a run's directory: what its job has made."""
_READ, _READ_FILE, _WRITE = 0o5, 0o4, 0o2
_ID_DIGITS, _NO_ID = 10, 2**32 - 1
_HOME_OF_ROOT = Path("/root")


@dataclass(frozen=True, slots=True)
class Tenant:
    """A user that is not root, with one group."""

    user: int
    group: int

    def __str__(self) -> str:
        return f"{self.user}:{self.group}"

    def may(self, folder: Path, bits: int) -> bool:
        """Return whether the folder's mode gives it ``bits`` (as others' in a mode)."""
        return self._has(folder.stat(), bits)

    def may_read(self, state: os.stat_result) -> bool:
        """Return the same of reading a file or folder, by its state."""
        return self._has(state, _READ if stat.S_ISDIR(state.st_mode) else _READ_FILE)

    def _has(self, state: os.stat_result, bits: int) -> bool:
        shift = 6 if state.st_uid == self.user else 3 if state.st_gid == self.group else 0
        return stat.S_IMODE(state.st_mode) >> shift & bits == bits

    def writes(self, folder: Path) -> bool:
        """Return whether it can make files in a folder."""
        return self.may(folder, _READ | _WRITE)


def tenant(folder: Path, environ: Mapping[str, str] = os.environ) -> Tenant:
    """Who is to work in ``folder``: whoever calls us; instead of root the folder's owner, else who
    became root by sudo (``SUDO_UID``), else ``NOBODY``.

    Raises InputError where that user cannot read the folder.
    """
    owner = _tenant(folder, os.getuid(), os.getgid(), environ)
    if not owner.may(folder, _READ):
        raise InputError(
            f"containers never run as root, and {owner}, as who they would, may not read this "
            "folder",
            where=str(folder),
            hint=f"Start the command in a folder of an ordinary user's (`chown -R {owner} .` makes "
            "this one that), or have others read it (`chmod o+rx .`)",
        )
    return owner


def make_output(run: Path, folder: PinnedFolder, owner: Tenant) -> Path:
    """Make the folder for a job's output, the tenant's own, in ``folder``, which is the run's;
    returns its path. ``run``: the run's. Raises OSError."""
    output = folder.new(FOLDER)
    if os.geteuid() == 0:
        os.fchown(output.descriptor, owner.user, owner.group)
    return run.resolve() / FOLDER


def make_home_of_root(directory: Path, at: Path) -> Path | None:
    """Make a folder that can stand for ``/root`` where ``directory`` is below: empty but for the
    way there, which all may go. None where it is elsewhere. Raises OSError."""
    if _HOME_OF_ROOT not in directory.parents:
        return None
    folder = at / "root"
    for name in ("", *directory.relative_to(_HOME_OF_ROOT).parts):
        folder = folder / name
        folder.mkdir()
        folder.chmod(0o755)  # whatever the umask says
    return at / "root"


def drop_if_empty(folder: PinnedFolder) -> None:
    """Remove the output of a run's folder again if it is there, and nothing was put into it."""
    with suppress(OSError):
        os.rmdir(FOLDER, dir_fd=folder.descriptor)


def _tenant(folder: Path, user: int, group: int, environ: Mapping[str, str]) -> Tenant:
    if user != 0:
        return Tenant(user, group)
    state = folder.stat()
    if state.st_uid != 0:
        return Tenant(state.st_uid, state.st_gid or _group(state.st_uid))
    caller = by_sudo("SUDO_UID", environ)
    return Tenant(NOBODY, NOBODY) if caller is None else Tenant(caller, _group(caller))


def by_sudo(name: str, environ: Mapping[str, str] = os.environ) -> int | None:
    """The user or the group, as ``name`` says, that became root by sudo; None for root, and where
    it is none."""
    text = environ.get(name, "")
    number = int(text) if text.isascii() and text.isdecimal() and len(text) <= _ID_DIGITS else 0
    return number if 0 < number < _NO_ID else None


def _group(user: int) -> int:
    """A user's own group; not root's."""
    try:
        return pwd.getpwuid(user).pw_gid or user
    except KeyError:
        return user


DOCKER = "docker"
"""The fabric whose nodes are containers."""
SWARM = "swarm"
"""The fabric whose nodes are on several hosts."""
_SYSTEM = (
    *("bin", "boot", "dev", "etc", "lib", "lib32", "lib64"),
    *("proc", "run", "sbin", "sys", "usr"),
)
_OF_ROOTS = (
    *("var/cache", "var/lib/cloud", "var/lib/docker", "var/lib/dpkg", "var/lib/systemd"),
    *("var/log", "var/spool"),
)
"""Where what root owns is the system's: tables of cron, scripts of packages."""
_SHARED = ("home", "opt", "root", "srv", "tmp", "var", "var/lib", "var/tmp")


def check_nodes(loaded: Loaded) -> None:
    """Raises InputError for traffic or absence of nodes that run the command."""
    nobody_leaves(loaded)
    hosts = {spec.name for spec in expand(loaded.scenario) if spec.role == "host"}
    for flow in flows(loaded.scenario):
        if others := {flow.source, flow.sink} - hosts:
            raise InputError(
                f"traffic {flow.name!r}: {', '.join(sorted(others))} runs the command, and no "
                "traffic of ours",
                where=str(loaded.source),
                hint="Have it made between nodes with `role: host`, in the same racks",
            )


def check_fabric(loaded: Loaded, fabric: str) -> None:
    """Raises InputError where there are no real nodes, or none with images."""
    if fabric == "sim":
        raise InputError(
            "a command runs on real nodes only: in virtual time there are none",
            where="--fabric",
            hint="Use netns, docker or swarm",
        )
    here = Path.cwd()
    if here == Path("/") or (_others_use(here) and (fabric == DOCKER or account() is not None)):
        raise InputError(
            "nodes may write to the folder that the command starts in, which would be all of "
            f"{here}",
            where="the working directory",
            hint="Start it in a folder of its own",
        )
    images = [name for name, group in loaded.scenario.nodes.items() if group.image is not None]
    if images and fabric != DOCKER:
        raise InputError(
            f"{', '.join(images)}: nodes of {fabric!r} cannot have images of their own",
            where=str(loaded.source),
            hint="Use --fabric docker, or leave `image` out",
        )


def _others_use(folder: Path) -> bool:
    """Return whether a folder has a home or the system in it: others run what is there."""
    root, owner = Path("/"), folder.stat().st_uid
    homes = [own] if (own := home()) else []
    with suppress(KeyError):  # a user without an entry
        homes.append(Path(pwd.getpwuid(owner).pw_dir))
    return any(
        [
            *(home.resolve().is_relative_to(folder) for home in homes if home.is_dir()),
            *(folder.is_relative_to(root / name) for name in _SYSTEM),
            *(folder.is_relative_to(root / name) for name in _OF_ROOTS if owner == 0),
            *(folder == root / name for name in _SHARED),
        ]
    )
