"""Synthetic traces. The same arguments give the same trace, everywhere; its name is the call that made it.

Rates are Mbit/s, times seconds. Randomness comes from a private ``random.Random(seed)``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps
from random import Random
from typing import ParamSpec

from testbed.traces.trace import RateTrace

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
    times = tuple(round(i * every_s, 9) for i in range(len(rates)))
    bits = tuple(round(rate * 1e6) for rate in rates)
    return RateTrace(times, bits, round(len(rates) * every_s, 9))


def _count(seconds: float, every_s: float) -> int:
    return max(1, round(seconds / every_s))


@_named
def step(*, before: float, after: float, at_s: float, seconds: float) -> RateTrace:
    """One jump at ``at_s``."""
    return RateTrace((0.0, at_s), (round(before * 1e6), round(after * 1e6)), seconds)


@_named
def square(*, low: float, high: float, period_s: float) -> RateTrace:
    """High for half a period, low for the other half; meant to be looped."""
    return _trace([high, low], period_s / 2)


@_named
def ramp(*, start: float, end: float, seconds: float, every_s: float) -> RateTrace:
    """A straight line in equal steps; both ends are reached."""
    count = max(2, _count(seconds, every_s))
    return _trace([start + (end - start) * i / (count - 1) for i in range(count)], every_s)


@_named
def sawtooth(*, low: float, high: float, seconds: float, every_s: float) -> RateTrace:
    """Down in a straight line and back at once, as a backlog builds and clears; meant to be looped."""
    count = _count(seconds, every_s)
    return _trace([high - (high - low) * i / count for i in range(count)], every_s)


@_named
def random_walk(
    *, low: float, high: float, deviation: float, seconds: float, every_s: float, seed: int
) -> RateTrace:
    """Normal steps with standard ``deviation``, reflected at ``low`` and ``high``."""
    random, rate, rates = Random(seed), (low + high) / 2, []
    for _ in range(_count(seconds, every_s)):
        rates.append(rate)
        rate = _reflected(rate + random.gauss(0.0, deviation), low, high)
    return _trace(rates, every_s)


@_named
def markov(
    *, levels: Sequence[float], stay: float, seconds: float, every_s: float, seed: int
) -> RateTrace:
    """A chain over ``levels``: it stays with probability ``stay``, else goes to another one, any alike."""
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
    ``base`` whenever the tenant rests, which it does in a share ``1 - busy`` of the intervals.
    ``noise`` is the relative spread that neighbours cause; the rate never exceeds ``peak``.
    """
    random, full = Random(seed), budget_s * (peak - base)
    tokens, rates = full, []
    for _ in range(_count(seconds, every_s)):
        rate = peak if tokens > 0 else base
        rates.append(min(peak, rate * random.uniform(1 - noise, 1)))
        spent = rate if random.random() < busy else 0.0
        tokens = min(full, max(0.0, tokens + (base - spent) * every_s))
    return _trace(rates, every_s)


def _reflected(value: float, low: float, high: float) -> float:
    value = low + abs(value - low)
    value = high - abs(high - value)
    return min(max(value, low), high)
