"""Journals of what each run made outside its own processes, on disk before it is made: so that
nothing is lost.

A journal is a file of JSON lines: first the run and the process that controls it, then one line per
object. It is removed when everything in it has been. A journal whose controller is dead is
*abandoned*.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any, BinaryIO

from testbed.errors import InputError, MachineError
from testbed.user_files import home

Entry = dict[str, Any]
_SUFFIX = ".journal"
_BEGINNING_S = 5.0
MOST_BYTES = 64 << 20
"""Most bytes of a journal that are read: several hundred thousand objects."""
_LONGEST_LINE = 1 << 16
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
        """Begin the journal of a run of this process. Raises InputError if there is one."""
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
        """Return whether the run was to be left standing."""
        return any(entry["kind"] == KEPT for entry in self.entries)

    def close(self) -> None:
        """Everything in it has been undone. Safe to call twice."""
        self.path.unlink(missing_ok=True)

    def abandoned(self) -> bool:
        """Return whether the controlling process is dead."""
        return not lives(self.pid, self.start)

    def _append(self, entry: Entry) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(entry) + "\n")
            file.flush()
            os.fsync(file.fileno())


cleaners: dict[str, Callable[[Entry], list[str]]] = {}
"""Functions that remove an entry's object if it is still there, keyed by kind. They return what was
removed, in words.

Raises OSError or MachineError when that is impossible: the journal is then kept.
"""


def folder() -> Path:
    """Folder of journals: ``$NARROWS_STATE``, ``/run/narrows`` for root, else the user's."""
    named = os.environ.get("NARROWS_STATE")
    if named:
        path = Path(named)
    elif os.geteuid() == 0:
        path = Path("/run/narrows")
    elif runtime := os.environ.get("XDG_RUNTIME_DIR"):
        path = Path(runtime) / "narrows"
    elif own := home():
        path = own / ".local/state/narrows"
    else:
        raise MachineError(
            "this user has no home in which journals of runs could be kept",
            fix="Set HOME, or XDG_RUNTIME_DIR, to a folder that you may write to",
        )
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise MachineError(
            f"cannot make the folder of journals {path}: {error.strerror}",
            fix="Set XDG_RUNTIME_DIR to a folder that you may write to",
        ) from error
    about = path.stat()
    if about.st_uid != os.geteuid() or about.st_mode & 0o022:
        raise MachineError(
            f"others can write to the folder of journals {path}: what is in it need not be true",
            fix="Make it yours alone: `chown`, `chmod go-w`; or have NARROWS_STATE name another",
        )
    return path


def shown(text: str) -> str:
    """A journal's words as they may be printed, whatever they are."""
    return text if text.isprintable() else ascii(text)


def journals() -> list[Journal]:
    """Every journal there is, by name."""
    read = (_read(path) for path in sorted(folder().glob(f"*{_SUFFIX}")))
    return [journal for journal in read if journal is not None]


def abandoned() -> list[Journal]:
    """The journals whose controller is dead."""
    return [journal for journal in journals() if journal.abandoned()]


def start_time(pid: int) -> str | None:
    """When a process began, in ticks since boot; None where there is none (or a zombie)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else f"{start_of_boot()}/{fields[19]}"


def lives(pid: int, start: str) -> bool:
    """Return whether that very process runs: its number may have been given to another since."""
    return start_time(pid) == start


def start_of_boot() -> str:
    """Return the kernel's random id of this boot, which no other boot has."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


_FIELDS: dict[str, dict[str, tuple[type, ...]]] = {
    "namespace": {"name": (str,)},
    "link": {"name": (str,), "alias": (str, type(None)), "netns": (str, type(None))},
    "process": {"pid": (int,), "start": (str,)},
    "folder": {"path": (str,)},
    "subnet": {"network": (str,)},
    "docker": {"run": (str,)},
    "swarm": {"run": (str,)},
    "cgroup": {"path": (str,)},
}
"""Fields of an entry and their types, keyed by its kind."""
_RUN = re.compile(r"[A-Za-z0-9_.-]+")
_NAMESPACE = re.compile(r"nw-[\w.-]+", re.ASCII)


def _is_our_path(entry: Entry) -> bool:
    """A folder or a control group by a name that runs give, and no way around."""
    path = Path(entry["path"])
    if "\0" in entry["path"]:
        return False
    name = path.name if entry["kind"] == "folder" else path.parent.name
    return path.is_absolute() and ".." not in path.parts and name.startswith("narrows-")


def _is_our_link(entry: Entry) -> bool:
    """A device that has our alias or a run's, or that is in a namespace of a run's."""
    netns, alias = entry.get("netns"), entry.get("alias")
    if netns is not None and not _NAMESPACE.fullmatch(netns):
        return False
    if re.search("[\ud800-\udfff]", entry["name"]):  # the kernel could not be asked for it
        return False
    return netns is not None or (alias or "").partition(" ")[0] == "narrows"


_OURS: dict[str, Callable[[Entry], bool]] = {
    "namespace": lambda entry: _NAMESPACE.fullmatch(entry["name"]) is not None,
    "link": _is_our_link,
    "folder": _is_our_path,
    "cgroup": _is_our_path,
    **dict.fromkeys(("docker", "swarm"), lambda entry: _RUN.fullmatch(entry["run"]) is not None),
    "subnet": lambda entry: _is_network(entry["network"]),
}
"""Checks that an entry is something that runs make, by kind: no other is removed."""


def _read(path: Path) -> Journal | None:
    """A line that cannot be read names nothing: the last may have been cut off by a crash, before
    anything was made.

    None for a file that is gone, or has just been begun: its first line is being written. None for
    what is no journal of this user's, too: whoever else made it, root does not do as it says.
    """
    try:
        with _opened(path) as (file, about):
            parsed = (entry for line in _lines(file) if (entry := _parse(line)) is not None)
            head = next(parsed, {})
            entries = [entry for entry in parsed if _is_entry(entry)]
    except OSError:
        return None
    if not about.st_size and 0 <= time.time() - about.st_mtime < _BEGINNING_S:
        return None
    run, pid, start = (head.get(key) for key in ("run", "pid", "start"))
    if not (isinstance(run, str) and type(pid) is int and isinstance(start, str)):
        return Journal(path, path.stem, 0, "")
    return Journal(path, run, pid, start, entries)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[BinaryIO, os.stat_result]]:
    """Open a regular file to read, if it is this user's."""
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        about = os.fstat(file)
        if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "no journal of this user", str(path))
        with os.fdopen(file, "rb", closefd=False) as opened:
            yield opened, about
    finally:
        os.close(file)


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a journal's first ``MOST_BYTES``, one at a time; a longer one comes in parts."""
    left = MOST_BYTES
    while line := file.readline(min(left, _LONGEST_LINE)):
        left -= len(line)
        yield line


def _parse(line: bytes) -> Entry | None:
    if not line.startswith(b"{"):
        return None
    try:
        entry = json.loads(line.decode(errors="replace"))
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) else None


def _is_entry(entry: Entry) -> bool:
    """Return whether it has what its kind needs, and names what can be a run's."""
    kind = entry.get("kind")
    if not isinstance(kind, str):
        return False
    fields = _FIELDS.get(kind, {})
    right = all(isinstance(entry.get(name), types) for name, types in fields.items())
    return right and (kind not in _OURS or _OURS[kind](entry))


def _is_network(text: str) -> bool:
    try:
        IPv4Network(text)
    except ValueError:
        return False
    return True
