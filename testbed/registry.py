"""Registries of parts by name, and the options and the state of parts of an algorithm.

Selectors, value codings, memories, controllers, exchanges, fabrics, tasks and models have a
registry each. It refuses a name twice, lists what it knows when a name is unknown, and also offers
what other installed packages declare under its entry-point group (docs/how-to).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from copy import deepcopy
from difflib import get_close_matches
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from random import Random
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from testbed.errors import InputError, brief

T = TypeVar("T")


class Registry(Generic[T]):
    """Entries of one kind by name. ``noun``: the kind, in errors; ``group``: of entry points.

    ``selectors``, for example, is ``Registry("selector", "narrows.compressors")``:
    ``selectors.add("topk", TopK)`` registers, ``selectors.get("topk")`` returns ``TopK``.
    """

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
        return sorted({*self._own, *(point.name for point in self._declared)})

    def __contains__(self, name: str) -> bool:
        return name in self.names()

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def get(self, name: str, *, where: str | None = None) -> T:
        """The entry called ``name``. Raises InputError with the known names and the nearest one;
        also where two have that name, or a package's entry cannot be imported."""
        points = [point for point in self._declared if point.name == name]
        if len(points) + (name in self._own) > 1:
            raise self._taken_twice(points, where)
        if name in self._own:
            return self._own[name]
        if points:
            return self._load(points[0], where)
        known = self.names()
        near = get_close_matches(name, known, n=1)
        hint = f"Did you mean {near[0]!r}? " if near else ""
        raise InputError(
            f"unknown {self.noun} {name!r}", where=where, hint=f"{hint}Known: {', '.join(known)}"
        )

    def package_of(self, name: str) -> str | None:
        """The installed package that declares ``name``, in words; None of what ships, and of what
        is not known."""
        points = (point for point in self._declared if point.name == name)
        return next((_package(point) for point in points), None)

    @cached_property
    def _declared(self) -> list[EntryPoint]:
        """Entry points of the group, of all installed packages."""
        return list(entry_points(group=self.group))

    def _load(self, point: EntryPoint, where: str | None) -> T:
        try:
            loaded: T = point.load()
        except Exception as error:  # whatever somebody else's module raises
            raise InputError(
                f"{self.noun} {point.name!r} cannot be imported from {point.value!r}, an entry "
                f"point of {_package(point)}: {type(error).__name__}: {error}",
                where=where,
                hint=f"Mend or uninstall {_package(point)}",
            ) from error
        return loaded

    def _taken_twice(self, points: list[EntryPoint], where: str | None) -> InputError:
        name, packages = points[0].name, " and ".join(_package(point) for point in points)
        other = ", and ships with Narrows" if name in self._own else ""
        return InputError(
            f"{self.noun} {name!r} is declared by {packages}{other}",
            where=where,
            hint=f"Give it another name in the group {self.group} of that package's entry points",
        )


def _package(point: EntryPoint) -> str:
    """Name of the package that declares it."""
    return f"the package {point.dist.name}" if point.dist else "an installed package"


class Options(BaseModel):
    """Base of all options: frozen, strict about types, no key that we do not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


OptionsT = TypeVar("OptionsT", bound=Options)


def read(part: str, model: type[OptionsT], given: Mapping[str, Any]) -> OptionsT:
    """``given`` as ``model``. Raises InputError with every wrong option of ``part``."""
    try:
        return model(**given)
    except ValidationError as error:
        wrong = "; ".join(_complaint(detail) for detail in error.errors())
        known = ", ".join(
            f"{field.alias or name} ({'needed' if field.is_required() else field.default})"
            for name, field in model.model_fields.items()
        )
        hint = f"Options and their defaults: {known}" if known else "It has no options"
        raise InputError(f"{part}: {wrong}", hint=hint) from error


def _complaint(detail: Any) -> str:
    """One of pydantic's findings as a clause."""
    if detail["type"] == "extra_forbidden":
        return f"unknown option {detail['loc'][0]!r}"
    if detail["type"] == "missing":
        return f"option {detail['loc'][0]!r} is needed"
    name = str(detail["loc"][0]) + ": " if detail["loc"] else ""
    reason = detail["msg"].removeprefix("Value error, ")
    return f"{name}{reason}" + (f", got {brief(detail['input'])}" if name else "")


class Carried:
    """Base of what has a state that goes through checkpoints."""

    carried: ClassVar[Mapping[str, str]] = {}
    """Keys of ``state``, and the attributes that they stand for."""

    def state(self) -> dict[str, Any]:
        """Return everything needed to go on from here, as copies; JSON values."""
        return {key: _plain(getattr(self, name)) for key, name in self.carried.items()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue exactly where ``state`` was taken; the options must be the same."""
        for key, name in self.carried.items():
            setattr(self, name, _restored(state[key], getattr(self, name)))


class Configured(Carried, Generic[OptionsT]):
    """Base of parts that have a name and options, beside their state."""

    noun: ClassVar[str]
    name: ClassVar[str]
    model: ClassVar[type[Any]] = Options
    """Options of the part, a subclass of ``Options`` where it has any."""

    def configure(self, options: Mapping[str, Any]) -> None:
        """Set ``options``. Raises InputError that names every wrong one and lists the known."""
        self.options: OptionsT = read(f"{self.noun} {self.name!r}", self.model, options)


def _plain(value: Any) -> Any:
    """``value`` in JSON values."""
    match value:
        case Carried():
            return value.state()
        case Random():
            version, internal, gauss = value.getstate()
            return [version, list(internal), gauss]
        case set():
            return sorted(value)
        case list() | tuple() | deque():
            return [_plain(item) for item in value]
        case dict():
            return {key: _plain(item) for key, item in value.items()}
    return value


def _restored(value: Any, before: Any) -> Any:
    """The value that ``_plain`` was given, of the same kind as ``before``."""
    match before:
        case Carried():
            before.load(value)
            return before
        case Random():
            version, internal, gauss = value
            before.setstate((version, tuple(internal), gauss))
            return before
        case set():
            return set(value)
        case deque():
            return deque(value, maxlen=before.maxlen)
    return deepcopy(value)
