"""The arithmetic of benchmarks: histories, what was delivered of them, medians. Pure.

A *history* is a step function, ``(seconds after t0, bit/s)`` with the first entry at 0. A *mark* is
``(seconds after t0, bytes so far)``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import ceil
from random import Random
from statistics import fmean
from statistics import median as middle

from testbed.scenario.shape import FRAME_BYTES
from testbed.traces.generate import markov

Step = tuple[float, int]
Mark = tuple[float, int]
MBIT = 1_000_000
RADIO_STAY, RADIO_EVERY_S = 0.8, 0.1
"""The probability with which a radio link keeps its rate, and how often it may change."""
QUEUE_S, LEAST_QUEUE_BYTES = 0.05, 20 * FRAME_BYTES


def square(low_bits: int, high_bits: int, changes_per_s: float, seconds: float) -> list[Step]:
    """High first, then in turn; ``changes_per_s`` changes every second."""
    count = ceil(seconds * changes_per_s)
    return [(n / changes_per_s, low_bits if n % 2 else high_bits) for n in range(count)]


def uniform(low_bits: int, high_bits: int, every_s: float, seconds: float, seed: int) -> list[Step]:
    """An independent rate, uniform between the two, for every interval."""
    random, count = Random(seed), ceil(seconds / every_s - 1e-9)
    return [(round(n * every_s, 9), random.randint(low_bits, high_bits)) for n in range(count)]


def radio(levels: tuple[float, ...], seconds: float, seed: int) -> list[Step]:
    """A radio link's rates, of ``levels`` in Mbit/s, the highest first; steps of the same rate are one."""
    trace = markov(
        levels=levels, stay=RADIO_STAY, seconds=seconds, every_s=RADIO_EVERY_S, seed=seed
    )
    steps = list(zip(trace.times_s, trace.rates_bits, strict=True))
    steps[0] = (0.0, round(levels[-1] * 1e6))
    return [step for n, step in enumerate(steps) if not n or step[1] != steps[n - 1][1]]


def asked_bits(history: Sequence[Step], from_s: float, to_s: float) -> float:
    """Integral of a history between two times."""
    edges = [from_s, *(at for at, _ in history if from_s < at < to_s), to_s]
    return sum(rate_at(history, begin) * (end - begin) for begin, end in pairwise(edges))


def rate_at(history: Sequence[Step], time_s: float) -> int:
    """The rate asked for at a time."""
    return history[max(0, bisect_right(history, time_s, key=lambda step: step[0]) - 1)][1]


def bytes_at(marks: Sequence[Mark], time_s: float) -> float:
    """Bytes so far at a time, on the straight line between the two marks around it."""
    after = bisect_right(marks, time_s, key=lambda mark: mark[0])
    if after == 0 or after == len(marks):
        return float(marks[0 if after == 0 else -1][1])
    (from_s, before), (to_s, behind) = marks[after - 1], marks[after]
    return before + (behind - before) * (time_s - from_s) / (to_s - from_s)


def ratio(history: Sequence[Step], marks: Sequence[Mark]) -> float:
    """Delivered over asked, from the first mark to the last."""
    (from_s, before), (to_s, behind) = marks[0], marks[-1]
    return 8 * (behind - before) / asked_bits(history, from_s, to_s)


def bin_errors(
    history: Sequence[Step], marks: Sequence[Mark], edges: Iterable[float]
) -> list[float]:
    """Relative error of every bin between two edges that lies within the marks and asks for anything."""
    inside = [edge for edge in edges if marks[0][0] - 1e-3 <= edge <= marks[-1][0] + 1e-3]
    errors = []
    for begin, end in pairwise(inside):
        asked = asked_bits(history, begin, end)
        if asked > 0:
            delivered = 8 * (bytes_at(marks, end) - bytes_at(marks, begin))
            errors.append(abs(delivered - asked) / asked)
    return errors


def median(values: Iterable[float | None]) -> float | None:
    """Middle of what was measured; None of nothing."""
    known = [value for value in values if value is not None]
    return middle(known) if known else None


def mean(values: Sequence[float]) -> float | None:
    """Mean; None of nothing."""
    return fmean(values) if values else None


def percentile(values: Iterable[float], share: float) -> float | None:
    """Nearest rank: the smallest value that ``share`` of all do not exceed; None of nothing."""
    ordered = sorted(values)
    return ordered[max(0, ceil(share * len(ordered)) - 1)] if ordered else None


def times(value: float | None, reference: float | None) -> float | None:
    """``value`` over ``reference``; None where either is unknown."""
    return value / reference if value is not None and reference else None


def queue_bytes(history: Sequence[Step]) -> int:
    """The same queue for all: 50 ms at the highest rate."""
    return max(LEAST_QUEUE_BYTES, round(max(rate for _, rate in history) / 8 * QUEUE_S))
