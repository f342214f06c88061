"""Delivered against asked: the arithmetic of a link direction's report. Pure.

Bits are those at the class, Ethernet headers counted. A *mark* is ``(seconds after t0, bytes so far)``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from math import ceil, floor
from typing import Any, NamedTuple

Mark = tuple[float, int]
Bins = list[tuple[float, float]]
"""Asked and delivered bits of consecutive intervals."""


class Look(NamedTuple):
    """One sample: whether a queue stood at every look, and what was asked and delivered."""

    from_s: float
    to_s: float
    asked_bits: float
    delivered_bits: int
    busy: bool


@dataclass(frozen=True, slots=True)
class EndReport:
    """How a link direction followed its history, from t0 to the end. None: nothing to judge by.

    Errors are relative (0.01 is 1 %); ``mape`` is their mean. Bins of 1 s are aligned to t0, the last
    partial one left out. Intervals in which nothing was asked for are in no error.
    """

    link: str
    direction: str
    asked_bits: float
    delivered_bits: int
    ratio: float | None
    mape_step: float | None
    """Over the intervals between two changes of the rate."""
    mape_1s: float | None
    worst_1s: float | None
    busy_share: float
    """Share of the time in which the link was backlogged at every look."""
    busy_ratio: float | None
    busy_mape_1s: float | None
    """Over the bins in which it was backlogged throughout."""
    drops: int
    """Of the emulated queue, since the links were prepared."""
    changes: int
    lateness_ms: dict[str, float] | None
    """``p50``, ``p99`` and ``max`` of when changes were in the kernel against when they were due."""
    class_bytes: int
    """Since the links were prepared, so that connecting before t0 is counted too."""
    class_packets: int
    direct_packets: int
    """Packets that went past the class; any is an error."""
    outage_bytes: int
    """Delivered while nothing was asked for."""
    gso_max_segs: int
    realtime: bool
    """Whether changes were made by a real-time thread."""
    failure: str | None = None
    """What went wrong on this end after t0, in words."""


@dataclass(slots=True)
class Record:
    """What was gathered about a link direction from t0 on, in order of time."""

    looks: list[Look] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    rates: list[tuple[float, int]] = field(default_factory=list)
    """When the asked rate became what, in bit/s; the first entry is at 0."""
    lateness_s: list[float] = field(default_factory=list)


def measures(record: Record) -> dict[str, Any]:
    """The fields of ``EndReport`` that follow from a record alone."""
    looks, ends_s = record.looks, record.marks[-1][0] if record.marks else 0.0
    asked = sum(look.asked_bits for look in looks)
    delivered = sum(look.delivered_bits for look in looks)
    busy = [look for look in looks if look.busy]
    busy_s, all_s = _seconds(busy), _seconds(looks)
    whole = second_bins(record, floor(ends_s + 1e-3))
    errors = _errors(whole)
    busy_bins = [pair for second, pair in enumerate(whole) if _busy_throughout(looks, second)]
    return {
        "asked_bits": asked,
        "delivered_bits": delivered,
        "ratio": delivered / asked if asked else None,
        "mape_step": _mean(_errors(_step_bins(record))),
        "mape_1s": _mean(errors),
        "worst_1s": max(errors, default=None),
        "busy_share": busy_s / all_s if all_s else 0.0,
        "busy_ratio": _ratio(busy),
        "busy_mape_1s": _mean(_errors(busy_bins)),
        "changes": len(record.lateness_s),
        "lateness_ms": lateness_ms(record.lateness_s),
        "outage_bytes": sum(look.delivered_bits for look in looks if not look.asked_bits) // 8,
    }


def asked_between(rates: Sequence[tuple[float, int]], from_s: float, to_s: float) -> float:
    """Integral of a step function of rates, bits."""
    total, at = 0.0, max(0, bisect_right(rates, from_s, key=lambda step: step[0]) - 1)
    while at < len(rates) and rates[at][0] < to_s:
        until = rates[at + 1][0] if at + 1 < len(rates) else to_s
        total += rates[at][1] * max(0.0, min(until, to_s) - max(rates[at][0], from_s))
        at += 1
    return total


def bytes_at(marks: Sequence[Mark], time_s: float) -> float:
    """Bytes so far at a time, on the straight line between the two marks around it."""
    after = bisect_right(marks, time_s, key=lambda mark: mark[0])
    if after == 0 or after == len(marks):
        return float(marks[0 if after == 0 else -1][1])
    (from_s, before), (to_s, behind) = marks[after - 1], marks[after]
    return before + (behind - before) * (time_s - from_s) / (to_s - from_s)


def second_bins(record: Record, seconds: int) -> Bins:
    """Asked and delivered bits of each whole second."""
    return _bins(record, [float(second) for second in range(seconds + 1)])


def lateness_ms(lateness_s: Iterable[float]) -> dict[str, float] | None:
    """Percentiles (nearest rank) in milliseconds; None of nothing."""
    ordered = sorted(lateness_s)
    if not ordered:
        return None
    rank = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    return {
        name: ordered[max(0, ceil(share * len(ordered)) - 1)] * 1e3 for name, share in rank.items()
    }


def to_json(report: EndReport) -> dict[str, Any]:
    """The report as a plain object."""
    return asdict(report)


def _step_bins(record: Record) -> Bins:
    ends_s = record.marks[-1][0] if record.marks else 0.0
    return _bins(record, [at for at, _ in record.rates if at < ends_s])


def _bins(record: Record, edges: Sequence[float]) -> Bins:
    if not record.marks:
        return []
    return [
        (
            asked_between(record.rates, begin, end),
            8 * (bytes_at(record.marks, end) - bytes_at(record.marks, begin)),
        )
        for begin, end in pairwise(edges)
        if end > begin
    ]


def _errors(bins: Bins) -> list[float]:
    return [abs(delivered - asked) / asked for asked, delivered in bins if asked > 0]


def _busy_throughout(looks: Sequence[Look], second: int) -> bool:
    touching = _touching(looks, float(second), second + 1.0)
    return bool(touching) and all(look.busy for look in touching)


def _touching(looks: Sequence[Look], from_s: float, to_s: float) -> Sequence[Look]:
    begin = bisect_right(looks, from_s, key=lambda look: look.to_s)
    end = bisect_right(looks, to_s - 1e-9, key=lambda look: look.from_s)
    return looks[begin:end]


def _ratio(looks: Sequence[Look]) -> float | None:
    asked = sum(look.asked_bits for look in looks)
    return sum(look.delivered_bits for look in looks) / asked if asked else None


def _seconds(looks: Iterable[Look]) -> float:
    return sum(look.to_s - look.from_s for look in looks)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
