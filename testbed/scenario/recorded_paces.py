"""Recorded step times as paces, read from a column of a CSV file or a list in JSON.

A column's name ends in its unit: ``step_ms``, ``step_s``, ``step_us``.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

from testbed.errors import InputError, brief
from testbed.scenario.diagnostics import Names, Problem
from testbed.scenario.expand import groups_of_nodes
from testbed.scenario.model import Pace, RecordedPace, Scenario, pace_of
from testbed.scenario.profile import FILELESS
from testbed.scenario.yaml import Place
from testbed.user_files import text_of

MAX_BYTES = 16 << 20
MAX_TIMES = 100_000
MAX_VALUES = 20 * MAX_TIMES
"""Values that all columns of a file may have together."""
MAX_S = 86_400.0
_SHOWN = 40
"""Names of columns, and characters of each, in a message."""
Columns = Mapping[str, Callable[[], list[Any]]]
"""Functions that return a column's values, keyed by its name."""
_UNITS = {"_s": 1.0, "_ms": 1e-3, "_us": 1e-6}


def read_step_times(path: Path, column: str | None = None) -> tuple[float, ...]:
    """Seconds, in the file's order. Raises InputError that names the file and what would work."""
    columns = _columns(path)
    name = _chosen(path, columns, column)
    unit = next(factor for end, factor in _UNITS.items() if name.endswith(end))
    times = tuple(_time(path, name, i, value, unit) for i, value in enumerate(columns[name]()))
    if not 0 < len(times) <= MAX_TIMES:
        raise InputError(
            f"{len(times)} step times in {brief(name)}",
            where=str(path),
            hint=f"Give 1 to {MAX_TIMES}",
        )
    return times


def _columns(path: Path) -> Columns:
    text = text_of(path, MAX_BYTES)
    if sum(map(text.count, ",;[{\n\r")) > MAX_VALUES:
        raise InputError(
            f"more than {MAX_VALUES} values in it",
            where=str(path),
            hint=f"Give 1 to {MAX_TIMES} step times",
        )
    return _of_json(path, text) if path.suffix == ".json" else _of_csv(path, text)


def _of_json(path: Path, text: str) -> Columns:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"this is not JSON: {error}", where=str(path)) from None
    if not isinstance(data, Mapping):
        raise InputError(
            "a list by name is needed", where=str(path), hint='Write {"step_ms": [101.5, 99.8]}'
        )
    lists = {str(name): values for name, values in data.items() if isinstance(values, list)}
    return {name: partial(list, values) for name, values in lists.items()}


def _of_csv(path: Path, text: str) -> Columns:
    """Lines that begin with # are remarks. Only the column that is asked for is taken out."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    try:
        header, *body = list(csv.reader(StringIO("\n".join(lines)))) if lines else [[]]
    except csv.Error as error:
        raise InputError(f"this is not CSV: {error}", where=str(path)) from None
    return {name.strip(): partial(_column, body, i) for i, name in enumerate(header)}


def _column(rows: Iterable[list[str]], i: int) -> list[str]:
    return [row[i] if i < len(row) else "" for row in rows]


def _chosen(path: Path, columns: Columns, column: str | None) -> str:
    known = [name for name in columns if name.endswith(tuple(_UNITS))]
    if column is None and len(known) == 1:
        return known[0]
    if column is not None and column in known:
        return column
    what = (
        "which column is meant" if column is None else f"no step times are called {brief(column)}"
    )
    some = [repr(name)[:_SHOWN] for name in known[:_SHOWN]] + ["…"] * (len(known) > _SHOWN)
    raise InputError(
        f"{what}: it has {', '.join(some) or 'none'} whose name ends in _s, _ms or _us",
        where=str(path),
        hint="Name one by `column`, or head one `step_ms`",
    )


def _time(path: Path, name: str, index: int, value: Any, unit: float) -> float:
    try:
        time = float(value) * unit if not isinstance(value, bool) else -1.0
    except (TypeError, ValueError, OverflowError):
        time = -1.0
    if 0 < time <= MAX_S:
        return time
    raise InputError(
        f"{name if name.isprintable() and len(name) <= _SHOWN else brief(name)}"
        f"[{index}] is {brief(value)}",
        where=str(path),
        hint=f"A step takes longer than 0 and at most {MAX_S:g} s",
    )


def recorded_paces(
    scenario: Scenario, folder: Path
) -> tuple[dict[str, tuple[float, ...]], list[Problem]]:
    """Step times in seconds by ``key``, and problems; ``folder``: where paths start."""
    times: dict[str, tuple[float, ...]] = {}
    problems: list[Problem] = []
    for location, pace in _written(scenario):
        if isinstance(pace, RecordedPace) and pace.key not in times:
            try:
                times[pace.key] = read_step_times(folder / pace.file, pace.column)
            except InputError as error:
                problems.append(Problem((*location, "file"), str(error)))
    return times, problems


def check_paces(scenario: Scenario, names: Names) -> Iterator[Problem]:
    """Paces and factors are of workers, and there is one for everybody."""
    train = scenario.train
    timeless = train.pace is None and train.profile in FILELESS  # a file has a time
    for key, given in (("paces", train.paces), ("slow", train.slow)):
        if given and timeless:
            yield Problem(("train", key), "give the others a time as well: `pace: 200 ms`")
        for name in given:
            if name not in names.groups:
                yield Problem(("train", key, name), names.unknown(name))
            elif scenario.nodes[names.groups[name]].role != "worker":
                yield Problem(("train", key, name), f"{name!r} is no worker: only they compute")


def worker_paces(scenario: Scenario) -> dict[str, Pace | None]:
    """Return every worker's pace, keyed by name, in ``scenario``'s time, model or wall."""
    train, groups = scenario.train, groups_of_nodes(scenario)
    return {
        node: pace_of(node, group, train.pace, train.paces, train.slow)
        for node, group in groups.items()
        if scenario.nodes[group].role == "worker"
    }


def _written(scenario: Scenario) -> Iterator[tuple[Place, Pace]]:
    if scenario.train.pace is not None:
        yield ("train", "pace"), scenario.train.pace
    for name, pace in scenario.train.paces.items():
        yield ("train", "paces", name), pace
