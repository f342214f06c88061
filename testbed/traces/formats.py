"""The trace formats that are read. Each reader turns a ``Source`` into a ``RateTrace``.

``csv``       header ``time_s,rate_mbit_s`` (or another unit of ``TIME_UNITS``, ``RATE_UNITS``), then
              rows; an optional comment ``# duration_s: 60`` says how long the last row lasts
``mahimahi``  one line per 1500-byte packet: the millisecond it may leave at; the last is the period
``pairs``     seconds and Mbit/s, separated by spaces or tabs (the "cooked" form of Pensieve's traces)
``sabre``     JSON list of {"duration_ms", "bandwidth_kbps", "latency_ms"}; the latency is not used
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

from testbed.traces.points import Point, Source, build, number
from testbed.traces.trace import RateTrace

TIME_UNITS = {"time_s": 1.0, "time_ms": 1e-3}
RATE_UNITS = {"rate_bit_s": 1.0, "rate_kbit_s": 1e3, "rate_mbit_s": 1e6, "rate_gbit_s": 1e9}
MAHIMAHI_BITS = 1500 * 8
"""What one line of a Mahimahi trace lets through, as its authors count."""
MAHIMAHI_BIN_MS = 100
MAHIMAHI_LONGEST_MS = 100_000_000

_DURATION = re.compile(r"^#\s*duration_s:\s*(\S+)\s*$")


def read_csv(source: Source) -> RateTrace:
    """Comma-separated times and rates under a header that states their units."""
    (header_line, header), *rows = source.lines() or [(1, "")]
    names = [name.strip() for name in header.split(",")]
    if len(names) != 2 or names[0] not in TIME_UNITS or names[1] not in RATE_UNITS:
        units = f"{' or '.join(TIME_UNITS)}, then {', '.join(RATE_UNITS)}"
        raise source.error(
            header_line, f"header {header!r} does not state the units", f"Columns: {units}"
        )
    factors = TIME_UNITS[names[0]], RATE_UNITS[names[1]]
    points = [_row(source, line, text, ",", factors) for line, text in rows]
    return build(source, points, _duration(source))


def read_pairs(source: Source) -> RateTrace:
    """Seconds and Mbit/s."""
    return build(
        source, [_row(source, line, text, None, (1.0, 1e6)) for line, text in source.lines()]
    )


def read_mahimahi(source: Source) -> RateTrace:
    """Delivery opportunities, counted in bins of about 100 ms."""
    stamps = [(line, _millisecond(source, line, text)) for line, text in source.lines()]
    for (_, earlier), (line, later) in pairwise(stamps):
        if later < earlier:
            raise source.error(line, f"time goes backwards: {later} ms after {earlier} ms")
    line, period = stamps[-1] if stamps else (1, 0)
    if not 0 < period <= MAHIMAHI_LONGEST_MS:
        raise source.error(line, f"the last line is the period: {period} ms cannot be one")
    bins = max(1, round(period / MAHIMAHI_BIN_MS))
    width = period / bins
    packets = Counter(min(int(max(stamp - 1, 0) / width), bins - 1) for _, stamp in stamps)
    rates = [packets[i] * MAHIMAHI_BITS / width * 1e3 for i in range(bins)]
    points = [Point(line, i * width / 1e3, rate) for i, rate in enumerate(rates)]
    return build(source, points, period / 1e3)


def read_sabre(source: Source) -> RateTrace:
    """A JSON list of durations and bandwidths."""
    points, time_ms = [], 0.0
    for line, item in _json_items(source):
        if not isinstance(item, dict) or not {"duration_ms", "bandwidth_kbps"} <= item.keys():
            hint = 'Every entry is {"duration_ms": …, "bandwidth_kbps": …}'
            raise source.error(line, f"{json.dumps(item)[:60]} is not an entry of a trace", hint)
        rate = number(source, line, item["bandwidth_kbps"], "a bandwidth in kbit/s") * 1e3
        length = number(source, line, item["duration_ms"], "a duration in ms")
        if not length:
            raise source.error(line, "duration_ms is 0", "Every entry lasts some time")
        points.append(Point(line, time_ms / 1e3, rate))
        time_ms += length
    return build(source, points, time_ms / 1e3)


def _row(
    source: Source, line: int, text: str, separator: str | None, factors: tuple[float, float]
) -> Point:
    cells = text.split(separator)
    if len(cells) != 2:
        raise source.error(
            line, f"{text[:60]!r} is not a time and a rate", "Two columns are needed"
        )
    time = number(source, line, cells[0].strip(), "a time")
    rate = number(source, line, cells[1].strip(), "a rate")
    return Point(line, time * factors[0], rate * factors[1])


def _duration(source: Source) -> float | None:
    for line, text in enumerate(source.text.splitlines(), start=1):
        if match := _DURATION.match(text.strip()):
            return number(source, line, match[1], "a duration in s")
    return None


def _millisecond(source: Source, line: int, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        hint = "A Mahimahi trace has one whole number of milliseconds a line"
        raise source.error(line, f"{text[:60]!r} is not a time in ms", hint)
    return int(text)


def _json_items(source: Source) -> Iterator[tuple[int, Any]]:
    """Line and value of every item of the list that the text is."""
    text, decoder = source.text, json.JSONDecoder()
    blank = re.compile(r"\s*")

    def skip(at: int) -> int:
        match = blank.match(text, at)
        return match.end() if match else at

    at = skip(skip(0) + 1)
    while text[at : at + 1] != "]":
        line = text.count("\n", 0, at) + 1
        try:
            item, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            raise source.error(error.lineno, f"not JSON: {error.msg}") from None
        except RecursionError:
            raise source.error(line, "nested too deeply") from None
        except ValueError:
            raise source.error(line, "a number has too many digits") from None
        yield line, item
        at = skip(at)
        if text[at : at + 1] not in {",", "]"}:
            raise source.error(line, "not JSON: the list does not go on with ',' or ']'")
        at = skip(at + 1) if text[at] == "," else at
    if (at := skip(at + 1)) != len(text):
        raise source.error(text.count("\n", 0, at) + 1, "something follows the list")


READERS: dict[str, Callable[[Source], RateTrace]] = {
    "csv": read_csv,
    "mahimahi": read_mahimahi,
    "pairs": read_pairs,
    "sabre": read_sabre,
}
"""Readers by the name of their format."""
