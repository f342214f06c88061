"""Reading a trace file of any known format. Each reader turns a ``TraceSource`` into a
``RateTrace``.

``csv``       columns under a header that names units; an optional comment ``# duration_s: 60``
              above it says when the last row ends (``testbed/traces/csv_reader.py``)
``mahimahi``  one line per 1500-byte packet: the millisecond it may leave at; the last is the period
``pairs``     seconds and Mbit/s, separated by spaces or tabs (the "cooked" form of Pensieve's
              traces)
``riiser``    the 3G logs of Riiser and the 4G logs of Ghent: Unix time, ms, latitude, longitude,
              bytes, ms
``sabre``     JSON list of {"duration_ms", "bandwidth_kbps", "latency_ms"}; the latency is not used
``iperf3``    JSON that ``iperf3 -J`` prints: its intervals
"""

from __future__ import annotations

import json
import re
from array import array
from bisect import bisect_left
from collections.abc import Callable
from itertools import pairwise
from operator import le
from pathlib import Path
from typing import Any

from testbed.errors import InputError, brief
from testbed.traces.csv_reader import (
    Column,
    TableLayout,
    from_lengths,
    is_number,
    meaning,
    read_columns,
    read_csv,
)
from testbed.traces.rate_trace import (
    MAX_POINTS,
    RateTrace,
    TraceSource,
    build,
    number,
)
from testbed.user_files import text_of

_BLANK = re.compile(r"[\s,]*")
_MOST_VALUES = 8 * MAX_POINTS
_SHORT = 0.1
"""The last interval of iperf3 is part of the one before if it is shorter than this share of it."""
_ROUNDED_S, _ROUNDED = 0.01, 0.01
"""Intervals may begin so much away from the last one's end, in s or as a share of their length."""
IPERF3_SUMS = ("sum", "sum_bidir_reverse")
"""Sums that an interval may have: the flow asked for, and with ``--bidir`` the one back."""


def read_sabre(source: TraceSource) -> RateTrace:
    """A JSON list of durations and bandwidths."""
    items = _parsed(source)
    if not isinstance(items, list):
        raise source.error(1, "this JSON is no list", "A Sabre trace is a list of entries")
    for i, item in enumerate(items):
        if not isinstance(item, dict) or not {"duration_ms", "bandwidth_kbps"} <= item.keys():
            hint = 'Every entry is {"duration_ms": …, "bandwidth_kbps": …}'
            raise source.error(_line(source, i), f"{brief(item)} is not an entry of a trace", hint)
    rates = _numbers(source, [item["bandwidth_kbps"] for item in items], "a bandwidth in kbit/s")
    lengths = _numbers(source, [item["duration_ms"] for item in items], "a duration in ms")
    if 0.0 in lengths:
        line = _line(source, lengths.index(0.0))
        raise source.error(line, "duration_ms is 0", "Every entry lasts some time")
    times, end = from_lengths([length / 1e3 for length in lengths])
    return build(source, times, [rate * 1e3 for rate in rates], lambda i: _line(source, i), end)


def read_iperf3(source: TraceSource) -> RateTrace:
    """The intervals of a report: TCP or UDP payload. What iperf3 was told to omit is left out.

    iperf3 begins an interval where the last one ended. One that begins elsewhere says that a part
    of the report is missing, and is refused: nobody knows what passed meanwhile. After what is
    omitted it counts from 0 again.
    """
    report = _parsed(source)
    intervals = report.get("intervals") if isinstance(report, dict) else None
    if not isinstance(intervals, list):
        raise source.error(None, "this JSON is no report of iperf3", "`iperf3 -J` prints one")
    if report.get("error") and not intervals:
        raise source.error(None, f"iperf3 failed: {str(report['error'])[:200]}")
    which = _which(source, intervals)
    amounts: list[float] = []
    lengths: list[float] = []
    before: float | None = None
    for i, interval in enumerate(intervals):
        entry, at = _entry(source, interval, which, i), f"intervals[{i}].{which}"
        amount = number(source, None, entry.get("bytes"), f"{at}.bytes")
        length = number(source, None, entry.get("seconds"), f"{at}.seconds")
        if entry.get("omitted") is True:
            before = None
            continue
        before = _follows(source, entry, at, before, length)
        if lengths and length < _SHORT * lengths[-1] and i == len(intervals) - 1:
            amounts[-1], lengths[-1] = amounts[-1] + amount, lengths[-1] + length
        else:
            amounts.append(amount)
            lengths.append(length)
    if 0.0 in lengths:
        raise source.error(None, f"interval {lengths.index(0.0)} lasts 0 s")
    times, end = from_lengths(lengths)
    rates = [8 * amount / length for amount, length in zip(amounts, lengths, strict=True)]
    return build(source, times, rates, lambda _: None, end)


def _follows(
    source: TraceSource, entry: dict[str, Any], at: str, before: float | None, length: float
) -> float | None:
    """When an interval ends, if it says when it began: at the end of the one ``before``."""
    if entry.get("start") is None:
        return None
    start = number(source, None, entry["start"], f"the time {at}.start")
    if before is not None and abs(start - before) > max(_ROUNDED_S, _ROUNDED * length):
        raise source.error(
            None,
            f"{at} begins at {start:g} s, and the one before it ended at {before:g} s",
            "No interval may be missing or there twice: use the whole report, or one unbroken part "
            "of it",
        )
    return start + length


def _which(source: TraceSource, intervals: list[Any]) -> str:
    """The sum that is wanted."""
    first = intervals[0] if intervals and isinstance(intervals[0], dict) else {}
    present = [name for name in IPERF3_SUMS if name in first]
    if source.column is None and len(present) > 1:
        several = ", ".join(present)
        raise source.error(None, f"traffic went both ways: {several}", "Choose a column")
    if source.column is not None and source.column not in present:
        raise source.error(
            None, f"there is no column {brief(source.column)}", f"There are {', '.join(present)}"
        )
    return source.column or (present[0] if present else IPERF3_SUMS[0])


def _entry(source: TraceSource, interval: object, which: str, i: int) -> dict[str, Any]:
    entry = interval.get(which) if isinstance(interval, dict) else None
    if not isinstance(entry, dict):
        raise source.error(None, f"intervals[{i}] has no {which!r}: {brief(interval)}")
    return entry


def _parsed(source: TraceSource) -> Any:
    text = source.text
    if text.count("[") + text.count("{") + text.count('"') // 2 > _MOST_VALUES:
        raise source.error(None, f"more than {_MOST_VALUES} values in it", "No trace has as many")
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise source.error(error.lineno, f"not JSON: {error.msg}") from None
    except RecursionError:
        raise source.error(None, "nested too deeply", "No trace is") from None
    except ValueError:
        raise source.error(None, "a number has too many digits", "No rate has") from None


def _numbers(source: TraceSource, given: list[Any], what: str) -> list[float]:
    """All of ``given``. Raises InputError with the line of the first wrong one."""
    values: list[float] = []
    try:
        values.extend(number(source, None, value, what) for value in given)
    except InputError:
        i = len(values)
        number(source, _line(source, i), given[i], what)
    return values


def _line(source: TraceSource, index: int) -> int:
    """The line at which the ``index``-th entry of the list that the text is begins."""
    decoder, at = json.JSONDecoder(), source.text.index("[") + 1
    for _ in range(index):
        at = decoder.raw_decode(source.text, _next(source.text, at))[1]
    return source.text.count("\n", 0, _next(source.text, at)) + 1


def _next(text: str, at: int) -> int:
    match = _BLANK.match(text, at)
    return match.end() if match else at


MAHIMAHI_BITS = 1500 * 8
"""Bits that one line of a Mahimahi trace lets through, as its authors count."""
MAHIMAHI_BIN_MS = 100
MAHIMAHI_LONGEST_MS = 100_000_000

_PAIRS = TableLayout(None, 2, (Column(0, "a time"), Column(1, "a rate")))
_RIISER = TableLayout(None, 6, (Column(4, "a number of bytes"), Column(5, "a time in ms")))


def read_pairs(source: TraceSource) -> RateTrace:
    """Seconds and Mbit/s."""
    times, rates = read_columns(source, _PAIRS)
    return build(source, times, [rate * 1e6 for rate in rates], source.line_of)


def read_riiser(source: TraceSource) -> RateTrace:
    """Bytes that came in the ms since the line before; the other columns are not used."""
    amounts, lengths = read_columns(source, _RIISER)
    kept = [i for i, (n, ms) in enumerate(zip(amounts, lengths, strict=True)) if n or ms]
    for i in kept:
        if not lengths[i]:
            raise source.error(source.line_of(i), f"{amounts[i]:g} bytes came in 0 ms")
    times, end = from_lengths([lengths[i] / 1e3 for i in kept])
    rates = [amounts[i] * 8e3 / lengths[i] for i in kept]
    return build(source, times, rates, lambda i: source.line_of(kept[i]), end)


def read_mahimahi(source: TraceSource) -> RateTrace:
    """Delivery opportunities, counted in bins of about 100 ms."""
    stamps = _stamps(source)
    last = len(stamps) - 1
    period = stamps[-1] if stamps else 0
    if not 0 < period <= MAHIMAHI_LONGEST_MS:
        line = source.line_of(last) if stamps else 1
        raise source.error(line, f"the last line is the period: {period} ms cannot be one")
    bins = max(1, round(period / MAHIMAHI_BIN_MS))
    width = period / bins
    # A packet of the ms n may leave from n-1 on: it belongs to the bin that n-1 lies in.
    edges = [bisect_left(stamps, i * width + 1) for i in range(1, bins)]
    counts = [after - before for before, after in pairwise([0, *edges, len(stamps)])]
    times = [i * width / 1e3 for i in range(bins)]
    rates = [count * MAHIMAHI_BITS / width * 1e3 for count in counts]
    return build(source, times, rates, lambda _: None, period / 1e3)


def _stamps(source: TraceSource) -> array[int]:
    stamps = array("q")
    for block in source.blocks():
        if not all(map(_is_stamp, block)):
            i = next(i for i, text in enumerate(block) if not _is_stamp(text))
            raise source.error(
                source.line_of(len(stamps) + i),
                f"{brief(block[i])} is not a time in ms",
                "A Mahimahi trace has one whole number of milliseconds a line",
            )
        stamps.extend(map(int, block))
    if not all(map(le, stamps, stamps[1:])):
        i = next(i for i in range(1, len(stamps)) if stamps[i] < stamps[i - 1])
        raise source.error(
            source.line_of(i), f"time goes backwards: {stamps[i]} ms after {stamps[i - 1]} ms"
        )
    return stamps


def _is_stamp(text: str) -> bool:
    return text.isdigit() and text.isascii() and len(text) < 16


READERS: dict[str, Callable[[TraceSource], RateTrace]] = {
    "csv": read_csv,
    "mahimahi": read_mahimahi,
    "pairs": read_pairs,
    "riiser": read_riiser,
    "sabre": read_sabre,
    "iperf3": read_iperf3,
}
"""Readers by the name of their format."""
WITH_COLUMNS = ("csv", "iperf3")
"""Formats of which a column can be chosen."""


MAX_BYTES = 64 * 2**20
"""Larger files are refused."""
HINT = "Name a trace file: they are text or JSON"

_BY_WIDTH = {2: "pairs", 6: "riiser"}
"""Formats of numbers between white space, by how many stand on a line."""


def read(path: Path, *, format: str | None = None, column: str | None = None) -> RateTrace:  # noqa: A002
    """The trace in ``path``; its format is told from the content unless ``format`` names it.

    ``column`` names the column that holds the rate, as ``NAME`` or ``NAME:UNIT``.
    Raises InputError with ``path:line`` for whatever is wrong with it.
    """
    text = text_of(path, MAX_BYTES, HINT)
    return parse(text, str(path), format=format, column=column)


def parse(
    text: str,
    path: str,
    *,
    format: str | None = None,  # noqa: A002
    column: str | None = None,
) -> RateTrace:
    """The trace written in ``text``; ``path`` is what errors call it. See ``read``."""
    if format is not None and format not in READERS:
        raise InputError(f"unknown trace format {format!r}", hint=f"Known: {', '.join(READERS)}")
    source = TraceSource(path, text.replace("\r\n", "\n").replace("\r", "\n"), column)
    form = format or _detected(source)
    if column is not None and form not in WITH_COLUMNS:
        raise source.error(
            None, f"a {form} trace has no columns to choose from: {brief(column)}", "Leave it out"
        )
    return READERS[form](source)


def detect(text: str, path: str) -> str:
    """The name of the format that ``text`` looks like. Raises InputError if it is none."""
    return _detected(TraceSource(path, text.replace("\r\n", "\n").replace("\r", "\n")))


def _detected(source: TraceSource) -> str:
    """Return the format that the first line with content shows."""
    line, first = next(source.numbered(), (None, ""))
    if line is None:
        raise source.error(None, "the trace is empty", "One line with a time and a rate is enough")
    if first[0] in "[{":
        return "sabre" if first[0] == "[" else "iperf3"
    words = first[:1000].split()
    if "," not in first and ";" not in first and all(map(is_number, words)):
        if len(words) in _BY_WIDTH:
            return _BY_WIDTH[len(words)]
        if first.isdigit():
            return "mahimahi"
    elif any(mark in first for mark in ",;\t") or meaning(first):
        return "csv"
    raise source.error(
        line,
        f"{brief(first)} begins no known trace format",
        "Known: CSV with a header such as time_s,rate_mbit_s; seconds and Mbit/s in two columns; "
        "Mahimahi; Riiser's six columns; Sabre JSON; iperf3 JSON",
    )
