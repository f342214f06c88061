"""Delivered against asked: the arithmetic of a link direction's report. Pure.

Bits are those that the class counts against its rate: Ethernet headers, and the overhead per packet that was asked
for. A *mark* is ``(seconds after t0, bytes so far)``.

The reference is a FIFO queue that sends whole bundles (packets, where bundles have one) at exactly the asked rates. While something
waits, the bytes that it has sent between two marks differ from the integral of the rates by less than one bundle: where in a
bundle it was at the first mark is not known. So an error is what lies beyond one bundle.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby, pairwise
from math import floor, inf, sqrt
from typing import Any, NamedTuple

from testbed.links.held import Mismatch
from testbed.links.outages_seen import OutageSeen
from testbed.record.quantiles import spread

Mark = tuple[float, int]

MOST_MISMATCHES = 20
"""So many are in a report; all are in the records."""


class Look(NamedTuple):
    """One sample: whether a queue stood at every look, and what was asked and delivered."""

    from_s: float
    to_s: float
    asked_bits: float
    delivered_bits: int
    busy: bool


class Bin(NamedTuple):
    """Asked and delivered bits between two marks."""

    from_s: float
    to_s: float
    asked_bits: float
    delivered_bits: int


@dataclass(frozen=True, slots=True)
class EndReport:
    """How a link direction followed its history, from t0 to the end. None: nothing to judge by.

    Errors are relative (0.01 is 1 %), beyond one bundle; ``mape`` is their mean. Bins end at the marks nearest to whole
    seconds after t0, or to changes; the last partial one is left out. Intervals in which nothing was asked for are in no error.
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
    busy_ratio_slack: float
    """Of that: what a bundle more or less may make of it, in each time that the link was backlogged without a break."""
    busy_mape_1s: float | None
    """Over the bins in which it was backlogged throughout; likewise the two that follow."""
    busy_worst_1s: float | None
    busy_mape_step: float | None
    busy_bins_1s: int
    """How many whole seconds that were."""
    drops: int
    """Of the emulated queue, since the links were prepared."""
    changes: int
    lateness_ms: dict[str, float | None] | None
    """``p50``, ``p99``, ``p99_at_least`` (95 % confidence) and ``max`` of when changes were in the kernel
    against when they were meant to be."""
    class_bytes: int
    """Since the links were prepared, so that connecting before t0 is counted too."""
    class_packets: int
    direct_packets: int
    """Packets that went past the class; any is an error."""
    outages: int
    outage_s: float
    outage_bytes: int
    """Delivered in outages beyond what the rates before and after them explain."""
    resume_ms: float | None
    """The longest time from the end of an outage until service was back; None: never known."""
    from_s: float
    to_s: float
    """First and last look, in seconds after t0."""
    unwatched_s: float
    """Time between looks beyond the longest that looks are apart when nothing delays them."""
    largest_backlog_bytes: int
    mismatches: list[dict[str, Any]]
    """Times at which the kernel held another rate or queue than was asked: the fields of ``Mismatch``."""
    gso_max_segs: int
    realtime: bool
    """Whether changes were made by a real-time thread."""
    failure: str | None = None
    """What went wrong on this end after t0, in words."""
    line_packets: int | None = None
    """Packets that came to the line after the queue, where delay and loss are; None: there is no line."""
    line_lost: int | None = None
    """Of them, those that its loss model took."""
    line_limit: int | None = None
    """Of them, those for which it had no room: none may be."""


@dataclass(slots=True)
class Record:
    """What was gathered about a link direction from t0 on, in order of time."""

    bundle_bytes: int = 0
    """The most that leaves at once."""
    looks: list[Look] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    rates: list[tuple[float, int]] = field(default_factory=list)
    """When the asked rate became what, in bit/s; the first entry is at 0."""
    lateness_s: list[float] = field(default_factory=list)
    outages: list[OutageSeen] = field(default_factory=list)
    mismatches: list[Mismatch] = field(default_factory=list)
    unwatched_s: float = 0.0
    largest_backlog_bytes: int = 0


def measures(record: Record) -> dict[str, Any]:
    """The fields of ``EndReport`` that follow from a record alone."""
    looks, ends_s = record.looks, record.marks[-1][0] if record.marks else 0.0
    asked = sum(look.asked_bits for look in looks)
    delivered = sum(look.delivered_bits for look in looks)
    busy = [look for look in looks if look.busy]
    busy_s, all_s = _seconds(busy), _seconds(looks)
    seconds = _whole(floor(ends_s + 1e-3))
    steps = [at for at, _ in record.rates if at < ends_s]
    resumed = [seen.resume_s for seen in record.outages if seen.resume_s is not None]
    return {
        "asked_bits": asked,
        "delivered_bits": delivered,
        "ratio": delivered / asked if asked else None,
        **_errors_of(record, "1s", seconds),
        **_errors_of(record, "step", steps),
        "busy_share": busy_s / all_s if all_s else 0.0,
        "busy_ratio": _ratio(busy),
        "busy_ratio_slack": _slack(looks, record.bundle_bytes),
        "changes": len(record.lateness_s),
        "lateness_ms": lateness_ms(record.lateness_s),
        "outages": len(record.outages),
        "outage_s": _outage_s(record.rates),
        "outage_bytes": sum(seen.leaked_bytes for seen in record.outages),
        "resume_ms": max(resumed) * 1e3 if resumed else None,
        "from_s": record.marks[0][0] if record.marks else 0.0,
        "to_s": ends_s,
        "unwatched_s": record.unwatched_s,
        "largest_backlog_bytes": record.largest_backlog_bytes,
        "mismatches": [mismatch._asdict() for mismatch in record.mismatches[:MOST_MISMATCHES]],
    }


def _errors_of(record: Record, name: str, edges: Sequence[float]) -> dict[str, Any]:
    """Relative errors of the bins between ``edges``: of all, and of those that were busy throughout."""
    bins = bins_between(record, edges)
    busy = [each for each in bins if busy_between(record.looks, each.from_s, each.to_s)]
    errors, busy_errors = (_errors(each, record.bundle_bytes) for each in (bins, busy))
    found = {f"mape_{name}": _mean(errors), f"busy_mape_{name}": _mean(busy_errors)}
    if name == "1s":
        found |= {
            "worst_1s": max(errors, default=None),
            "busy_worst_1s": max(busy_errors, default=None),
            "busy_bins_1s": len(busy_errors),
        }
    return found


def asked_between(rates: Sequence[tuple[float, int]], from_s: float, to_s: float) -> float:
    """Integral of a step function of rates, bits."""
    total, at = 0.0, max(0, bisect_right(rates, from_s, key=lambda step: step[0]) - 1)
    while at < len(rates) and rates[at][0] < to_s:
        until = rates[at + 1][0] if at + 1 < len(rates) else to_s
        total += rates[at][1] * max(0.0, min(until, to_s) - max(rates[at][0], from_s))
        at += 1
    return total


def served_at(rates: Sequence[tuple[float, int]], from_s: float, bits: float) -> float:
    """When a step function of rates has carried ``bits`` since ``from_s``; infinity: never."""
    at = max(0, bisect_right(rates, from_s, key=lambda step: step[0]) - 1)
    for n in range(at, len(rates)):
        begin, rate = max(rates[n][0], from_s), rates[n][1]
        until = rates[n + 1][0] if n + 1 < len(rates) else inf
        if rate and bits <= rate * (until - begin):
            return begin + bits / rate
        bits -= rate * (until - begin) if rate else 0.0
    return inf


def _outage_s(rates: Sequence[tuple[float, int]]) -> float:
    """Seconds without service, of outages that ended."""
    return sum(after[0] - at for (at, rate), after in pairwise(rates) if not rate)


def lateness_ms(lateness_s: Iterable[float]) -> dict[str, float | None] | None:
    """Percentiles in milliseconds (see ``spread``); None of nothing. One late change alone shows no p99."""
    values = [late * 1e3 for late in lateness_s]
    return spread(values, fewest=2) if values else None


def to_json(report: EndReport) -> dict[str, Any]:
    """The report as a plain object."""
    return asdict(report)


def _whole(seconds: int) -> list[float]:
    return [float(second) for second in range(seconds + 1)]


def bins_between(record: Record, edges: Sequence[float]) -> list[Bin]:
    """The bits asked and delivered between the marks nearest to ``edges``; those with the same two marks are left out."""
    if not record.marks:
        return []
    nearest = [_nearest(record.marks, edge) for edge in edges]
    return [
        Bin(begin, end, asked_between(record.rates, begin, end), 8 * (after - before))
        for (begin, before), (end, after) in pairwise(nearest)
        if end > begin
    ]


def _nearest(marks: Sequence[Mark], time_s: float) -> Mark:
    after = bisect_right(marks, time_s, key=lambda mark: mark[0])
    around = marks[max(0, after - 1) : after + 1]
    return min(around, key=lambda mark: abs(mark[0] - time_s))


def _errors(bins: Sequence[Bin], bundle_bytes: int) -> list[float]:
    return [
        max(0.0, abs(each.delivered_bits - each.asked_bits) - 8 * bundle_bytes) / each.asked_bits
        for each in bins
        if each.asked_bits > 0
    ]


def busy_between(looks: Sequence[Look], from_s: float, to_s: float) -> bool:
    """Whether the link was backlogged at every look from one time to the other."""
    touching = _touching(looks, from_s, to_s)
    return bool(touching) and all(look.busy for look in touching)


def _touching(looks: Sequence[Look], from_s: float, to_s: float) -> Sequence[Look]:
    begin = bisect_right(looks, from_s, key=lambda look: look.to_s)
    end = bisect_right(looks, to_s - 1e-9, key=lambda look: look.from_s)
    return looks[begin:end]


def _ratio(looks: Sequence[Look]) -> float | None:
    asked = sum(look.asked_bits for look in looks)
    return sum(look.delivered_bits for look in looks) / asked if asked else None


def _slack(looks: Sequence[Look], bundle_bytes: int) -> float:
    """The share of the asked bits that a bundle more or less in each row of busy looks may come to."""
    asked = sum(look.asked_bits for look in looks if look.busy)
    rows = sum(busy for busy, _ in groupby(look.busy for look in looks))
    # errors of which none knows of the others add up as the root of their number
    return 8 * bundle_bytes * min(rows, 2 * sqrt(rows)) / asked if asked else 0.0


def _seconds(looks: Iterable[Look]) -> float:
    return sum(look.to_s - look.from_s for look in looks)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
