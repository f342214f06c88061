"""What each run made outside its own processes, on disk before it is made: so that nothing is lost.

A journal is a file of JSON lines: first the run and the process that controls it, then one line per object.
It is removed when everything in it has been. A journal whose controller is dead is *abandoned*.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

from testbed.errors import InputError, MachineError

Entry = dict[str, Any]
_SUFFIX = ".journal"
_BEGINNING_S = 5.0
KEPT = "kept"
"""The kind of an entry that is no object, but says that the run is to be left standing."""


@dataclass(frozen=True, slots=True)
class Journal:
    """One run's journal. ``entries`` hold ``kind`` and whatever that kind needs, oldest first."""

    path: Path
    run: str
    pid: int
    start: str
    entries: list[Entry] = field(default_factory=list)

    @classmethod
    def open(cls, run: str) -> Journal:
        """Begin the journal of a run that this process controls. Raises InputError if there is one."""
        path = folder() / f"{run}{_SUFFIX}"
        pid = os.getpid()
        journal = cls(path, run, pid, start_time(pid) or "")
        try:
            path.touch(mode=0o600, exist_ok=False)
        except FileExistsError:
            raise InputError(f"there is a run {run!r} already", where=str(path)) from None
        journal._append({"run": run, "pid": pid, "start": journal.start, "began": time.time()})
        return journal

    def add(self, kind: str, **what: Any) -> None:
        """Note an object that is about to be made. On disk when this returns."""
        entry = {"kind": kind, **what}
        self._append(entry)
        self.entries.append(entry)

    @property
    def kept(self) -> bool:
        """Whether the run was to be left standing."""
        return any(entry["kind"] == KEPT for entry in self.entries)

    def close(self) -> None:
        """Everything in it has been undone. Safe to call twice."""
        self.path.unlink(missing_ok=True)

    def abandoned(self) -> bool:
        """Whether the controlling process is dead."""
        return not lives(self.pid, self.start)

    def _append(self, entry: Entry) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(entry) + "\n")
            file.flush()
            os.fsync(file.fileno())


cleaners: dict[str, Callable[[Entry], list[str]]] = {}
"""By kind of entry: remove it if it is still there; returns what was removed, in words.

Raises OSError or MachineError when that is impossible: the journal is then kept.
"""


def folder() -> Path:
    """Where journals are: ``$NARROWS_STATE``, ``/run/narrows`` for root, else the user's own place."""
    named = os.environ.get("NARROWS_STATE")
    if named:
        path = Path(named)
    elif os.geteuid() == 0:
        path = Path("/run/narrows")
    elif runtime := os.environ.get("XDG_RUNTIME_DIR"):
        path = Path(runtime) / "narrows"
    else:
        path = Path.home() / ".local/state/narrows"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise MachineError(
            f"cannot make the folder of journals {path}: {error.strerror}",
            fix="Set XDG_RUNTIME_DIR to a folder that you may write to",
        ) from error
    return path


def journals() -> list[Journal]:
    """Every journal there is, by name."""
    found = (_read(path) for path in sorted(folder().glob(f"*{_SUFFIX}")))
    return [journal for journal in found if journal is not None]


def abandoned() -> list[Journal]:
    """The journals whose controller is dead."""
    return [journal for journal in journals() if journal.abandoned()]


def start_time(pid: int) -> str | None:
    """When a process began, in the kernel's ticks since boot; None where there is none (or a zombie)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else f"{start_of_boot()}/{fields[19]}"


def lives(pid: int, start: str) -> bool:
    """Whether that very process runs: its number may have been given to another since."""
    return start_time(pid) == start


def start_of_boot() -> str:
    """What tells this boot of the machine from every other."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


_FIELDS: dict[str, dict[str, tuple[type, ...]]] = {
    "namespace": {"name": (str,)},
    "link": {"name": (str,), "alias": (str, type(None)), "netns": (str, type(None))},
    "process": {"pid": (int,), "start": (str,)},
    "folder": {"path": (str,)},
    "subnet": {"network": (str,)},
    "docker": {"run": (str,)},
    "cgroup": {"path": (str,)},
}
"""By kind of entry: what it has and of which type."""


def _read(path: Path) -> Journal | None:
    """A line that cannot be read names nothing: the last may have been cut off by a crash, before anything was made.

    None for a file that is gone, or has just been begun: its first line is being written.
    """
    try:
        lines = path.read_bytes().decode(errors="replace").splitlines()
        age_s = time.time() - path.stat().st_mtime
    except OSError:
        return None
    head, *entries = [entry for entry in map(_parse, lines) if entry is not None] or [{}]
    if not lines and 0 <= age_s < _BEGINNING_S:
        return None
    run, pid, start = (head.get(key) for key in ("run", "pid", "start"))
    if not (isinstance(run, str) and type(pid) is int and isinstance(start, str)):
        return Journal(path, path.stem, 0, "")
    return Journal(path, run, pid, start, [entry for entry in entries if _is_entry(entry)])


def _parse(line: str) -> Entry | None:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) else None


def _is_entry(entry: Entry) -> bool:
    kind = entry.get("kind")
    if not isinstance(kind, str):
        return False
    fields = _FIELDS.get(kind, {})
    right = all(isinstance(entry.get(name), types) for name, types in fields.items())
    return right and (kind != "subnet" or _is_network(entry["network"]))


def _is_network(text: str) -> bool:
    try:
        IPv4Network(text)
    except ValueError:
        return False
    return True
