"""Rights of running processes, read from ``/proc``, and the tables of ``docs/privileges.md`` that promise them."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import stat
import struct
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

from testbed.process import PACKAGE

KINDS = ("user", "net", "mnt", "pid", "ipc", "uts")
"""Namespaces that are compared."""
LIBC = ctypes.CDLL(None, use_errno=True)
_PIDFD_GETFD = 438


def table(heading: str) -> list[dict[str, str]]:
    """Rows of the first table below a heading, each by the table's columns, without backticks."""
    text = (PACKAGE.parent / "docs/privileges.md").read_text()
    _, heading_found, below = text.partition(f"\n{heading}\n")
    assert heading_found, heading
    lines = below[below.index("\n|") + 1 :].replace("`", "").partition("\n\n")[0].splitlines()
    columns, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(columns, row, strict=True)) for row in rows]


def parts(cell: str) -> set[str]:
    """A cell's list as a set, with what the page's short names stand for."""
    short = {row["short name"]: row["stands for"] for row in table("### Short names")}
    listed = ", ".join(short.get(name, name) for name in cell.split(", "))
    return set() if listed == "none" else set(listed.split(", "))


def promised(who: str) -> dict[str, tuple[str, str, set[str]]]:
    """Of ``netns``, by process: its user, its capabilities, and its own namespaces, as the documentation has them."""
    return {
        row["process"]: (row["user"], row["capabilities"], parts(row["namespaces of its own"]))
        for row in table("### Processes")
        if row["fabric"] == f"netns, {who}"
    }


def promised_reach(who: str) -> dict[str, tuple[set[str], set[str]]]:
    """By process: the mounts of its own namespace that can be written to, and its sockets, as the documentation has them."""
    return {
        row["process"]: (
            parts(row["mounts of its own that can be written to"]),
            parts(row["sockets"]),
        )
        for row in table("### Mounts and sockets")
        if row["by"] == who
    }


def status_of(process: int | str) -> dict[str, list[str]]:
    """``/proc/PID/status``: the words of each line by its name."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return {name: text.split() for name, text in (line.split(":", 1) for line in lines)}


def user_of(status: Mapping[str, list[str]], names: Mapping[str, str]) -> str:
    """All user ids in a process's status, by ``names``, else as numbers."""
    return "/".join(sorted({names.get(user, user) for user in status["Uid"]}))


def power_of(process: int) -> str:
    """The capabilities that a process has: ``none``, ``all`` that this one has, or the bits.

    ``inside``: in a user namespace of its own.
    """
    effective, mine = (int(status_of(each)["CapEff"][0], 16) for each in (process, "self"))
    if effective == 0:
        return "none"
    power = "all" if effective & mine == mine else hex(effective)
    return f"{power}, inside" if "user" in own_namespaces(process) else power


def gains_nothing(process: int) -> bool:
    """Whether a process has no capability in any set, can gain none, and is in no group but that of its user's number."""
    status = status_of(process)
    sets = [int(status[f"Cap{kind}"][0], 16) for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")]
    alone = status["Groups"] == [] and status["Gid"] == status["Uid"]
    return sets == [0] * 5 and status["NoNewPrivs"] == ["1"] and alone


def own_namespaces(
    process: int, other: int | str = "self", given: Mapping[str, str] = MappingProxyType({})
) -> set[str]:
    """Kinds of namespaces that a process does not share with another.

    ``given``: those that a test has made for the command, by kind; instead of the other's.
    """
    return {
        kind
        for kind in KINDS
        if namespace(process, kind) != given.get(kind, namespace(other, kind))
    }


def namespace(process: int | str, kind: str) -> str:
    """The name of a process's namespace, as the kernel has it."""
    return str(Path(f"/proc/{process}/ns/{kind}").readlink())


def own_mounts(
    process: int,
    names: Mapping[str, str],
    host: Sequence[str] = (),
    other: int | str = "self",
    given: Mapping[str, str] = MappingProxyType({}),
) -> set[str]:
    """Mounts that a process's user may write to; none where its mount namespace is another process's, or ``given``.

    ``host``: lines of ``mountinfo`` as they were where the command was started. To a process that has all these
    mounts, unchanged but for ``/run``, they are ``the host's``; beside them stand those of other file systems.
    """
    if "mnt" not in own_namespaces(process, other, given):
        return set()
    if host and _has_all(process, host):
        systems = {line.split()[2] for line in host}
        return {"the host's"} | writable_mounts(process, names, systems)
    return writable_mounts(process, names)


def _has_all(process: int, host: Sequence[str]) -> bool:
    """Return whether a process has these mounts and, outside of ``/run``, no others.

    The kernel takes a mount off in all namespaces when what it is on is removed, as an engine does with containers.
    """
    had, has = _outside_run(host), _outside_run(mountinfo(process))
    missing = {mount[2] for mount in had - has}
    kept = [path for path in missing if os.path.lexists(f"/proc/{process}/root{path}")]
    return not has - had and not kept


def _outside_run(lines: Sequence[str]) -> Counter[tuple[str, ...]]:
    """Mounts by device, root, path, flags, and type, source and options of the file system.

    Without their numbers, and those of groups among which they propagate.
    """
    rows = [line.split() for line in lines]
    kept = [row for row in rows if not Path(row[4]).is_relative_to("/run")]
    return Counter((*row[2:6], *row[row.index("-") + 1 :]) for row in kept)


_KEEP = (
    'cat /proc/self/mountinfo > "$0" && readlink /proc/self/ns/mnt > "$0.namespace" && exec "$@"'
)


def keeping_mounts(path: Path, *command: str) -> list[str]:
    """The command line that writes down which mounts there are, and becomes ``command``, with the same process id.

    The name of their namespace goes to ``path`` with ``.namespace``.
    """
    return ["sh", "-c", _KEEP, str(path), *command]


def kept_namespace(path: Path) -> dict[str, str]:
    """The mount namespace that ``keeping_mounts`` was started in, as ``own_namespaces`` takes it."""
    return {"mnt": path.with_name(f"{path.name}.namespace").read_text().strip()}


def writable_mounts(
    process: int, names: Mapping[str, str], systems: Collection[str] = ()
) -> set[str]:
    """Mounts that a process's user may write to, by ``names``, else by their paths.

    Mounts on which a set-user-id bit counts are named as such. ``systems``: file systems that are left out, by device.
    """
    rows = [row for row in map(str.split, mountinfo(process)) if row[2] not in systems]
    top = {row[4]: row[5].split(",") for row in rows}
    mounts = set()
    for place, flags in top.items():
        if "rw" in flags and may_write(process, place) and place != "/dev/mqueue":
            name = "output/ of the run" if place.endswith("/output") else names.get(place, place)
            mounts.add(name if "nosuid" in flags else f"{name} with set-user-id")
    return mounts


def mountinfo(process: int) -> list[str]:
    """Lines of ``/proc/PID/mountinfo``; of mounts at the same place the last is the one on top."""
    return Path(f"/proc/{process}/mountinfo").read_text().splitlines()


def may_write(process: int, place: str) -> bool:
    """Whether a process's user may, by the permissions that the process sees there.

    ``/dev/null`` keeps nothing; the engine puts it over files that a container shall not see.
    """
    user = Path(f"/proc/{process}").stat().st_uid
    there = Path(f"/proc/{process}/root{place}").stat()
    if there.st_rdev == Path(os.devnull).stat().st_rdev:
        return False
    return bool(there.st_mode & (stat.S_IWUSR if there.st_uid == user else stat.S_IWOTH))


def sockets_of(process: int) -> Iterator[str]:
    """Kinds of a process's sockets, whichever namespace they were made in: its descriptors are copied and asked."""
    handle = os.pidfd_open(process)
    try:
        for path in Path(f"/proc/{process}/fd").iterdir():
            copied = _copied(handle, path)
            if copied is None:
                continue
            with copied:
                kind = copied.family.name.removeprefix("AF_").lower()
                listens = copied.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                yield f"listening {kind}" if listens else kind
    finally:
        os.close(handle)


def _copied(handle: int, path: Path) -> socket.socket | None:
    """A process's socket; None where it has something else open there, or has closed it meanwhile."""
    if not _open_at(path).startswith("socket:"):
        return None
    copy = LIBC.syscall(_PIDFD_GETFD, handle, int(path.name), 0)
    if copy < 0 and ctypes.get_errno() == errno.EBADF:
        return None
    assert copy >= 0, os.strerror(ctypes.get_errno())
    if not stat.S_ISSOCK(os.fstat(copy).st_mode):  # by now the number is that of another file
        os.close(copy)
        return None
    return socket.socket(fileno=copy)


def _open_at(path: Path) -> str:
    """Return what a link of ``/proc/PID/fd`` leads to; empty where that was closed meanwhile."""
    try:
        return str(path.readlink())
    except FileNotFoundError:
        return ""


def listening(process: int, network: int | None = None) -> set[tuple[str, int]]:
    """Addresses and ports on which a process's sockets listen, IPv4 and IPv6.

    Those of its own network namespace, or of that of the process ``network``.
    """
    own = {_open_at(path) for path in Path(f"/proc/{process}/fd").iterdir()}
    listed = set()
    for family in ("tcp", "tcp6"):
        known = Path(f"/proc/{process if network is None else network}/net/{family}").read_text()
        for fields in map(str.split, known.splitlines()[1:]):
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in own:
                host, port = fields[1].split(":")
                short = len(host) == 8
                address = socket.inet_ntoa(struct.pack("<I", int(host, 16))) if short else host
                listed.add((address, int(port, 16)))
    return listed


def written_by(process: int) -> set[Path]:
    """Files that a process has open for writing."""
    folder, files = Path(f"/proc/{process}"), set()
    for path in (folder / "fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            text = (folder / "fdinfo" / path.name).read_text()
            flags = int(text.partition("flags:")[2].split()[0], 8)
            target = path.readlink()
            if flags & os.O_ACCMODE and target.is_absolute() and target != Path(os.devnull):
                files.add(target)
    return files
