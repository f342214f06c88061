"""CSV of many makes: which column is the rate, which the time, and in what units, told by the
header.

Separators are ``,`` ``;`` or tab. Columns whose names end in a unit of rate (``rate_mbit_s``, ``DL
kbps``, ``Mbits/sec``) hold rates, those that end in one of size (``bytes``, ``kB``) what arrived in
a step. Times are found by name; without any, rows are a second apart. NYU-METS files,
``0.57,Mbits/sec``, have no header.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate, repeat
from operator import sub
from typing import Literal

from testbed.errors import InputError, brief
from testbed.traces.rate_trace import (
    LARGEST_NUMBER,
    MAX_POINTS,
    SHORTEST_S,
    RateTrace,
    TraceSource,
    build,
    number,
    too_many,
)

Kind = Literal["rate", "bytes", "time", "length"]

_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0}
_TIME_WORDS = {
    "second": "s",
    "sec": "s",
    "millisecond": "ms",
    "msec": "ms",
    "minute": "min",
    "hour": "h",
}
_KNOWN = {"dl_bitrate": 1e3, "ul_bitrate": 1e3}
"""Names without a unit whose meaning is known: G-NetTrack's, in kbit/s."""

# Units are read at the end of a name, behind a separator or in brackets, or alone. Big B means
# bytes, small b bits.
_BEGIN, _END = r"(?:^|(?<=[\s_.\-(\[/]))", r"[)\]\s]*$"
_PER_SECOND = r"(?P<per>ps|(?:\s*/\s*|_per_|\s+per\s+|_|\s+)s(?:ec(?:ond)?)?)"
_RATE = re.compile(
    rf"{_BEGIN}(?P<prefix>[kKmMgG]?)(?P<unit>[Bb]|[Bb]its?|[Bb]ytes?)(?:{_PER_SECOND}){_END}"
)
_BARE = re.compile(rf"{_BEGIN}(?P<prefix>[kKmMgG]?)(?P<unit>[Bb]its?|[Bb]ytes?|(?<=[kKMG])B){_END}")
_UNIT_OF_TIME = re.compile(
    rf"{_BEGIN}(ns|us|µs|ms|s|min|h|m?sec|(?:milli)?seconds?|minutes?|hours?){_END}"
)
_TIME = re.compile(
    r"^(time|timestamp|elapsed|t|date|datetime|second|sec|millisecond|ms|s)s?(?![a-z])"
)
_LENGTH = re.compile(r"^(duration|length|interval|dt)(?![a-z])")


@dataclass(frozen=True, slots=True)
class Meaning:
    """``factor`` leads to bit/s, bytes or seconds; None where the name does not state the unit."""

    kind: Kind
    factor: float | None


def meaning(name: str) -> Meaning | None:
    """Return what a column called ``name`` holds; None if its name does not tell."""
    lower = name.strip().lower()
    if lower in _KNOWN:
        return Meaning("rate", _KNOWN[lower])
    if what := unit_of_rate(name):
        return what
    for kind, pattern in (("time", _TIME), ("length", _LENGTH)):
        if pattern.match(lower):
            return Meaning(kind, _seconds(lower))  # type: ignore[arg-type]
    return None


def unit_of_rate(name: str) -> Meaning | None:
    """The rate, or the amount of bytes, whose unit ``name`` ends in (or is)."""
    if len(name) > 200:
        return None
    if match := _RATE.search(name):
        return Meaning("rate", _bits(match) * _PREFIXES[match["prefix"].lower()])
    if match := _BARE.search(name):
        factor = _PREFIXES[match["prefix"].lower()]
        return Meaning("rate", factor) if _bits(match) == 1 else Meaning("bytes", factor)
    return None


def _bits(match: re.Match[str]) -> float:
    """Bits in one of the unit: 8 of bytes, which are written B or in full."""
    return 8.0 if match["unit"] == "B" or match["unit"].lower().startswith("by") else 1.0


def _seconds(lower: str) -> float | None:
    if not (match := _UNIT_OF_TIME.search(lower)):
        return None
    unit = match[1] if match[1] in _SECONDS else _TIME_WORDS[match[1].removesuffix("s")]
    return _SECONDS[unit]


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its place (from 0), its name in messages, and whether it has dates."""

    index: int
    what: str
    is_date: bool = False


@dataclass(frozen=True, slots=True)
class TableLayout:
    """How lines fall into cells. ``separator`` None: white space; ``skip`` lines are skipped."""

    separator: str | None
    width: int
    columns: tuple[Column, ...]
    skip: int = 0


def read_columns(source: TraceSource, layout: TableLayout) -> list[list[float]]:
    """The numbers of every column asked for. Raises InputError with the line of a bad one."""
    columns: list[list[float]] = [[] for _ in layout.columns]
    for block in source.blocks(layout.skip):
        first = layout.skip + len(columns[0])
        cells = _cells(source, layout, block, first)
        by_column = [cells[column.index :: layout.width] for column in layout.columns]
        good = [_at_once(*pair) for pair in zip(layout.columns, by_column, strict=True)]
        if None in good:
            good = [*_one_by_one(source, layout, by_column, first)]
        for numbers, more in zip(columns, good, strict=True):
            numbers.extend(more or ())
        if len(columns[0]) > MAX_POINTS:
            raise too_many(source, source.line_of(layout.skip + MAX_POINTS))
    return columns


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
    """Return whether ``cell`` can be read as a number."""
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _cells(source: TraceSource, layout: TableLayout, block: list[str], first: int) -> list[str]:
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


def _row(source: TraceSource, layout: TableLayout, line: str, index: int) -> list[str]:
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
            source.line_of(index),
            f"{brief(line)} has {len(cells)}, not {columns}",
            "Every line has as many as the first",
        )
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
    source: TraceSource, layout: TableLayout, by_column: list[list[str]], first: int
) -> list[list[float]]:
    """The numbers of cells that are not all good: raises at the first bad line."""
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


def _value(source: TraceSource, line: int | None, cell: str, column: Column) -> float:
    if not column.is_date:
        return number(source, line, cell, column.what)
    try:
        return _date(cell)
    except (ValueError, OverflowError):
        hint = "A time is a number, or written as 2024-05-31T17:59:00"
        raise source.error(line, f"{brief(cell)} is not a time", hint) from None


def _date(text: str) -> float:
    """Seconds since 1970 of an ISO 8601 time, or one of G-NetTrack's; without zone: UTC."""
    day, underscore, clock = text.strip().partition("_")
    if underscore:
        day = f"{day.replace('.', '-')}T{clock.replace('.', ':')}"
    when = datetime.fromisoformat(day)
    aware = when if when.tzinfo else when.replace(tzinfo=UTC)
    return max(0.0, (aware - _EPOCH).total_seconds())


_MOST_COLUMNS = 10_000
_LONGEST_LIST = 600
_UNITS = "A rate's column ends in its unit, as in rate_mbit_s, rate_kbit_s, DL (Mbps) or bytes"
_CHOOSE = "choose one with its unit: column NAME:UNIT, e.g. {}:Mbit/s"


@dataclass(frozen=True, slots=True)
class CsvHeader:
    """The first line with content: its number, its cells, and what separates cells."""

    line: int
    names: list[str]
    separator: str

    @property
    def missing(self) -> bool:
        """Return whether the line is already one of numbers."""
        return is_number(self.names[0]) or all(map(is_number, self.names))

    def meaning(self, column: int) -> Meaning | None:
        """Return what a column's name tells of it; None without a header."""
        return None if self.missing else meaning(self.names[column])


def read_header(source: TraceSource) -> CsvHeader:
    """The first line with content, and how it falls into cells."""
    line, text = next(source.numbered(), (1, ""))
    separator = next((mark for mark in ";\t," if mark in text), ",")
    if text.count(separator) >= _MOST_COLUMNS:
        raise source.error(line, f"more than {_MOST_COLUMNS} columns", "No trace has as many")
    try:
        names = [cell.strip() for cell in split(text, separator)]
        while len(names) > 1 and not names[-1]:
            names.pop()
        return CsvHeader(line, names, separator)
    except csv.Error as error:
        raise source.error(line, f"not a line of a table: {error}") from None


def rate_column(source: TraceSource, header: CsvHeader) -> tuple[int, Meaning]:
    """The column that holds the rate, and what it means."""
    if source.column is not None:
        return _named(source, header, source.column)
    if header.missing:
        raise source.error(
            header.line,
            f"{brief(','.join(header.names))} is no header that names columns",
            f"Write one such as time_s,rate_mbit_s above it, or {_CHOOSE.format(2)}",
        )
    meanings = [meaning(name) for name in header.names]
    for kind in ("rate", "bytes"):
        candidates = [(i, what) for i, what in enumerate(meanings) if what and what.kind == kind]
        if len(candidates) > 1:
            several = _listed([header.names[i] for i, _ in candidates])
            raise source.error(
                header.line, f"several columns hold rates: {several}", "Choose a column"
            )
        if candidates:
            return candidates[0]
    raise source.error(
        header.line,
        f"header {brief(','.join(header.names))} does not state the units of a rate",
        f"{_UNITS}; or {_CHOOSE.format(header.names[-1][:40] or len(header.names))}",
    )


def _named(source: TraceSource, header: CsvHeader, column: str) -> tuple[int, Meaning]:
    """The column called ``NAME``, or ``NAME:UNIT``; its number (from 1) may stand for its name."""
    name, _, unit = column.rpartition(":")
    for wanted, stated in ((column, None), (name, unit_of_rate(unit.strip()))):
        if (index := _index(header, wanted)) is None:
            continue
        what = stated or meaning(header.names[index])
        if what and what.kind in ("rate", "bytes"):
            return index, what
        raise source.error(
            header.line,
            f"column {brief(wanted)} does not state the unit of a rate",
            f"{_UNITS}; or {_CHOOSE.format(wanted[:40])}",
        )
    known = f"1 to {len(header.names)}" if header.missing else _listed(header.names)
    raise source.error(header.line, f"there is no column {brief(column)}", f"There are {known}")


def _listed(names: list[str]) -> str:
    listed = ", ".join(names)
    return listed if len(listed) <= _LONGEST_LIST else f"{listed[:_LONGEST_LIST]} …"


def _index(header: CsvHeader, wanted: str) -> int | None:
    names = [] if header.missing else [name.lower() for name in header.names]
    if wanted.strip().lower() in names:
        return names.index(wanted.strip().lower())
    if wanted.isascii() and wanted.isdigit() and 1 <= int(wanted[:9]) <= len(header.names):
        return int(wanted[:9]) - 1
    return None


def time_column(header: CsvHeader, rate: int) -> int | None:
    """The first column of times, those with a unit before others; without header the first."""
    if header.missing:
        return 0 if rate != 0 else None
    meanings = [(i, meaning(name)) for i, name in enumerate(header.names) if i != rate]
    for kind in ("time", "length"):
        candidates = [
            (what.factor is None, i) for i, what in meanings if what and what.kind == kind
        ]
        if candidates:
            return min(candidates)[1]
    return None


_UNIX_MS = 1e11
"""A time without unit beyond this (the year 5138 in s) is Unix time in ms."""
_HEAD_CHARACTERS = 2**16
_DURATION = re.compile(r"#\s*duration_s:\s*(\S+)$")


def read_csv(source: TraceSource) -> RateTrace:
    """Separated columns under a header, or NYU-METS' rates with their unit behind each."""
    header = read_header(source)
    if header.missing and len(header.names) == 2 and unit_of_rate(header.names[1]):
        return _rates_with_units(source, header)
    rate, what = rate_column(source, header)
    columns = [Column(rate, "an amount" if what.kind == "bytes" else "a rate")]
    time, when = time_column(header, rate), Meaning("time", 1.0)
    if time is not None:
        when = header.meaning(time) or when
        is_date = when.factor is None and not is_number(_first_cell(source, header, time))
        columns.append(Column(time, "a time", is_date))
    layout = TableLayout(
        header.separator, len(header.names), tuple(columns), 0 if header.missing else 1
    )
    return _trace(source, layout, what, when, read_columns(source, layout))


def _trace(
    source: TraceSource,
    layout: TableLayout,
    what: Meaning,
    when: Meaning,
    columns: list[list[float]],
) -> RateTrace:
    values, kept, duration = columns[0], range(len(columns[0])), _duration(source)
    stamps = columns[1] if len(columns) > 1 else list(map(float, kept))
    lines: Sequence[int] = kept
    factor = when.factor or (1e-3 if stamps and stamps[0] > _UNIX_MS else 1.0)
    times = stamps if factor == 1.0 else [stamp * factor for stamp in stamps]
    if when.kind == "length":
        times, end = from_lengths(times)
        duration = end if duration is None else duration
    elif layout.columns[-1].is_date:
        times, values, lines = _merged(times, values, what)
    if what.kind == "bytes":
        values = _per_second(values, times, duration)
    rates = [value * what.factor for value in values] if what.factor else values
    return build(source, times, rates, lambda i: source.line_of(layout.skip + lines[i]), duration)


def _merged(
    times: list[float], values: list[float], what: Meaning
) -> tuple[list[float], list[float], list[int]]:
    """Rows of the same time, as loggers write them, are one: the mean rate, or all bytes."""
    groups: list[tuple[float, list[float], int]] = []
    for i, (time, value) in enumerate(zip(times, values, strict=True)):
        if groups and groups[-1][0] == time:
            groups[-1][1].append(value)
        else:
            groups.append((time, [value], i))
    share = [1 if what.kind == "bytes" else len(same) for _, same, _ in groups]
    merged = [sum(same) / n for (_, same, _), n in zip(groups, share, strict=True)]
    return [time for time, _, _ in groups], merged, [i for _, _, i in groups]


def _per_second(amounts: list[float], times: list[float], duration: float | None) -> list[float]:
    """Bit/s from bytes between two times; the last step is as long as that before."""
    lengths = list(map(sub, times[1:], times))
    last = lengths[-1] if lengths else 1.0
    lengths.append(duration - (times[-1] - times[0]) if duration else last)
    # Steps that cannot be are refused when the trace is built.
    return [8 * n / max(length, SHORTEST_S) for n, length in zip(amounts, lengths, strict=False)]


def _rates_with_units(source: TraceSource, header: CsvHeader) -> RateTrace:
    rates = []
    for line, text in source.numbered():
        value, _, unit = text.partition(header.separator)
        meant = unit_of_rate(unit.strip())
        if meant is None or meant.kind != "rate" or meant.factor is None:
            raise source.error(line, f"{brief(text)} is not a rate and its unit")
        rates.append(number(source, line, value.strip(), "a rate") * meant.factor)
    return build(source, [float(i) for i in range(len(rates))], rates, source.line_of)


def _first_cell(source: TraceSource, header: CsvHeader, column: int) -> str:
    """The first of a column's cells below the header; ``0`` if there is none."""
    lines = (text for line, text in source.numbered() if line > header.line or header.missing)
    try:
        cells = split(next(lines, ""), header.separator)
    except csv.Error:
        cells = []
    return cells[column].strip() if column < len(cells) else "0"


def _duration(source: TraceSource) -> float | None:
    """Return the seconds that a comment ``# duration_s: 60`` above the header gives, if any."""
    for line, text in enumerate(source.text[:_HEAD_CHARACTERS].split("\n"), start=1):
        if match := _DURATION.match(text.strip()):
            return number(source, line, match[1], "a duration in s")
    return None
