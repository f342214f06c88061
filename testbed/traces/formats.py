"""The trace formats that are read. Each reader turns a ``Source`` into a ``RateTrace``.

``csv``       columns under a header that names units; an optional comment ``# duration_s: 60`` above it
              says when the last row ends (``testbed/traces/csv_file.py``)
``mahimahi``  one line per 1500-byte packet: the millisecond it may leave at; the last is the period
``pairs``     seconds and Mbit/s, separated by spaces or tabs (the "cooked" form of Pensieve's traces)
``riiser``    the 3G logs of Riiser and the 4G logs of Ghent: Unix time, ms, latitude, longitude, bytes, ms
``sabre``     JSON list of {"duration_ms", "bandwidth_kbps", "latency_ms"}; the latency is not used
``iperf3``    JSON that ``iperf3 -J`` prints: its intervals
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable
from itertools import pairwise
from operator import le

from testbed.traces.csv_file import read_csv
from testbed.traces.json_files import read_iperf3, read_sabre
from testbed.traces.points import build
from testbed.traces.source import Source, brief
from testbed.traces.table import Column, Layout, from_lengths, read_columns
from testbed.traces.trace import RateTrace

MAHIMAHI_BITS = 1500 * 8
"""What one line of a Mahimahi trace lets through, as its authors count."""
MAHIMAHI_BIN_MS = 100
MAHIMAHI_LONGEST_MS = 100_000_000

_PAIRS = Layout(None, 2, (Column(0, "a time"), Column(1, "a rate")))
_RIISER = Layout(None, 6, (Column(4, "a number of bytes"), Column(5, "a time in ms")))


def read_pairs(source: Source) -> RateTrace:
    """Seconds and Mbit/s."""
    times, rates = read_columns(source, _PAIRS)
    return build(source, times, [rate * 1e6 for rate in rates], source.line_of)


def read_riiser(source: Source) -> RateTrace:
    """Bytes that came in the ms since the line before; the other columns are not used."""
    amounts, lengths = read_columns(source, _RIISER)
    kept = [i for i, (n, ms) in enumerate(zip(amounts, lengths, strict=True)) if n or ms]
    for i in kept:
        if not lengths[i]:
            raise source.error(source.line_of(i), f"{amounts[i]:g} bytes came in 0 ms")
    times, end = from_lengths([lengths[i] / 1e3 for i in kept])
    rates = [amounts[i] * 8e3 / lengths[i] for i in kept]
    return build(source, times, rates, lambda i: source.line_of(kept[i]), end)


def read_mahimahi(source: Source) -> RateTrace:
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


def _stamps(source: Source) -> array[int]:
    stamps = array("q")
    for block in source.blocks():
        if not all(map(_is_stamp, block)):
            i = next(i for i, text in enumerate(block) if not _is_stamp(text))
            raise source.error(
                source.line_of(len(stamps) + i), f"{brief(block[i])} is not a time in ms",
                "A Mahimahi trace has one whole number of milliseconds a line",
            )  # fmt: skip
        stamps.extend(map(int, block))
    if not all(map(le, stamps, stamps[1:])):
        i = next(i for i in range(1, len(stamps)) if stamps[i] < stamps[i - 1])
        raise source.error(
            source.line_of(i), f"time goes backwards: {stamps[i]} ms after {stamps[i - 1]} ms"
        )
    return stamps


def _is_stamp(text: str) -> bool:
    return text.isdigit() and text.isascii() and len(text) < 16


READERS: dict[str, Callable[[Source], RateTrace]] = {
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
