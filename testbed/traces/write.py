"""Writing a trace: in the project's own format, and in others that read or replay bandwidth."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from testbed.traces.formats import MAHIMAHI_BITS, MAHIMAHI_LONGEST_MS
from testbed.traces.points import LONGEST_S, SHORTEST_S
from testbed.traces.trace import RateTrace
from testbed.units import LARGEST

MAHIMAHI_MOST_LINES = 8_000_000


def write_csv(trace: RateTrace, *, comment: str | None = None) -> str:
    """The trace as CSV text with units in the header; read back, it is the same trace.

    ``comment`` (default: the trace's name) goes in front. Raises ValueError for what could not be read back.
    """
    _check(trace)
    said = trace.name if comment is None else comment
    head = [f"# {line}" for line in said.splitlines()]
    head += [f"# duration_s: {trace.duration_s!r}", "time_s,rate_mbit_s"]
    return "\n".join([*head, *_rows(trace, ",")]) + "\n"


def write_pairs(trace: RateTrace) -> str:
    """Seconds and Mbit/s; read back, it is the same rate at every time.

    The format does not say how long the last line lasts. Readers take it to last as long as the one
    before, so it is written as two halves where that would be wrong. Raises ValueError for what could not be
    read back.
    """
    _check(trace)
    lengths = trace.lengths_s()
    last_s, half_s = trace.times_s[-1], trace.times_s[-1] + lengths[-1] / 2
    as_before = math.isclose(lengths[-1], lengths[-2] if len(lengths) > 1 else 1.0, rel_tol=1e-9)
    if not as_before and last_s < half_s < trace.duration_s:
        rates = (*trace.rates_bits, trace.rates_bits[-1])
        trace = RateTrace((*trace.times_s, half_s), rates, trace.duration_s)
        _check(trace)
    return "\n".join(_rows(trace, " ")) + "\n"


def write_mahimahi(trace: RateTrace) -> str:
    """One line per 1500-byte packet: the millisecond it may leave at. The last is the period.

    The number of packets is the trace's bits rounded to whole ones, one at least; Mahimahi cannot
    express less. Raises ValueError for a trace too long or too fast to be written so.
    """
    period = max(1, round(trace.duration_s * 1e3))
    bits = trace.mean_bits() * trace.duration_s
    packets = max(1, round(bits / MAHIMAHI_BITS))
    if packets > MAHIMAHI_MOST_LINES or period > MAHIMAHI_LONGEST_MS:
        raise ValueError(
            f"{packets} packets in {period} ms are more than a Mahimahi trace can be: up to "
            f"{MAHIMAHI_MOST_LINES} packets, {MAHIMAHI_LONGEST_MS} ms"
        )
    stamps = [min(stamp, period) for stamp in _departures(trace, packets, bits / packets)]
    return "\n".join(map(str, [*stamps, period])) + "\n"


def _check(trace: RateTrace) -> None:
    """Whether a file with these times and rates would be read."""
    shortest = min(trace.lengths_s())
    if shortest < SHORTEST_S:
        raise ValueError(
            f"two points would be {shortest:g} s apart, and {SHORTEST_S:g} s is the shortest that is read: "
            f"times {1.01 * SHORTEST_S / shortest:.3g} times as long would do"
        )
    if trace.duration_s > LONGEST_S:
        raise ValueError(
            f"the trace would last {trace.duration_s:g} s: {LONGEST_S:g} s is the most"
        )
    if max(trace.rates_bits) > LARGEST:
        raise ValueError(
            f"a rate would be {max(trace.rates_bits):g} bit/s: {LARGEST:g} is the most"
        )


def _departures(trace: RateTrace, packets: int, size_bits: float) -> Iterator[int]:
    """The ms at which each of all packets but the last has been let through."""
    before, sent = 0.0, 0
    for begin, rate, length in zip(trace.times_s, trace.rates_bits, trace.lengths_s(), strict=True):
        after = before + rate * length
        while sent < packets - 1 and (sent + 1) * size_bits <= after:
            sent += 1
            yield math.ceil((begin + (sent * size_bits - before) / rate) * 1e3)
        before = after


def _rows(trace: RateTrace, separator: str) -> list[str]:
    pairs = zip(trace.times_s, trace.rates_bits, strict=True)
    return [f"{_short(time)}{separator}{rate // 10**6}{_fraction(rate)}" for time, rate in pairs]


def _short(time: float) -> str:
    return repr(time).removesuffix(".0")


def _fraction(rate: int) -> str:
    """The digits behind the point of ``rate`` in Mbit/s, without zeros at the end."""
    return f".{rate % 10**6:06d}".rstrip("0").rstrip(".")


WRITERS: dict[str, Callable[[RateTrace], str]] = {
    "csv": write_csv,
    "mahimahi": write_mahimahi,
    "pairs": write_pairs,
}
"""Writers by the name of their format."""
