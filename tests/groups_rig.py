"""Control groups that a test's own runs have left: other workers of the suite make theirs in the same place."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from testbed import cgroups
from testbed.errors import MachineError
from testbed.fabric.netns import run_tag
from testbed.links.network import namespaces

_CREATED = 0x100
"""``IN_CREATE`` of inotify(7)."""
_EVENT = struct.Struct("iIII")
"""What comes before a name: the watch, what happened, a number that joins events, how long the name is."""
_MOST_BYTES = 1 << 20
_NAME = "narrows-"
"""Begins the name of a run's own group; its id ends it."""


class OwnRuns:
    """Tags of the runs that make network namespaces while this is open, those included that are gone again.

    The kernel lists every name that is made below ``/run/netns``, which each worker has to itself.
    """

    def __init__(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        namespaces.NAMED.mkdir(parents=True, exist_ok=True)
        self._events = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._events < 0:
            raise OSError(ctypes.get_errno(), "no events of files")
        if libc.inotify_add_watch(self._events, os.fsencode(namespaces.NAMED), _CREATED) < 0:
            self.close()
            raise OSError(ctypes.get_errno(), f"{namespaces.NAMED} cannot be watched")
        self._tags: set[str] = set()

    def tags(self) -> set[str]:
        """Those of all runs until now (``run_tag``)."""
        while data := self._read():
            while data:
                *_, length = _EVENT.unpack_from(data)
                end = _EVENT.size + length
                name = os.fsdecode(data[_EVENT.size : end].rstrip(b"\0"))
                if name.startswith("nw-"):
                    self._tags.add(name.split("-")[1])
                data = data[end:]
        return self._tags

    def groups(self) -> list[str]:
        """The control groups of these runs that are there now, those of single nodes and those above them."""
        return groups_of(self.tags())

    def close(self) -> None:
        os.close(self._events)

    def _read(self) -> bytes:
        try:
            return os.read(self._events, _MOST_BYTES)
        except BlockingIOError:
            return b""


def groups_of(tags: set[str]) -> list[str]:
    """The control groups of runs with these tags; none where there can be none."""
    try:
        base = cgroups.find()
    except MachineError:
        return []
    tops = [
        top
        for folder in set(base.folders.values())
        for top in folder.glob(f"{_NAME}*/")
        if run_tag(top.name.removeprefix(_NAME)) in tags
    ]
    return sorted(str(group) for top in tops for group in (top, *top.glob("*/")))


@contextmanager
def no_groups_left() -> Iterator[None]:
    """For runs made meanwhile. As root alone: others' namespaces have no names."""
    if os.geteuid() != 0:
        yield
        return
    runs = OwnRuns()
    try:
        yield
        left = runs.groups()
        assert not left, f"control groups are left: {left}"
    finally:
        runs.close()
