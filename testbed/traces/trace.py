"""A rate that is constant between given instants."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from operator import lt, mul, sub

MAX_POINTS = 1_000_000
"""More points than this are refused."""
_SLIVER_S = 1e-6


@dataclass(frozen=True, slots=True)
class RateTrace:
    """From ``times_s[i]`` on the rate is ``rates_bits[i]`` (bit/s; 0 is an outage), until ``duration_s``.

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
        """Every rate times ``factor`` (0 or more). What is no outage does not become one by rounding."""
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
        """What lies between two instants of the trace, 0 ≤ ``start_s`` < ``stop_s`` ≤ ``duration_s``."""
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
