"""Rights of running processes, read from ``/proc``, and the tables of ``docs/privileges.md`` that promise them."""

from __future__ import annotations

import ctypes
import os
import socket
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

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


def status_of(process: int | str) -> dict[str, list[str]]:
    """``/proc/PID/status``: the words of each line by its name."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return {name: text.split() for name, text in (line.split(":", 1) for line in lines)}


def own_namespaces(process: int, other: int | str = "self") -> set[str]:
    """Kinds of namespaces that a process does not share with another."""
    return {kind for kind in KINDS if _namespace(process, kind) != _namespace(other, kind)}


def _namespace(process: int | str, kind: str) -> Path:
    return Path(f"/proc/{process}/ns/{kind}").readlink()


def writable_mounts(process: int, names: Mapping[str, str]) -> set[str]:
    """Mounts that a process's user may write to, by ``names``, else by their paths.

    Mounts on which a set-user-id bit counts are named as such.
    """
    top = {row[4]: row[5].split(",") for row in map(str.split, mountinfo(process))}
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
            if not str(path.readlink()).startswith("socket:"):
                continue
            copy = LIBC.syscall(_PIDFD_GETFD, handle, int(path.name), 0)
            assert copy >= 0, os.strerror(ctypes.get_errno())
            with socket.socket(fileno=copy) as copied:
                kind = copied.family.name.removeprefix("AF_").lower()
                listens = copied.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                yield f"listening {kind}" if listens else kind
    finally:
        os.close(handle)
