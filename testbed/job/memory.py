"""Memory that processes of two nodes have both mapped: what one writes there the other reads, without a network.

Looked at from time to time in ``/proc/PID/maps``. A mapping that lives for less than the time between two looks may go
unseen; transports keep theirs for as long as they run.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from threading import Event, Thread
from typing import NamedTuple

from testbed.links.namespaces import identity

LOOK_S = 1.0
_LEISURE = 50
"""Of many processes less often: two looks are so many times as far apart as one takes, so that it costs no result."""
_PROC = Path("/proc")
_OF_IPC = "/SYSV"
"""Names of what one namespace of inter-process communication has: numbers are given anew in each."""
_ANONYMOUS = ("/memfd:", "/dev/zero", _OF_IPC, "/dev/shm/")
"""Names of what is memory wherever it is mapped: of memfd_create(2), mmap(2), shmget(2), shm_open(3)."""
_DEVICES = "/dev/"
_IN_MEMORY = frozenset({"tmpfs", "hugetlbfs"})
_ENDED = frozenset({errno.ENOENT, errno.ESRCH, errno.EINVAL})
"""What reading of a process says that has ended meanwhile."""
_FORBIDDEN = "this user may not look at the memory of the nodes' processes"
_NOT_LOOKED_AT = "the memory of the nodes' processes could not be looked at"
_GONE = " (deleted)"

Pages = tuple[str, int]
"""Device (as in maps; of System V's shared memory the namespace besides) and inode."""


class Mapped(NamedTuple):
    """Pages of a file that a process has mapped and shares with whoever maps the same."""

    pages: Pages
    name: str
    bytes: int
    writes: bool


@dataclass(frozen=True, slots=True)
class Shared:
    """Both nodes have mapped the same pages at once, and one of them may write there. ``bytes``: of the smaller."""

    node: str
    other: str
    name: str
    bytes: int


def shared_mappings(maps: str, in_memory: Iterable[str], ipc: str = "") -> Iterator[Mapped]:
    """Out of a process's maps, what could pass data on: memory, not files. ``in_memory``: devices of file systems
    that have no disk, as in maps. ``ipc``: the process's namespace of System V's objects."""
    devices = frozenset(in_memory)
    for line in maps.splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) < 6 or fields[1][3] != "s":
            continue
        span, allowed, _, device, inode, name = fields
        if name.startswith(_ANONYMOUS) or (device in devices and not name.startswith(_DEVICES)):
            begin, _, end = span.partition("-")
            size = int(end, 16) - int(begin, 16)
            name = name.removesuffix(_GONE)
            where = f"{device} {ipc}" if name.startswith(_OF_IPC) else device
            yield Mapped((where, int(inode)), name, size, allowed[1] == "w")


def in_memory(mounts: str) -> set[str]:
    """Devices of file systems without a disk, out of a process's mountinfo, as they stand in maps."""
    found = set()
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        if after.split(" ", 1)[0] in _IN_MEMORY:
            major, _, minor = before.split()[2].partition(":")
            found.add(f"{int(major):02x}:{int(minor):02x}")
    return found


def between(nodes: Mapping[str, Iterable[Mapped]]) -> list[Shared]:
    """What two nodes' processes have in common at one look."""
    held = {node: _merged(found) for node, found in nodes.items()}
    return [
        Shared(node, other, mine.name, min(mine.bytes, held[other][pages].bytes))
        for node, other in combinations(held, 2)
        for pages, mine in held[node].items()
        if pages in held[other] and (mine.writes or held[other][pages].writes)
    ]


def _merged(found: Iterable[Mapped]) -> dict[Pages, Mapped]:
    """By pages, the largest mapping of a node, and whether any of its processes may write there."""
    held: dict[Pages, Mapped] = {}
    for one in found:
        before = held.get(one.pages, one)
        held[one.pages] = one._replace(
            bytes=max(before.bytes, one.bytes), writes=before.writes or one.writes
        )
    return held


class MemoryWatch:
    """Looks at the processes of ``nodes``, given their network namespaces, until ``end``."""

    def __init__(self, nodes: Mapping[str, str], look_s: float = LOOK_S) -> None:
        self._nodes: dict[tuple[int, int], str] = {}
        self._look_s = look_s
        self._most: dict[tuple[str, str, str], Shared] = {}
        self.unwatched: set[str] = set()
        """Why processes are not watched, in words."""
        for node, netns in nodes.items():
            try:
                self._nodes[identity(netns)] = node
            except OSError:
                self.unwatched.add(_FORBIDDEN)
        self._over = Event()
        self._thread = Thread(target=self._follow, name="memory", daemon=True)
        self._thread.start()

    def end(self) -> list[Shared]:
        """Look no longer. The most that was shared at once, by nodes and name."""
        self._over.set()
        self._thread.join()
        return list(self._most.values())

    def look(self) -> None:
        """Once, now."""
        for shared in between(self._held()):
            key = (shared.node, shared.other, shared.name)
            if key not in self._most or shared.bytes > self._most[key].bytes:
                self._most[key] = shared

    def _follow(self) -> None:
        pause_s = self._look_s
        while not self._over.wait(pause_s):
            began = time.thread_time()
            try:
                self.look()
            except Exception as error:
                # Whatever it is, it must not pass for a job that shares nothing.
                self.unwatched.add(f"{_NOT_LOOKED_AT}: {error}")
                return
            pause_s = max(self._look_s, _LEISURE * (time.thread_time() - began))

    def _held(self) -> dict[str, list[Mapped]]:
        found: dict[str, list[Mapped]] = {}
        for process in _PROC.iterdir():
            if process.name.isdigit():
                try:
                    self._look_at(process, found)
                except OSError as error:
                    if error.errno not in _ENDED:
                        raise
        return found

    def _look_at(self, process: Path, found: dict[str, list[Mapped]]) -> None:
        try:
            node = self._nodes.get(identity(process / "ns/net"))
        except PermissionError:  # another user's
            return
        if node is None:
            return
        try:
            maps, mounts = _text(process / "maps"), _text(process / "mountinfo")
            ipc = (process / "ns/ipc").readlink()
        except PermissionError:
            self.unwatched.add(_FORBIDDEN)
            return
        found.setdefault(node, []).extend(shared_mappings(maps, in_memory(mounts), str(ipc)))


def _text(path: Path) -> str:
    """Names of files are of bytes."""
    return path.read_bytes().decode(errors="backslashreplace")
