"""Another algorithm with some of its parts changed, as a scenario says it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from testbed.algorithms.algorithm import Algorithm
from testbed.errors import InputError

if TYPE_CHECKING:
    from testbed.scenario.model import Derived

_PARTS = ("selector", "values", "memory", "down", "exchange")
_SETTINGS = (
    "down_memory", "buckets", "dense_below", "bucket_bytes", "overlap", "order", "agree",
)  # fmt: skip


def derive(entry: Derived, base: Algorithm, where: str | None) -> Algorithm:
    """``base`` as ``entry`` changes it, unchecked. Raises InputError for a density that is not fixed.

    Options of a part are added to those that ``base`` gives it, as long as it is the same part. ``mean_of``
    stands for a density that is not known here: all is sent.
    """
    rule = "fixed" if entry.mean_of is not None else entry.rule or base.controller
    if entry.density is not None and rule != "fixed":
        raise InputError(
            f"algorithm {entry.name!r}: its controller {rule!r} chooses the density",
            where=where,
            hint="Leave 'density' out, or write `rule: fixed`",
        )
    kept = base.options if rule == base.controller else {}
    density = {} if entry.density is None else {"density": entry.density}
    changes: dict[str, Any] = {
        "controller": rule,
        "options": {**kept, **density, **entry.controller},
    }
    for part in _PARTS:
        changes |= _part(part, entry, base)
    for setting in _SETTINGS:
        if (given := getattr(entry, setting)) is not None:
            changes[setting] = given
    return replace(base, name=entry.name, about=f"Derived from {base.name}.", **changes)


def _part(part: str, entry: Derived, base: Algorithm) -> dict[str, Any]:
    """A part's name and options."""
    name = getattr(entry, part) or getattr(base, part)
    options = f"{part}_options"
    kept = getattr(base, options) if name == getattr(base, part) else {}
    return {part: name, options: {**kept, **getattr(entry, options)}}
