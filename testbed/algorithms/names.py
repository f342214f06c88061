"""From a name, or from what a scenario derives, to an algorithm."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from testbed.algorithms.algorithm import Algorithm
from testbed.algorithms.derive import derive
from testbed.algorithms.fit import check
from testbed.algorithms.patterns import PATTERNS
from testbed.algorithms.rows import ROWS
from testbed.algorithms.suffixes import SUFFIXES, extended
from testbed.errors import InputError

if TYPE_CHECKING:
    from testbed.scenario.model import Derived


def known() -> list[Algorithm]:
    """Every row, in the order of the table; names that match a pattern come on top."""
    return list(ROWS)


def resolve(entry: str | Derived, *, where: str | None = None) -> Algorithm:
    """The algorithm that a scenario or flag asks for, checked down to the options of its parts.

    Raises InputError at ``where``: an unknown name (with the known ones and the nearest), a density
    outside (0, 1], an option that a part does not have, parts that do not fit together.
    """
    algorithm = _named(entry, where) if isinstance(entry, str) else _derived(entry, where)
    check(algorithm, where)
    return algorithm


def _derived(entry: Derived, where: str | None) -> Algorithm:
    if any(row.name == entry.name for row in ROWS) or any(p.matches(entry.name) for p in PATTERNS):
        raise InputError(
            f"algorithm {entry.name!r} exists already: a derived one needs a name of its own",
            where=where,
        )
    return derive(entry, _named(entry.from_, where), where)


def _named(name: str, where: str | None) -> Algorithm:
    base, *suffixes = name.split("+")
    found = _row(base) or _matching(base, where)
    if found is None:
        raise _unknown(name, base, where)
    return extended(found, suffixes, where) if suffixes else found


def _row(name: str) -> Algorithm | None:
    return next((row for row in ROWS if row.name == name), None)


def _matching(name: str, where: str | None) -> Algorithm | None:
    """Of several patterns that begin so, the longest."""
    begun = [pattern for pattern in PATTERNS if name.startswith(pattern.prefix)]
    if not begun:
        return None
    return max(begun, key=lambda pattern: len(pattern.prefix)).make(name, where)


def _unknown(name: str, base: str, where: str | None) -> InputError:
    """The nearest name, patterns filled in with what was written, and all that there are."""
    rows = [row.name for row in ROWS]
    stem, _, number = base.rpartition("-")
    like = {
        f"{p.prefix}{number}" if p.matches(f"{p.prefix}{number}") and stem else p.example
        for p in PATTERNS
    }
    short = {p.prefix.rstrip("-"): p.example for p in PATTERNS}
    near = [short[base]] if base in short else get_close_matches(base, [*rows, *like], n=1)
    meant = f"Did you mean {near[0]!r}? " if near else ""
    forms = [*rows, *map(str, PATTERNS), *(suffix.form for suffix in SUFFIXES)]
    return InputError(
        f"unknown algorithm {name!r}", where=where, hint=f"{meant}Known: {', '.join(forms)}"
    )
