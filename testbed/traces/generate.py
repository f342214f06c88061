"""Synthetic traces, and traces written in the project's own format and in others. The same
arguments give the same trace, everywhere; its name is the call that made it.

Rates are Mbit/s, times seconds. Randomness comes from a private ``random.Random(seed)``. Arguments
that make no trace raise ValueError.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import wraps
from random import Random
from typing import ParamSpec

from testbed.traces.rate_trace import LONGEST_S, MAX_POINTS, SHORTEST_S, RateTrace
from testbed.traces.readers import MAHIMAHI_BITS, MAHIMAHI_LONGEST_MS
from testbed.units import LARGEST

P = ParamSpec("P")


def _named(make: Callable[P, RateTrace]) -> Callable[P, RateTrace]:
    """Let the trace bear the call that made it, arguments by name."""

    @wraps(make)
    def named(*args: P.args, **kwargs: P.kwargs) -> RateTrace:
        bound = inspect.signature(make).bind(*args, **kwargs)
        bound.apply_defaults()
        listed = ", ".join(f"{key}={value!r}" for key, value in bound.arguments.items())
        return replace(make(*args, **kwargs), name=f"{make.__name__}({listed})")

    return named


def _trace(rates: Sequence[float], every_s: float) -> RateTrace:
    if not all(map(math.isfinite, rates)) or min(rates) < 0:
        raise ValueError("rates are finite and not negative")
    times = tuple(round(i * every_s, 9) for i in range(len(rates)))
    bits = tuple(round(rate * 1e6) for rate in rates)
    return RateTrace(times, bits, round(len(rates) * every_s, 9))


def _count(seconds: float, every_s: float) -> int:
    if not (seconds > 0 and every_s > 0 and seconds / every_s <= MAX_POINTS):
        raise ValueError(
            f"{seconds:g} s in steps of {every_s:g} s: both are more than 0, up to {MAX_POINTS} "
            "steps"
        )
    return max(1, round(seconds / every_s))


def _check_span(low: float, high: float) -> None:
    if not 0 <= low <= high < math.inf:
        raise ValueError(f"rates from {low:g} to {high:g} Mbit/s: the lower is 0 or more")


def _check_share(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"{name} is a share from 0 to 1, not {value:g}")


@_named
def step(*, before: float, after: float, at_s: float, seconds: float) -> RateTrace:
    """One jump at ``at_s``."""
    if not 0 < at_s < seconds < math.inf:
        raise ValueError(f"the jump at {at_s:g} s lies within the {seconds:g} s of the trace")
    _check_span(min(before, after), max(before, after))
    return RateTrace((0.0, at_s), (round(before * 1e6), round(after * 1e6)), seconds)


@_named
def square(*, low: float, high: float, period_s: float) -> RateTrace:
    """High for half a period, low for the other half; meant to be looped."""
    _check_span(low, high)
    _count(period_s, period_s / 2)
    return _trace([high, low], period_s / 2)


@_named
def ramp(*, start: float, end: float, seconds: float, every_s: float) -> RateTrace:
    """A straight line in equal steps; both ends are reached."""
    count = max(2, _count(seconds, every_s))
    return _trace([start + (end - start) * i / (count - 1) for i in range(count)], every_s)


@_named
def sawtooth(*, low: float, high: float, seconds: float, every_s: float) -> RateTrace:
    """Down in a straight line and back at once; meant to be looped."""
    _check_span(low, high)
    count = _count(seconds, every_s)
    return _trace([high - (high - low) * i / count for i in range(count)], every_s)


@_named
def random_walk(
    *, low: float, high: float, deviation: float, seconds: float, every_s: float, seed: int
) -> RateTrace:
    """Normal steps with standard ``deviation``, reflected at ``low`` and ``high``."""
    _check_span(low, high)
    _check_span(0, deviation)
    random, rate, rates = Random(seed), (low + high) / 2, []
    for _ in range(_count(seconds, every_s)):
        rates.append(rate)
        rate = _reflected(rate + random.gauss(0.0, deviation), low, high)
    return _trace(rates, every_s)


@_named
def markov(
    *, levels: Sequence[float], stay: float, seconds: float, every_s: float, seed: int
) -> RateTrace:
    """A chain over ``levels``: it stays with probability ``stay``, else goes to any other."""
    if not levels:
        raise ValueError("a chain needs a level at least")
    _check_share("stay", stay)
    random, at, rates = Random(seed), 0, []
    for _ in range(_count(seconds, every_s)):
        rates.append(levels[at])
        if random.random() >= stay and len(levels) > 1:
            at = (at + random.randrange(1, len(levels))) % len(levels)
    return _trace(rates, every_s)


@_named
def token_bucket(
    *,
    peak: float,
    base: float,
    budget_s: float,
    busy: float,
    noise: float,
    seconds: float,
    every_s: float,
    seed: int,
) -> RateTrace:
    """A cloud instance's link: ``peak`` while there are tokens, ``base`` when they are spent.

    The bucket, full at first, holds ``budget_s`` seconds of ``peak`` above ``base`` and refills at
    ``base`` whenever the tenant rests, which it does in a share ``1 - busy`` of the intervals. An
    interval in which the tokens run out has the mean of both rates, so that no bits are given away.
    ``noise`` is the relative spread that neighbours cause; the rate never exceeds ``peak``.
    """
    _check_span(base, peak)
    _check_share("busy", busy)
    _check_share("noise", noise)
    random, full = Random(seed), budget_s * (peak - base)
    if not 0 <= full < math.inf:
        raise ValueError(f"a budget of {budget_s:g} s cannot be")
    tokens, rates = full, []
    for _ in range(_count(seconds, every_s)):
        rate = min(peak, base + tokens / every_s)
        rates.append(min(peak, rate * random.uniform(1 - noise, 1)))
        spent = rate if random.random() < busy else 0.0
        tokens = min(full, max(0.0, tokens + (base - spent) * every_s))
    return _trace(rates, every_s)


@_named
def diurnal(
    *,
    low: float,
    high: float,
    period_s: float,
    busiest_s: float,
    noise: float,
    persistence: float,
    seconds: float,
    every_s: float,
    seed: int,
) -> RateTrace:
    """A day's tide: ``high`` when others sleep, ``low`` at ``busiest_s`` into every period, a
    cosine between.

    On it lies noise with standard deviation ``noise`` × the tide, of which a share ``persistence``
    lasts from step to step (AR(1)); the rate never exceeds ``high``. A day is 86400 s, a short one
    does as well.
    """
    _check_span(low, high)
    _check_share("persistence", persistence)
    if not (0 < period_s < math.inf and 0 <= noise < math.inf and math.isfinite(busiest_s)):
        raise ValueError("a period is more than 0, noise 0 or more")
    random, fresh = Random(seed), math.sqrt(1 - persistence**2)
    swing, rates = random.gauss(0.0, 1.0), []
    for i in range(_count(seconds, every_s)):
        phase = (i * every_s - busiest_s) / period_s
        tide = (high + low) / 2 - (high - low) / 2 * math.cos(2 * math.pi * phase)
        rates.append(min(high, max(0.0, tide * (1 + noise * swing))))
        swing = persistence * swing + fresh * random.gauss(0.0, 1.0)
    return _trace(rates, every_s)


def _reflected(value: float, low: float, high: float) -> float:
    value = low + abs(value - low)
    value = high - abs(high - value)
    return min(max(value, low), high)


MAHIMAHI_MOST_LINES = 8_000_000


def write_csv(trace: RateTrace, *, comment: str | None = None) -> str:
    """The trace as CSV text with units in the header; read back, it is the same trace.

    ``comment`` (default: the trace's name) goes in front. Raises ValueError for what could not be
    read back.
    """
    _check(trace)
    said = trace.name if comment is None else comment
    head = [f"# {line}" for line in said.splitlines()]
    head += [f"# duration_s: {trace.duration_s!r}", "time_s,rate_mbit_s"]
    return "\n".join([*head, *_rows(trace, ",")]) + "\n"


def write_pairs(trace: RateTrace) -> str:
    """Seconds and Mbit/s; read back, it is the same rate at every time.

    The format does not say how long the last line lasts. Readers take it to last as long as the one
    before, so it is written as two halves where that would be wrong. Raises ValueError for what
    could not be read back.
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
    """Raise ValueError unless a file with these times and rates would be read."""
    shortest = min(trace.lengths_s())
    if shortest < SHORTEST_S:
        raise ValueError(
            f"two points would be {shortest:g} s apart, and {SHORTEST_S:g} s is the shortest that "
            f"is read: times {1.01 * SHORTEST_S / shortest:.3g} times as long would do"
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
