"""From the numbers of a file to a ``RateTrace``, with the line to blame when they make none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat
from operator import sub

from testbed.errors import InputError
from testbed.traces.source import Source
from testbed.traces.trace import MAX_POINTS, RateTrace
from testbed.units import LARGEST

LONGEST_S = 1e9
"""About thirty years."""
SHORTEST_S = 1e-6
"""No link can be changed as often as that."""

LineOf = Callable[[int], int | None]
"""From the index of a point to the line that it was written in."""


def build(
    source: Source,
    times_s: Sequence[float],
    rates_bits: Sequence[float],
    line_of: LineOf,
    duration_s: float | None = None,
) -> RateTrace:
    """A trace that begins with the first point, whatever its time; times and rates are not negative.

    Without ``duration_s`` the last point lasts as long as the one before it; a single one, a second.
    Raises InputError when there is no point, or times do not increase, or something is too large.
    """
    _check_count(source, len(times_s), line_of)
    _check_order(source, times_s, line_of)
    _check_rates(source, rates_bits, line_of)
    times = tuple(map(sub, times_s, repeat(times_s[0])))
    last = times[-1] - times[-2] if len(times) > 1 else 1.0
    end = times[-1] + last if duration_s is None else duration_s
    if end - times[-1] < SHORTEST_S:
        raise source.error(
            line_of(len(times) - 1),
            f"the trace lasts {end:g} s but this point begins at {times[-1]:g} s",
        )
    if end > LONGEST_S:
        raise source.error(line_of(len(times) - 1), f"time {end:g} s is too large")
    return RateTrace(times, tuple(map(round, rates_bits)), end, source.path)


def too_many(source: Source, line: int | None) -> InputError:
    """The error about a trace with more points than can be used."""
    return source.error(line, f"more than {MAX_POINTS} points", "Use a part of it")


def _check_count(source: Source, count: int, line_of: LineOf) -> None:
    if not count:
        raise source.error(
            None, "the trace has no points", "One line with a time and a rate is enough"
        )
    if count > MAX_POINTS:
        raise too_many(source, line_of(MAX_POINTS))


def _check_order(source: Source, times: Sequence[float], line_of: LineOf) -> None:
    lengths = list(map(sub, times[1:], times))
    if not lengths or (min(lengths) >= SHORTEST_S and times[-1] - times[0] <= LONGEST_S):
        return
    for i, length in enumerate(lengths, start=1):
        if length <= 0:
            raise source.error(
                line_of(i),
                f"time {times[i]:.15g} s does not come after {times[i - 1]:.15g} s of line {line_of(i - 1)}",
                "Times must increase from line to line",
            )
        if length < SHORTEST_S:
            raise source.error(
                line_of(i), f"time {times[i]:.15g} s comes only {length:g} s after the one before",
                f"No link can be changed that often: {SHORTEST_S:g} s is the shortest",
            )  # fmt: skip
        if times[i] - times[0] > LONGEST_S:
            raise source.error(line_of(i), f"time {times[i]:g} s is too large")


def _check_rates(source: Source, rates: Sequence[float], line_of: LineOf) -> None:
    if max(rates) > LARGEST:
        i = next(i for i, rate in enumerate(rates) if rate > LARGEST)
        raise source.error(line_of(i), f"rate {rates[i]:g} bit/s is too large")
