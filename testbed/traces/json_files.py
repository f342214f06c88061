"""Traces in JSON: Sabre's lists, and what ``iperf3 -J`` prints."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from testbed.traces.points import build
from testbed.traces.source import LARGEST_NUMBER, Source, brief, number
from testbed.traces.table import from_lengths
from testbed.traces.trace import MAX_POINTS, RateTrace

_BLANK = re.compile(r"[\s,]*")
_MOST_VALUES = 8 * MAX_POINTS
_SHORT = 0.1
"""The last interval of iperf3 is part of the one before if it is shorter than this share of it."""
_ROUNDED_S, _ROUNDED = 0.01, 0.01
"""Intervals may begin so much away from the last one's end, in s or as a share of their length."""
IPERF3_SUMS = ("sum", "sum_bidir_reverse")
"""What an interval may count: the flow asked for, and with ``--bidir`` the one back."""


def read_sabre(source: Source) -> RateTrace:
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


def read_iperf3(source: Source) -> RateTrace:
    """The intervals of a report: TCP or UDP payload. What iperf3 was told to omit is left out.

    iperf3 begins an interval where the last one ended. One that begins elsewhere says that a part of the report
    is missing, and is refused: nobody knows what passed meanwhile. After what is omitted it counts from 0 again.
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
    source: Source, entry: dict[str, Any], at: str, before: float | None, length: float
) -> float | None:
    """When an interval ends, if it says when it began: right at the end of the one ``before`` it."""
    if entry.get("start") is None:
        return None
    start = number(source, None, entry["start"], f"the time {at}.start")
    if before is not None and abs(start - before) > max(_ROUNDED_S, _ROUNDED * length):
        raise source.error(
            None,
            f"{at} begins at {start:g} s, and the one before it ended at {before:g} s",
            "No interval may be missing or there twice: use the whole report, or one unbroken part of it",
        )
    return start + length


def _which(source: Source, intervals: list[Any]) -> str:
    """The sum that is wanted."""
    first = intervals[0] if intervals and isinstance(intervals[0], dict) else {}
    there = [name for name in IPERF3_SUMS if name in first]
    if source.column is None and len(there) > 1:
        several = ", ".join(there)
        raise source.error(None, f"traffic went both ways: {several}", "Choose a column")
    if source.column is not None and source.column not in there:
        raise source.error(
            None, f"there is no column {brief(source.column)}", f"There are {', '.join(there)}"
        )
    return source.column or (there[0] if there else IPERF3_SUMS[0])


def _entry(source: Source, interval: object, which: str, i: int) -> dict[str, Any]:
    entry = interval.get(which) if isinstance(interval, dict) else None
    if not isinstance(entry, dict):
        raise source.error(None, f"intervals[{i}] has no {which!r}: {brief(interval)}")
    return entry


def _parsed(source: Source) -> Any:
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


def _numbers(source: Source, given: list[Any], what: str) -> list[float]:
    """All of ``given`` at once; one by one only to say which is wrong."""
    if set(map(type, given)) <= {int, float}:
        try:
            values = list(map(float, given))
            if min(values, default=0.0) >= 0 and sum(values) <= LARGEST_NUMBER:
                return values
        except OverflowError:
            pass  # the loop finds which
    return list(_one_by_one(source, given, what))


def _one_by_one(source: Source, given: list[Any], what: str) -> Iterable[float]:
    for i, value in enumerate(given):
        plain = type(value) in {int, float} and 0 <= value <= LARGEST_NUMBER
        yield float(value) if plain else number(source, _line(source, i), value, what)


def _line(source: Source, index: int) -> int:
    """The line at which the ``index``-th entry of the list that the text is begins."""
    decoder, at = json.JSONDecoder(), source.text.index("[") + 1
    for _ in range(index):
        at = decoder.raw_decode(source.text, _next(source.text, at))[1]
    return source.text.count("\n", 0, _next(source.text, at)) + 1


def _next(text: str, at: int) -> int:
    match = _BLANK.match(text, at)
    return match.end() if match else at
