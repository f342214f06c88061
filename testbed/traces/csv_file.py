"""CSV of many makes: which column is the rate, which the time, and in what units, told by the header.

Separators are ``,`` ``;`` or tab. Columns whose names end in a unit of rate (``rate_mbit_s``, ``DL kbps``,
``Mbits/sec``) hold rates, those that end in one of size (``bytes``, ``kB``) what arrived in a step. Times are
found by name; without any, rows are a second apart. NYU-METS files, ``0.57,Mbits/sec``, have no header.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from operator import sub

from testbed.traces.columns import Meaning, unit_of_rate
from testbed.traces.csv_header import Header, rate_column, read_header, time_column
from testbed.traces.points import SHORTEST_S, build
from testbed.traces.source import Source, brief, number
from testbed.traces.table import Column, Layout, from_lengths, is_number, read_columns, split
from testbed.traces.trace import RateTrace

_UNIX_MS = 1e11
"""A time without unit beyond this (the year 5138 in s) is Unix time in ms."""
_HEAD_CHARACTERS = 2**16
_DURATION = re.compile(r"#\s*duration_s:\s*(\S+)$")


def read_csv(source: Source) -> RateTrace:
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
    layout = Layout(header.separator, len(header.names), tuple(columns), 0 if header.missing else 1)
    return _trace(source, layout, what, when, read_columns(source, layout))


def _trace(
    source: Source, layout: Layout, what: Meaning, when: Meaning, found: list[list[float]]
) -> RateTrace:
    values, kept, duration = found[0], range(len(found[0])), _duration(source)
    stamps = found[1] if len(found) > 1 else list(map(float, kept))
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
    """Rows of the same date and time, as loggers write them, are one: the mean rate, or all the bytes."""
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
    """Bit/s from bytes that arrived from one time to the next; the last step is as long as that before."""
    lengths = list(map(sub, times[1:], times))
    last = lengths[-1] if lengths else 1.0
    lengths.append(duration - (times[-1] - times[0]) if duration else last)
    # Steps that cannot be are refused when the trace is built.
    return [8 * n / max(length, SHORTEST_S) for n, length in zip(amounts, lengths, strict=False)]


def _rates_with_units(source: Source, header: Header) -> RateTrace:
    rates = []
    for line, text in source.numbered():
        value, _, unit = text.partition(header.separator)
        found = unit_of_rate(unit.strip())
        if found is None or found.kind != "rate" or found.factor is None:
            raise source.error(line, f"{brief(text)} is not a rate and its unit")
        rates.append(number(source, line, value.strip(), "a rate") * found.factor)
    return build(source, [float(i) for i in range(len(rates))], rates, source.line_of)


def _first_cell(source: Source, header: Header, column: int) -> str:
    """The first of a column's cells below the header; ``0`` if there is none."""
    lines = (text for line, text in source.numbered() if line > header.line or header.missing)
    try:
        cells = split(next(lines, ""), header.separator)
    except csv.Error:
        cells = []
    return cells[column].strip() if column < len(cells) else "0"


def _duration(source: Source) -> float | None:
    """What a comment ``# duration_s: 60`` above the header says."""
    for line, text in enumerate(source.text[:_HEAD_CHARACTERS].split("\n"), start=1):
        if match := _DURATION.match(text.strip()):
            return number(source, line, match[1], "a duration in s")
    return None
