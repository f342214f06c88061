"""The header of a CSV file: which column is the rate, and which the time."""

from __future__ import annotations

import csv
from dataclasses import dataclass

from testbed.traces.columns import Meaning, meaning, unit_of_rate
from testbed.traces.source import Source, brief
from testbed.traces.table import is_number, split

_MOST_COLUMNS = 10_000
_LONGEST_LIST = 600
_UNITS = "A rate's column ends in its unit, as in rate_mbit_s, rate_kbit_s, DL (Mbps) or bytes"
_CHOOSE = "choose one with its unit: column NAME:UNIT, e.g. {}:Mbit/s"


@dataclass(frozen=True, slots=True)
class Header:
    """The first line with content: its number, its cells, and what separates cells."""

    line: int
    names: list[str]
    separator: str

    @property
    def missing(self) -> bool:
        """Whether the line is already one of numbers."""
        return is_number(self.names[0]) or all(map(is_number, self.names))

    def meaning(self, column: int) -> Meaning | None:
        """What a column's name tells of it; nothing without a header."""
        return None if self.missing else meaning(self.names[column])


def read_header(source: Source) -> Header:
    """The first line with content, and how it falls into cells."""
    line, text = next(source.numbered(), (1, ""))
    separator = next((mark for mark in ";\t," if mark in text), ",")
    if text.count(separator) >= _MOST_COLUMNS:
        raise source.error(line, f"more than {_MOST_COLUMNS} columns", "No trace has as many")
    try:
        names = [cell.strip() for cell in split(text, separator)]
        while len(names) > 1 and not names[-1]:
            names.pop()
        return Header(line, names, separator)
    except csv.Error as error:
        raise source.error(line, f"not a line of a table: {error}") from None


def rate_column(source: Source, header: Header) -> tuple[int, Meaning]:
    """The column that holds the rate, and what it means."""
    if source.column is not None:
        return _named(source, header, source.column)
    if header.missing:
        raise source.error(
            header.line, f"{brief(','.join(header.names))} is no header that names columns",
            f"Write one such as time_s,rate_mbit_s above it, or {_CHOOSE.format(2)}",
        )  # fmt: skip
    meanings = [meaning(name) for name in header.names]
    for kind in ("rate", "bytes"):
        found = [(i, what) for i, what in enumerate(meanings) if what and what.kind == kind]
        if len(found) > 1:
            several = _listed([header.names[i] for i, _ in found])
            raise source.error(
                header.line, f"several columns hold rates: {several}", "Choose a column"
            )
        if found:
            return found[0]
    raise source.error(
        header.line, f"header {brief(','.join(header.names))} does not state the units of a rate",
        f"{_UNITS}; or {_CHOOSE.format(header.names[-1][:40] or len(header.names))}",
    )  # fmt: skip


def _named(source: Source, header: Header, column: str) -> tuple[int, Meaning]:
    """The column called ``NAME``, or ``NAME:UNIT``; its number (from 1) may stand for its name."""
    name, _, unit = column.rpartition(":")
    for wanted, stated in ((column, None), (name, unit_of_rate(unit.strip()))):
        if (index := _index(header, wanted)) is None:
            continue
        what = stated or meaning(header.names[index])
        if what and what.kind in ("rate", "bytes"):
            return index, what
        raise source.error(
            header.line, f"column {brief(wanted)} does not state the unit of a rate",
            f"{_UNITS}; or {_CHOOSE.format(wanted[:40])}",
        )  # fmt: skip
    known = f"1 to {len(header.names)}" if header.missing else _listed(header.names)
    raise source.error(header.line, f"there is no column {brief(column)}", f"There are {known}")


def _listed(names: list[str]) -> str:
    listed = ", ".join(names)
    return listed if len(listed) <= _LONGEST_LIST else f"{listed[:_LONGEST_LIST]} …"


def _index(header: Header, wanted: str) -> int | None:
    names = [] if header.missing else [name.lower() for name in header.names]
    if wanted.strip().lower() in names:
        return names.index(wanted.strip().lower())
    if wanted.isascii() and wanted.isdigit() and 1 <= int(wanted[:9]) <= len(header.names):
        return int(wanted[:9]) - 1
    return None


def time_column(header: Header, rate: int) -> int | None:
    """The first column of times, those with a unit before others; without header the first."""
    if header.missing:
        return 0 if rate != 0 else None
    meanings = [(i, meaning(name)) for i, name in enumerate(header.names) if i != rate]
    for kind in ("time", "length"):
        found = [(what.factor is None, i) for i, what in meanings if what and what.kind == kind]
        if found:
            return min(found)[1]
    return None
