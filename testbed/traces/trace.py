"""A rate that is constant between given instants."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise

MAX_POINTS = 1_000_000
"""More points than this are refused."""


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
        ends = (*self.times_s, self.duration_s)
        if ends[0] != 0 or not all(earlier < later for earlier, later in pairwise(ends)):
            raise ValueError("the times of a trace begin with 0 and increase up to its duration")
        if min(self.rates_bits) < 0:
            raise ValueError("a trace's rates are not negative")

    def rate_at(self, time_s: float) -> int:
        """The rate at ``time_s``, 0 ≤ ``time_s`` < ``duration_s``, in bit/s."""
        return self.rates_bits[bisect_right(self.times_s, time_s) - 1]

    def mean_bits(self) -> float:
        """The mean rate over the whole duration, in bit/s."""
        ends = (*self.times_s, self.duration_s)
        lengths = (later - earlier for earlier, later in pairwise(ends))
        bits = sum(rate * length for rate, length in zip(self.rates_bits, lengths, strict=True))
        return bits / self.duration_s

    def dilated(self, factor: float) -> RateTrace:
        """The same bits over a time longer by ``factor``."""
        return RateTrace(
            tuple(time * factor for time in self.times_s),
            tuple(round(rate / factor) for rate in self.rates_bits),
            self.duration_s * factor,
            self.name,
        )
