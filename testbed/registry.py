"""Named things that people add to: compressors, controllers, exchanges, fabrics, tasks.

A registry knows its entries by name, refuses a name twice, lists what it knows when a name is unknown,
and also offers what other installed packages declare under its entry-point group.
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from importlib.metadata import entry_points
from typing import Generic, TypeVar

from testbed.errors import InputError

T = TypeVar("T")


class Registry(Generic[T]):
    """Entries of one kind by name, e.g. ``Registry[Compressor]("compressor", "narrows.compressors")``."""

    def __init__(self, noun: str, group: str) -> None:
        self.noun, self.group = noun, group
        self._own: dict[str, T] = {}

    def add(self, name: str, entry: T) -> T:
        """Register ``entry`` under ``name``; a second entry of that name is a programming error."""
        if name in self._own:
            raise ValueError(f"{self.noun} {name!r} is registered twice")
        self._own[name] = entry
        return entry

    def names(self) -> list[str]:
        """All known names, sorted: our own and those of installed packages."""
        return sorted({*self._own, *(point.name for point in entry_points(group=self.group))})

    def __contains__(self, name: str) -> bool:
        return name in self.names()

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def get(self, name: str, *, where: str | None = None) -> T:
        """The entry called ``name``. Raises InputError with the known names and the nearest one."""
        if name in self._own:
            return self._own[name]
        for point in entry_points(group=self.group, name=name):
            loaded: T = point.load()
            return loaded
        known = self.names()
        near = get_close_matches(name, known, n=1)
        hint = f"Did you mean {near[0]!r}? " if near else ""
        raise InputError(
            f"unknown {self.noun} {name!r}", where=where, hint=f"{hint}Known: {', '.join(known)}"
        )
