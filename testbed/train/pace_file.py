"""Recorded step times: a column of a CSV file with a header, or a list in a JSON object. Pure but for the reading.

A column's name ends in its unit: ``step_ms``, ``step_s``, ``step_us``.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping
from io import StringIO
from math import isfinite
from pathlib import Path
from reprlib import repr as brief
from typing import Any

from testbed.errors import InputError
from testbed.user_files import text_of

MAX_BYTES = 16 << 20
MAX_TIMES = 100_000
_UNITS = {"_s": 1.0, "_ms": 1e-3, "_us": 1e-6}


def read_step_times(path: Path, column: str | None = None) -> tuple[float, ...]:
    """Seconds, in the file's order. Raises InputError that names the file and what would work."""
    columns = _columns(path)
    name = _chosen(path, columns, column)
    unit = next(factor for end, factor in _UNITS.items() if name.endswith(end))
    times = tuple(_time(path, name, i, value) * unit for i, value in enumerate(columns[name]))
    if not 0 < len(times) <= MAX_TIMES:
        raise InputError(
            f"{len(times)} step times in {name!r}",
            where=str(path),
            hint=f"Give 1 to {MAX_TIMES}",
        )
    return times


def _columns(path: Path) -> dict[str, list[Any]]:
    text = text_of(path, MAX_BYTES)
    return _of_json(path, text) if path.suffix == ".json" else _of_csv(text)


def _of_json(path: Path, text: str) -> dict[str, list[Any]]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"this is not JSON: {error}", where=str(path)) from None
    if not isinstance(found, Mapping):
        raise InputError(
            "a list by name is needed", where=str(path), hint='Write {"step_ms": [101.5, 99.8]}'
        )
    return {str(name): values for name, values in found.items() if isinstance(values, list)}


def _of_csv(text: str) -> dict[str, list[Any]]:
    """Lines that begin with # are remarks."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    rows: Iterable[list[str]] = csv.reader(StringIO("\n".join(lines)))
    header, *body = rows if lines else [[]]
    names = [name.strip() for name in header]
    return {name: [row[i] if i < len(row) else "" for row in body] for i, name in enumerate(names)}


def _chosen(path: Path, columns: Mapping[str, list[Any]], column: str | None) -> str:
    known = [name for name in columns if name.endswith(tuple(_UNITS))]
    if column is None and len(known) == 1:
        return known[0]
    if column is not None and column in known:
        return column
    what = "which column is meant" if column is None else f"no step times are called {column!r}"
    raise InputError(
        f"{what}: it has {', '.join(map(repr, known)) or 'none'} whose name ends in _s, _ms or _us",
        where=str(path),
        hint="Name one by `column`, or head one `step_ms`",
    )


def _time(path: Path, name: str, place: int, value: Any) -> float:
    try:
        time = float(value) if not isinstance(value, bool) else -1.0
    except (TypeError, ValueError, OverflowError):
        time = -1.0
    if time > 0 and isfinite(time):
        return time
    raise InputError(
        f"{name}[{place}] is {brief(value)}",
        where=str(path),
        hint="A step takes longer than 0",
    )
