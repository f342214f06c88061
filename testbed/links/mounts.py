"""Mounts, and namespaces of the calling process: among them a ``/run`` that only it and its children see."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

NEW_MOUNTS = 0x00020000
BIND = 0x1000
_RECURSIVE, _PRIVATE, _DETACH = 0x4000, 0x40000, 2
_NO_SUID, _NO_DEVICES = 2, 4
_OWN_TO_THE_RUN = {"netns", "narrows"}
"""What is under ``/run`` of namespaces and journals: every world has its own."""

_libc = ctypes.CDLL(None, use_errno=True)


def unshare(kinds: int) -> None:
    """Move the calling thread into new namespaces (unshare(2)). Raises OSError.

    A user namespace can only be entered by a process that has no other threads.
    """
    _call("unshare", kinds)


def mount(source: str, target: str | Path, kind: str | None, flags: int, data: str = "") -> None:
    """mount(2). Raises OSError."""
    names = [os.fsencode(part) if part else None for part in (source, target, kind)]
    _call("mount", *names, ctypes.c_ulong(flags), data.encode() or None)


def unmount(target: str | Path) -> None:
    """Take off the uppermost mount; who still uses it keeps it. Raises OSError."""
    _call("umount2", os.fsencode(target), _DETACH)


def make_private() -> None:
    """Mounts and unmounts in this process's namespace stay in it. Raises OSError."""
    mount("none", "/", None, _RECURSIVE | _PRIVATE)


def private_run(run: Path = Path("/run")) -> None:
    """Lay an empty file system over ``/run``, in which the folders that were there show through.

    Only those of namespaces and journals do not. Raises OSError.
    """
    make_private()
    before = os.open(run, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        names = {entry.name for entry in run.iterdir() if entry.is_dir() and not entry.is_symlink()}
        links = {entry.name: entry.readlink() for entry in run.iterdir() if entry.is_symlink()}
        mount("tmpfs", run, "tmpfs", _NO_SUID | _NO_DEVICES, "mode=755,size=16m")
        for name in names - _OWN_TO_THE_RUN:
            (run / name).mkdir()
            _show(f"/proc/self/fd/{before}/{name}", run / name)
        for name, target in links.items():
            (run / name).symlink_to(target)
    finally:
        os.close(before)


def _show(source: str, target: Path) -> None:
    """What may not be looked into from here is left out."""
    try:
        mount(source, target, None, BIND | _RECURSIVE)
    except PermissionError:
        target.rmdir()


def _call(name: str, *arguments: object) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
