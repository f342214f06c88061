"""Named things that people add to (compressors, controllers, exchanges, fabrics, tasks), and the
options of parts of an algorithm.

A registry knows its entries by name, refuses a name twice, lists what it knows when a name is
unknown, and also offers what other installed packages declare under its entry-point group.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from testbed.errors import InputError

T = TypeVar("T")


class Registry(Generic[T]):
    """Entries of one kind by name, e.g. ``Registry[Compressor]("compressor",
    "narrows.compressors")``."""

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


class Options(BaseModel):
    """Base of all options: frozen, strict about types, no key that we do not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


Model = TypeVar("Model", bound=Options)


def read(part: str, model: type[Model], given: Mapping[str, Any]) -> Model:
    """``given`` as ``model``. Raises InputError with every wrong option of ``part``."""
    try:
        return model(**given)
    except ValidationError as error:
        wrong = "; ".join(_complaint(detail) for detail in error.errors())
        known = ", ".join(
            f"{field.alias or name} ({field.default})" for name, field in model.model_fields.items()
        )
        hint = f"Options and their defaults: {known}" if known else "It has no options"
        raise InputError(f"{part}: {wrong}", hint=hint) from error


def _complaint(detail: Any) -> str:
    """One of pydantic's findings as a clause."""
    if detail["type"] == "extra_forbidden":
        return f"unknown option {detail['loc'][0]!r}"
    name = str(detail["loc"][0]) + ": " if detail["loc"] else ""
    reason = detail["msg"].removeprefix("Value error, ")
    return f"{name}{reason}" + (f", got {detail['input']!r}" if name else "")
