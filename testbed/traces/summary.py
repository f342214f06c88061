"""What a trace is like, in numbers. Everything is weighted by time, not by points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, groupby
from typing import Any

from testbed.traces.trace import RateTrace

PERCENTILES = (5, 25, 50, 75, 95)


@dataclass(frozen=True, slots=True)
class Summary:
    """Times in s, rates in bit/s; ``percentiles_bits``: the rate that is not exceeded in n % of the time."""

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


def summary(trace: RateTrace) -> Summary:
    """The numbers of ``trace``; an outage over its end and its beginning counts as two."""
    lengths = trace.lengths_s()
    outages = [
        sum(length for _, length in run)
        for rate, run in groupby(
            zip(trace.rates_bits, lengths, strict=True), lambda piece: piece[0]
        )
        if rate == 0
    ]
    return Summary(
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
    """For each of ``percents``, rising, the lowest rate that is not exceeded in that share of the time."""
    pieces = sorted(zip(trace.rates_bits, trace.lengths_s(), strict=True))
    ends = accumulate(length for _, length in pieces)
    found, wanted = {}, list(percents)
    for (rate, _), end in zip(pieces, ends, strict=True):
        # The sum of all lengths may miss the duration by a rounding.
        while wanted and end * (1 + 1e-9) >= trace.duration_s * wanted[0] / 100:
            found[wanted.pop(0)] = rate
    return found
