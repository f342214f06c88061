"""A rate that is constant between given instants: made of a file's numbers, with the line to blame
when they make none, and what it is like, weighted by time.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, groupby, repeat
from operator import lt, mul, sub
from typing import Any

from testbed.errors import InputError, brief
from testbed.units import LARGEST

MAX_POINTS = 1_000_000
"""More points than this are refused."""
_SLIVER_S = 1e-6


@dataclass(frozen=True, slots=True)
class RateTrace:
    """From ``times_s[i]`` on the rate is ``rates_bits[i]`` (bit/s; 0 is an outage), until
    ``duration_s``.

    ``times_s`` begins with 0 and increases; ``duration_s``, the period when looped, lies behind its
    last entry. ``name`` says where it comes from. Raises ValueError if it is none of this.
    """

    times_s: tuple[float, ...]
    rates_bits: tuple[int, ...]
    duration_s: float
    name: str = ""

    def __post_init__(self) -> None:
        if not self.times_s or len(self.times_s) != len(self.rates_bits):
            raise ValueError("a trace needs as many times as rates, and one at least")
        if self.times_s[0] != 0 or not all(map(lt, self.times_s, self._ends())):
            raise ValueError("the times of a trace begin with 0 and increase up to its duration")
        if not math.isfinite(self.duration_s):
            raise ValueError("a trace lasts a finite time")
        if min(self.rates_bits) < 0:
            raise ValueError("a trace's rates are not negative")

    def lengths_s(self) -> list[float]:
        """How long each rate holds, in s."""
        return list(map(sub, self._ends(), self.times_s))

    def rate_at(self, time_s: float) -> int:
        """The rate at ``time_s``, 0 ≤ ``time_s`` < ``duration_s``, in bit/s."""
        return self.rates_bits[bisect_right(self.times_s, time_s) - 1]

    def mean_bits(self) -> float:
        """The mean rate over the whole duration, in bit/s."""
        bits: float = sum(map(mul, self.rates_bits, self.lengths_s()))
        return bits / self.duration_s

    def dilated(self, factor: float) -> RateTrace:
        """The same bits over a time longer by ``factor``."""
        return RateTrace(
            tuple(time * factor for time in self.times_s),
            tuple(round(rate / factor) for rate in self.rates_bits),
            self.duration_s * factor,
            self.name,
        )

    def scaled(self, factor: float) -> RateTrace:
        """Every rate times ``factor`` (0 or more). Rounding makes no outages."""
        if not 0 <= factor < math.inf:
            raise ValueError(f"rates cannot be scaled by {factor:g}")
        least = 1 if factor else 0
        rates = (max(least, round(rate * factor)) if rate else 0 for rate in self.rates_bits)
        return RateTrace(self.times_s, tuple(rates), self.duration_s, self.name)

    def stretched(self, factor: float) -> RateTrace:
        """The same rates over a time longer by ``factor``."""
        times = tuple(time * factor for time in self.times_s)
        return RateTrace(times, self.rates_bits, self.duration_s * factor, self.name)

    def repeated(self, count: int) -> RateTrace:
        """The trace ``count`` times in a row."""
        if count < 1 or count * len(self.times_s) > MAX_POINTS:
            raise ValueError(f"a trace is repeated once or more, up to {MAX_POINTS} points")
        times = (time + i * self.duration_s for i in range(count) for time in self.times_s)
        return RateTrace(tuple(times), self.rates_bits * count, self.duration_s * count, self.name)

    def cut(self, start_s: float, stop_s: float) -> RateTrace:
        """Return the part between two instants, 0 ≤ ``start_s`` < ``stop_s`` ≤ ``duration_s``."""
        if not 0 <= start_s < stop_s <= self.duration_s:
            length = f"{self.duration_s:g} s"
            raise ValueError(f"nothing lies from {start_s:g} s to {stop_s:g} s of {length}")
        first, last = bisect_right(self.times_s, start_s), bisect_left(self.times_s, stop_s)
        times = (0.0, *(time - start_s for time in self.times_s[first:last]))
        return RateTrace(times, self.rates_bits[first - 1 : last], stop_s - start_s, self.name)

    def shifted(self, offset_s: float) -> RateTrace:
        """The loop of the trace, begun at ``offset_s``: what lies before it comes at the end."""
        start = offset_s % self.duration_s
        i = bisect_left(self.times_s, start)
        # No slivers: what is almost an instant of change is one.
        around = (*self.times_s[max(0, i - 1) : i + 1], self.duration_s)
        start = next((time for time in around if abs(time - start) < _SLIVER_S), start)
        if start in (0.0, self.duration_s):
            return self
        later, earlier = self.cut(start, self.duration_s), self.cut(0.0, start)
        # A rate that the end shares with the beginning is one piece of the loop, not two.
        joined = later.rates_bits[-1] == earlier.rates_bits[0]
        times = (later.duration_s + time for time in earlier.times_s[joined:])
        return RateTrace(
            (*later.times_s, *times),
            later.rates_bits + earlier.rates_bits[joined:],
            self.duration_s,
            self.name,
        )

    def _ends(self) -> tuple[float, ...]:
        return (*self.times_s[1:], self.duration_s)


LARGEST_NUMBER = 1e100
"""Larger ones are refused at once, so that sums and products stay finite."""
_BLOCK_CHARACTERS = 2**20
_CARRIED = ("rate", "bandwidth", "bytes", "amount")
"""Words in what a number means that tell it from a time: 0 of it is an outage."""


@dataclass(frozen=True, slots=True)
class TraceSource:
    r"""A trace that has been read: ``path`` as it was given, its text (lines end with ``\n``).

    ``column`` is the one that holds the rate, where a format has several; None to find it.
    """

    path: str
    text: str
    column: str | None = None

    def numbered(self) -> Iterator[tuple[int, str]]:
        """Number and content of every line that is neither blank nor a comment."""
        for number, line in enumerate(_lines(self.text), start=1):
            if content := _content(line):
                yield number, content

    def blocks(self, skip: int = 0) -> Iterator[list[str]]:
        """The contents of the same lines but the first ``skip``, in large blocks."""
        start, text = 0, self.text
        while start < len(text):
            stop = text.find("\n", start + _BLOCK_CHARACTERS)
            stop = len(text) if stop < 0 else stop
            part = text[start:stop]
            # Stripping is quicker, but a tab at an end may separate an empty cell.
            lines = map(_content if "\t" in part else str.strip, part.split("\n"))
            block = [line for line in lines if line and line[0] != "#"]
            start = stop + 1
            yield block[skip:]
            skip = max(0, skip - len(block))

    def line_of(self, index: int) -> int:
        """The number of the ``index``-th line that is neither blank nor a comment."""
        return next(line for i, (line, _) in enumerate(self.numbered()) if i == index)

    def error(self, line: int | None, message: str, hint: str | None = None) -> InputError:
        """An error at ``line``, ready to be raised."""
        return InputError(message, where=f"{self.path}:{line}" if line else self.path, hint=hint)


def number(source: TraceSource, line: int | None, given: object, what: str) -> float:
    """``given`` as a finite number that is not negative. Raises InputError."""
    try:
        value = float(given)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        hint = f"Here should be {what}"
        raise source.error(line, f"{brief(given)} is not a number", hint) from None
    if not math.isfinite(value) or isinstance(given, bool):
        raise source.error(line, f"{brief(given)} is not a finite number", f"Here should be {what}")
    if not 0 <= value <= LARGEST_NUMBER:
        wrong = "negative" if value < 0 else "too large"
        least = "Zero is the least" + (" (an outage)" if any(w in what for w in _CARRIED) else "")
        hint = least if value < 0 else f"{LARGEST_NUMBER:g} is the most"
        raise source.error(line, f"{what} is {wrong}: {value:g}", hint)
    return value


def _content(line: str) -> str:
    """The line without spaces around it; empty if it is blank or a comment."""
    stripped = line.strip()
    return line.strip(" \f\v") if stripped and stripped[0] != "#" else ""


def _lines(text: str) -> Iterator[str]:
    start = 0
    while (stop := text.find("\n", start)) >= 0:
        yield text[start:stop]
        start = stop + 1
    yield text[start:]


LONGEST_S = 1e9
"""About thirty years."""
SHORTEST_S = 1e-6
"""No link can be changed as often as that."""

LineOf = Callable[[int], int | None]
"""From the index of a point to the line that it was written in."""


def build(
    source: TraceSource,
    times_s: Sequence[float],
    rates_bits: Sequence[float],
    line_of: LineOf,
    duration_s: float | None = None,
) -> RateTrace:
    """A trace that begins with the first point, whatever its time; times and rates are not
    negative.

    Without ``duration_s`` the last point lasts as long as the one before it; a single one, a
    second. Raises InputError when there is no point, or times do not increase, or something is too
    large.
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


def too_many(source: TraceSource, line: int | None) -> InputError:
    """The error about a trace with more points than can be used."""
    return source.error(line, f"more than {MAX_POINTS} points", "Use a part of it")


def _check_count(source: TraceSource, count: int, line_of: LineOf) -> None:
    if not count:
        raise source.error(
            None, "the trace has no points", "One line with a time and a rate is enough"
        )
    if count > MAX_POINTS:
        raise too_many(source, line_of(MAX_POINTS))


def _check_order(source: TraceSource, times: Sequence[float], line_of: LineOf) -> None:
    lengths = list(map(sub, times[1:], times))
    if not lengths or (min(lengths) >= SHORTEST_S and times[-1] - times[0] <= LONGEST_S):
        return
    for i, length in enumerate(lengths, start=1):
        if length <= 0:
            raise source.error(
                line_of(i),
                f"time {times[i]:.15g} s does not come after {times[i - 1]:.15g} s of line "
                f"{line_of(i - 1)}",
                "Times must increase from line to line",
            )
        if length < SHORTEST_S:
            raise source.error(
                line_of(i),
                f"time {times[i]:.15g} s comes only {length:g} s after the one before",
                f"No link can be changed that often: {SHORTEST_S:g} s is the shortest",
            )
        if times[i] - times[0] > LONGEST_S:
            raise source.error(line_of(i), f"time {times[i]:g} s is too large")


def _check_rates(source: TraceSource, rates: Sequence[float], line_of: LineOf) -> None:
    if max(rates) > LARGEST:
        i = next(i for i, rate in enumerate(rates) if rate > LARGEST)
        raise source.error(line_of(i), f"rate {rates[i]:g} bit/s is too large")


PERCENTILES = (5, 25, 50, 75, 95)


@dataclass(frozen=True, slots=True)
class TraceSummary:
    """Times in s, rates in bit/s; ``percentiles_bits``: not exceeded in n % of the time."""

    duration_s: float
    points: int
    mean_bits: float
    min_bits: int
    max_bits: int
    percentiles_bits: dict[int, int]
    shortest_step_s: float
    outage_share: float
    longest_outage_s: float

    def to_json(self) -> dict[str, Any]:
        """As JSON knows it: percentiles by name."""
        named = {f"p{percent}": rate for percent, rate in self.percentiles_bits.items()}
        return {**asdict(self), "percentiles_bits": named}


def summary(trace: RateTrace) -> TraceSummary:
    """The numbers of ``trace``; an outage over its end and its beginning counts as two."""
    lengths = trace.lengths_s()
    outages = [
        sum(length for _, length in run)
        for rate, run in groupby(
            zip(trace.rates_bits, lengths, strict=True), lambda piece: piece[0]
        )
        if rate == 0
    ]
    return TraceSummary(
        duration_s=trace.duration_s,
        points=len(lengths),
        mean_bits=trace.mean_bits(),
        min_bits=min(trace.rates_bits),
        max_bits=max(trace.rates_bits),
        percentiles_bits=percentiles(trace, PERCENTILES),
        shortest_step_s=min(lengths),
        outage_share=sum(outages) / trace.duration_s,
        longest_outage_s=max(outages, default=0.0),
    )


def percentiles(trace: RateTrace, percents: Sequence[int]) -> dict[int, int]:
    """For each of ``percents``, rising, the lowest rate not exceeded in that share of time."""
    pieces = sorted(zip(trace.rates_bits, trace.lengths_s(), strict=True))
    ends = accumulate(length for _, length in pieces)
    rates, wanted = {}, list(percents)
    for (rate, _), end in zip(pieces, ends, strict=True):
        # The sum of all lengths may miss the duration by a rounding.
        while wanted and end * (1 + 1e-9) >= trace.duration_s * wanted[0] / 100:
            rates[wanted.pop(0)] = rate
    return rates
