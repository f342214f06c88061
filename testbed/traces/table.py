"""Columns of numbers out of lines of cells: whole blocks at once, cell by cell only where something is wrong."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate, repeat

from testbed.errors import InputError
from testbed.traces.points import too_many
from testbed.traces.source import LARGEST_NUMBER, Source, brief, number
from testbed.traces.trace import MAX_POINTS

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Column:
    """Where the numbers stand (from 0), what they are called in messages, and whether they are dates."""

    index: int
    what: str
    is_date: bool = False


@dataclass(frozen=True, slots=True)
class Layout:
    """How lines fall into cells. ``separator`` None is any white space; ``skip`` lines hold no numbers."""

    separator: str | None
    width: int
    columns: tuple[Column, ...]
    skip: int = 0


def read_columns(source: Source, layout: Layout) -> list[list[float]]:
    """The numbers of every column asked for. Raises InputError with the line of the first that is none."""
    found: list[list[float]] = [[] for _ in layout.columns]
    for block in source.blocks(layout.skip):
        first = layout.skip + len(found[0])
        cells = _cells(source, layout, block, first)
        by_column = [cells[column.index :: layout.width] for column in layout.columns]
        good = [_at_once(*pair) for pair in zip(layout.columns, by_column, strict=True)]
        if None in good:
            good = [*_one_by_one(source, layout, by_column, first)]
        for numbers, more in zip(found, good, strict=True):
            numbers.extend(more or ())
        if len(found[0]) > MAX_POINTS:
            raise too_many(source, source.line_of(layout.skip + MAX_POINTS))
    return found


def from_lengths(lengths: Sequence[float]) -> tuple[list[float], float]:
    """When pieces of these lengths begin, and when the last one ends."""
    ends = list(accumulate(lengths, initial=0.0))
    return ends[:-1], ends[-1]


def split(line: str, separator: str | None) -> list[str]:
    """The cells of a line; between quotes the separator is none. Raises csv.Error."""
    if separator and '"' in line:
        return next(csv.reader([line], delimiter=separator, skipinitialspace=True))
    return line.split(separator)


def is_number(cell: str) -> bool:
    """Whether ``cell`` can be read as a number."""
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _cells(source: Source, layout: Layout, block: list[str], first: int) -> list[str]:
    """The cells of all lines, one line's behind the other's."""
    separator = layout.separator
    joined = (separator or " ").join(block)
    if separator is None:
        plain = all(len(line.split()) == layout.width for line in block)
    else:
        counts = set(map(str.count, block, repeat(separator)))
        plain = counts <= {layout.width - 1} and '"' not in joined
    if plain:  # one list of all cells: a list a line costs several times as much
        return joined.split(separator) if block else []
    rows = (_row(source, layout, line, first + i) for i, line in enumerate(block))
    return [cell for row in rows for cell in row]


def _row(source: Source, layout: Layout, line: str, index: int) -> list[str]:
    """The cells of one line; empty ones at its end are too many for no one."""
    try:
        cells = split(line, layout.separator)
    except csv.Error as error:
        raise source.error(source.line_of(index), f"not a line of a table: {error}") from None
    while len(cells) > layout.width and not cells[-1].strip():
        cells.pop()
    if len(cells) != layout.width:
        columns = f"{layout.width} column{'s' * (layout.width > 1)}"
        raise source.error(
            source.line_of(index), f"{brief(line)} has {len(cells)}, not {columns}",
            "Every line has as many as the first",
        )  # fmt: skip
    return cells


def _at_once(column: Column, cells: Sequence[str]) -> list[float] | None:
    """The numbers of some cells, if all are good ones."""
    try:
        values = list(map(_date if column.is_date else float, cells))
    except (ValueError, OverflowError):
        return None
    good = min(values, default=0.0) >= 0 and sum(values) <= LARGEST_NUMBER
    return values if good else None


def _one_by_one(
    source: Source, layout: Layout, by_column: list[list[str]], first: int
) -> list[list[float]]:
    """The numbers of some cells that are not all good: raises at the first line that has a bad one."""
    order = sorted(range(len(layout.columns)), key=lambda i: layout.columns[i].index)
    for row in range(len(by_column[0])):
        for i in order:
            cell, column = by_column[i][row].strip(), layout.columns[i]
            try:
                _value(source, None, cell, column)
            except InputError:
                _value(source, source.line_of(first + row), cell, column)
                raise
    return [
        [_value(source, None, cell.strip(), column) for cell in cells]
        for column, cells in zip(layout.columns, by_column, strict=True)
    ]


def _value(source: Source, line: int | None, cell: str, column: Column) -> float:
    if not column.is_date:
        return number(source, line, cell, column.what)
    try:
        return _date(cell)
    except (ValueError, OverflowError):
        hint = "A time is a number, or written as 2024-05-31T17:59:00"
        raise source.error(line, f"{brief(cell)} is not a time", hint) from None


def _date(text: str) -> float:
    """Seconds since 1970 of an ISO 8601 date and time, or one as G-NetTrack writes it; without zone: UTC."""
    day, underscore, clock = text.strip().partition("_")
    if underscore:
        day = f"{day.replace('.', '-')}T{clock.replace('.', ':')}"
    when = datetime.fromisoformat(day)
    aware = when if when.tzinfo else when.replace(tzinfo=UTC)
    return max(0.0, (aware - _EPOCH).total_seconds())
