"""A control group for every node: what all of its processes together may use (cgroups(7)).

    base = find()      # raises MachineError with the reason where none can be made
    group = make(base, run, node, limits, journal)
    group.enter()      # this process, and all that it starts
    group.remove()     # ends who is left in it

In version 1 every controller has a hierarchy of its own, and a group is made in each below the
group of this process. In version 2 there is one hierarchy, in which groups that hold processes have
no others below them: a group is made below the nearest one above us that may be written to and
hands on both controllers.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.errors import MachineError
from testbed.journal import Journal
from testbed.process import unescaped
from testbed.topology import Limits

KIND = "cgroup"
"""The kind of journal entries ``{"path"}``, which name the folder of a node's group."""
CONTROLLERS = ("pids", "memory")
_MEMBERS, _HANDED_ON, _KILL = "cgroup.procs", "cgroup.subtree_control", "cgroup.kill"
_MEMORY_FILES = {
    1: ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
    2: ("memory.max", "memory.swap.max"),
}
"""Files that bound memory, and swap (in version 1 together with memory), keyed by version."""
_END_S, _LOOK_S = 5.0, 0.01
_PROC = Path("/proc/self")


@dataclass(frozen=True, slots=True)
class Base:
    """Where groups are made: folders, by controller; in version 2 they are one and the same."""

    version: int
    folders: dict[str, Path]

    def __str__(self) -> str:
        return (
            f"version {self.version}, below "
            f"{' and '.join(map(str, dict.fromkeys(self.folders.values())))}"
        )


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """A node's group."""

    folders: tuple[Path, ...]

    def enter(self, pid: int = 0) -> None:
        """Put a process into it (0: this one), with what it will start; what it has started stays
        where it is.

        Raises OSError. To be called while the process has the rights of whoever made the group.
        """
        for folder in self.folders:
            (folder / _MEMBERS).write_text(f"{pid}\n")

    def remove(self) -> None:
        """Kill every process in it and remove it; safe to call twice. Raises MachineError."""
        for folder in self.folders:
            _remove(folder)


def find(mounts: str | None = None, own: str | None = None) -> Base:
    """Where this process may make groups with both controllers. Raises MachineError that says why
    nowhere.

    ``mounts`` and ``own`` are as in ``/proc/self/mountinfo`` and ``/proc/self/cgroup``, which are
    read when not given.
    """
    mounted = list(_mounted(_text(_PROC / "mountinfo") if mounts is None else mounts))
    member = _member(_text(_PROC / "cgroup") if own is None else own)
    folders = {
        controller: _below(mount, member.get(controller, "/"))
        for controller in CONTROLLERS
        for mount in mounted
        if controller in mount.controllers
    }
    if len(folders) == len(CONTROLLERS):
        return Base(1, _writable(folders))
    unified = next((mount for mount in mounted if mount.version == 2), None)
    if folders or unified is None:
        lacking = " and ".join(name for name in CONTROLLERS if name not in folders)
        raise MachineError(f"no control groups with {lacking} are mounted")
    folder = _handing_on(unified.at, _below(unified, member.get("", "/")))
    return Base(2, dict.fromkeys(CONTROLLERS, folder))


def make(
    base: Base, run: str, node: str, limits: Limits, journal: Journal | None = None
) -> ControlGroup:
    """Make a node's group. The journal learns of it first. Raises OSError."""
    folders = {name: above / f"narrows-{run}" / node for name, above in base.folders.items()}
    for folder in dict.fromkeys(folders.values()):
        if journal is not None:
            journal.add(KIND, path=str(folder))
        folder.parent.mkdir(exist_ok=True)
        if base.version == 2:
            (folder.parent / _HANDED_ON).write_text(_plus())
        folder.mkdir()
    memory, swap = _MEMORY_FILES[base.version]
    (folders["pids"] / "pids.max").write_text(f"{limits.processes}\n")
    (folders["memory"] / memory).write_text(f"{limits.memory_bytes}\n")
    if (folders["memory"] / swap).exists():  # not every kernel counts it
        (folders["memory"] / swap).write_text(
            f"{limits.memory_bytes if base.version == 1 else 0}\n"
        )
    return ControlGroup(tuple(dict.fromkeys(folders.values())))


def clean(entry: dict[str, Any]) -> list[str]:
    """Remove the group of a journal's entry, and the run's above it; returns what that was. Raises
    MachineError."""
    folder = Path(entry["path"])
    if not folder.parent.name.startswith("narrows-"):
        return []
    if (folder / _MEMBERS).exists():
        _remove(folder)
        return [f"control group {folder}"]
    with suppress(OSError):  # it has other nodes' groups
        if (folder.parent / _MEMBERS).exists():  # the node's was not made yet, or is gone
            folder.parent.rmdir()
            return [f"control group {folder.parent}"]
    return []


@dataclass(frozen=True, slots=True)
class _Mount:
    """A hierarchy, or its part below ``root``. Of version 2 no controllers are told."""

    at: Path
    root: str
    controllers: frozenset[str]
    version: int


def _text(path: Path) -> str:
    """Return the text of a kernel's file. Paths in it are bytes that may be in no encoding."""
    return os.fsdecode(path.read_bytes())


def _mounted(text: str) -> Iterator[_Mount]:
    """The control groups in a ``mountinfo`` (proc(5))."""
    for line in text.splitlines():
        fields, _, rest = line.partition(" - ")
        kind, *_, options = rest.split(" ")
        root, at = map(unescaped, fields.split(" ")[3:5])
        if kind in ("cgroup", "cgroup2"):
            of = options.split(",") if kind == "cgroup" else []
            yield _Mount(Path(at), root, frozenset(of), 1 if kind == "cgroup" else 2)


def _member(text: str) -> dict[str, str]:
    """The group that a process is in by controller; of version 2, under no name."""
    groups = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        groups.update(dict.fromkeys(controllers.split(","), path))
    return groups


def _below(mount: _Mount, path: str) -> Path:
    """The folder of a group. Raises MachineError where it is not in the part that is mounted."""
    if not Path(path).is_relative_to(mount.root) or ".." in Path(path).parts:
        raise MachineError(f"the control group of this process, {path}, is not below {mount.at}")
    return mount.at / Path(path).relative_to(mount.root)


def _writable(folders: dict[str, Path]) -> dict[str, Path]:
    for folder in folders.values():
        if not os.access(folder, os.W_OK):
            raise MachineError(f"this user may make no control groups in {folder}")
    return folders


def _handing_on(top: Path, own: Path) -> Path:
    """The nearest folder from ``own`` up to ``top`` that hands both controllers on."""
    folder = own
    while True:
        if _hands_on(folder):
            return folder
        if folder == top:
            raise MachineError(
                f"no control group from {own} up to {top} may be written to and hands on "
                f"{' and '.join(CONTROLLERS)}",
                fix="On systemd: have them delegated to this user (`Delegate=pids memory`)",
            )
        folder = folder.parent


def _hands_on(folder: Path) -> bool:
    """Return whether processes may be moved below, and both controllers are, or could be, there.

    A group that has processes itself cannot hand on any more than it does; the topmost can.
    """
    files = [folder, folder / _MEMBERS, folder / _HANDED_ON]
    if not all(os.access(file, os.W_OK) for file in files):
        return False
    if set(CONTROLLERS) <= set((folder / _HANDED_ON).read_text().split()):
        return True
    if not set(CONTROLLERS) <= set((folder / "cgroup.controllers").read_text().split()):
        return False
    if (folder / "cgroup.type").exists() and (folder / _MEMBERS).read_text().strip():
        return False
    try:
        (folder / _HANDED_ON).write_text(_plus())
    except OSError:
        return False
    return True


def _plus() -> str:
    return " ".join(f"+{name}" for name in CONTROLLERS) + "\n"


def _remove(folder: Path) -> None:
    """A group without room for another process cannot outrun whoever kills them."""
    give_up = time.monotonic() + _END_S
    while folder.exists():
        with suppress(OSError):
            (folder / "pids.max").write_text("0\n")
        _kill_all(folder)
        try:
            folder.rmdir()
        except FileNotFoundError:
            break
        except OSError as error:  # one that has been killed may take a moment
            if time.monotonic() > give_up:
                raise MachineError(f"{folder} could not be removed: {error.strerror}") from error
            time.sleep(_LOOK_S)
    with suppress(OSError):  # other nodes' groups are still there
        folder.parent.rmdir()


def _kill_all(folder: Path) -> None:
    with suppress(OSError):
        if (folder / _KILL).exists():
            (folder / _KILL).write_text("1\n")
            return
        for member in (folder / _MEMBERS).read_text().split():
            if int(member) > 0:  # 0: of a namespace that we are not in
                with suppress(ProcessLookupError):
                    os.kill(int(member), signal.SIGKILL)
