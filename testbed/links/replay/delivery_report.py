"""Report of what a link direction delivered against what was requested, and service in and after
outages. Pure.

Bits are those that the class counts against its rate: Ethernet headers, and the overhead per packet
that was asked for. A *mark* is ``(seconds after t0, bytes so far)``.

The reference is a FIFO queue that sends whole bundles (packets, where bundles have one) at exactly
the asked rates. While something waits, the bytes that it has sent between two marks differ from the
integral of the rates by less than one bundle: where in a bundle it was at the first mark is not
known. So an error is what lies beyond one bundle.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, MutableSequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from math import floor, inf, sqrt
from operator import itemgetter
from typing import Any

from testbed.links.replay.interval_errors import (
    IntervalErrors,
    LatenessHistogram,
    Mark,
    Mismatch,
    Rate,
    Sample,
)
from testbed.links.tc.parameters import burst_bytes
from testbed.records.intervals import quantiles

_LEAVING_S = 1e-3
"""Traffic of so much time at the rate before may leave after an outage was set."""

RECHARGED_S = 50.0
"""One bundle more may leave every so often, since the kernel keeps no charge for longer."""

_SOON_S, _CLOSE_S = 0.2, 5e-3


@dataclass(slots=True)
class OutageSeen:
    """One outage of a link direction."""

    leaked_bytes: int = 0
    """Bytes that left in it and that the rates before and after do not explain."""
    resume_s: float | None = None
    """Delay of its first bundle against a FIFO queue's; None: nothing waited that long."""
    seconds: float = 0.0


class Outages:
    """Gets the bytes so far (``carried``) and the queue at every look; times after t0."""

    def __init__(self) -> None:
        self.outages: list[OutageSeen] = []
        self._open: OutageSeen | None = None
        self._began_s = 0.0
        self._from = self._at_end = self._waiting = 0
        self.resumed_s: float | None = None
        """When the last outage was over, until something is known to have left since."""
        self._looked_s = 0.0

    def resuming(self, now_s: float) -> bool:
        """Return whether service should be back just now, so that looks follow closely."""
        return self.resumed_s is not None and now_s - self.resumed_s < _SOON_S

    def begin(self, due_s: float, carried: int, rate_before_bits: int) -> None:
        """An outage has begun, after a link of that rate (0: none was before)."""
        self._open, self._began_s, self.resumed_s = OutageSeen(), due_s, None
        self._from = carried + round(rate_before_bits / 8 * _LEAVING_S)

    def end(
        self, due_s: float, last: tuple[int, int], now: tuple[int, float], rate_bits: int
    ) -> None:
        """It was over at ``due_s``. ``last``: bytes so far and queue at the last look before;
        ``now``: bytes so far at the first look after, and when that was."""
        carried, now_s = now
        explained = round(rate_bits / 8 * max(0.0, now_s - due_s)) + burst_bytes(rate_bits)
        self.close(due_s, carried - explained)
        self._at_end, self._waiting = last
        self._looked_s = due_s
        self.resumed_s = due_s if self._waiting else None

    def close(self, now_s: float, carried: int) -> None:
        """The replay is over, and perhaps an outage is not. ``carried``: bytes so far."""
        if self._open is not None:
            self._open.leaked_bytes = max(0, carried - self._from)
            self._open.seconds = now_s - self._began_s
            self.outages.append(self._open)
            self._open = None

    def look(self, now_s: float, carried: int, due_s: Callable[[float, int], float]) -> None:
        """Find out how late service was back, as soon as something has left.

        ``due_s(from_s, size)``: when the packet after ``size`` bytes leaves at the latest that
        could from ``from_s`` on. Time since then is lost if all of them waited at the end of the
        outage, or if the look before was not long ago; else the link may have been idle meanwhile,
        and all that is known is that nothing had left at the look before.
        """
        if self.resumed_s is None:
            return
        left, before_s = carried - self._at_end, self._looked_s
        self._looked_s = now_s
        if not left:
            return
        if left < self._waiting or now_s - before_s <= _CLOSE_S:
            self.outages[-1].resume_s = max(0.0, now_s - due_s(self.resumed_s, left))
        elif (least_s := before_s - due_s(self.resumed_s, 0)) > 0:  # until then nothing had left
            self.outages[-1].resume_s = least_s
        self.resumed_s = None


MOST_MISMATCHES = 20
"""Most mismatches in a report; all are in the records."""
MOST_LATENESS = 10_000
"""Most changes of which each lateness is kept; of more, how many were about as late."""


@dataclass(frozen=True, slots=True)
class EndReport:
    """How a link direction followed its history, from t0 to the end. None: nothing to judge by.

    Errors are relative (0.01 is 1 %), beyond one bundle; ``mape`` is their mean. Bins end at the
    marks nearest to whole seconds after t0, or to changes; the last partial one is left out.
    Intervals in which nothing was asked for are in no error.
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
    """Change of that ratio by a bundle more or less in each unbroken backlog."""
    busy_mape_1s: float | None
    """Over the bins in which it was backlogged throughout; likewise the two that follow."""
    busy_worst_1s: float | None
    busy_mape_step: float | None
    busy_bins_1s: int
    """How many whole seconds that were."""
    excess_share: float | None
    """Share of the delivered bits beyond what was asked and a bundle in a whole second."""
    drops: int
    """Drops of the emulated queue, since the links were prepared."""
    changes: int
    lateness_ms: dict[str, float | None] | None
    """``p50``, ``p99``, ``p99_at_least`` (95 % confidence) and ``max`` of when changes were in the
    kernel against when they were meant to be."""
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
    """Times at which the kernel held something else: the fields of ``Mismatch``."""
    gso_max_segs: int
    realtime: bool
    """True if changes were made by a real-time thread."""
    failure: str | None = None
    """Description of what went wrong on this end after t0."""
    line_packets: int | None = None
    """Packets that came to the line behind the queue; None: there is no line."""
    line_lost: int | None = None
    """Packets among them that its loss model took."""
    line_limit: int | None = None
    """Packets among them for which it had no room: there must be none."""
    outage_worst_bytes: int | None = None
    """Those of ``outage_bytes`` that one outage let out: the one that is furthest beyond a bundle
    every ``RECHARGED_S``."""
    outage_worst_s: float = 0.0
    """The length of that outage."""


@dataclass(slots=True)
class Sums:
    """Sums over looks, added up in their order."""

    asked_bits: float = 0
    delivered_bits: int = 0
    seconds: float = 0

    def add(self, look: Sample) -> None:
        """One more."""
        self.asked_bits += look.asked_bits
        self.delivered_bits += look.delivered_bits
        self.seconds += look.to_s - look.from_s

    @property
    def ratio(self) -> float | None:
        """Delivered over asked; None where nothing was asked for."""
        return self.delivered_bits / self.asked_bits if self.asked_bits else None


@dataclass(slots=True)
class Folded:
    """The part of a record that is only kept as counts and sums."""

    from_s: float | None = None
    """The first mark."""
    seconds: IntervalErrors = field(default_factory=IntervalErrors)
    """Bins of a second."""
    steps: IntervalErrors = field(default_factory=IntervalErrors)
    """Bins between two changes of the rate."""
    all: Sums = field(default_factory=Sums)
    busy: Sums = field(default_factory=Sums)
    rows: int = 0
    """Number of rows of looks, one after the other, at which the link was busy."""
    was_busy: bool = False
    outage_s: float = 0
    outages: int = 0
    leaked_bytes: int = 0
    worst: OutageSeen | None = None
    """The outage that let out most beyond a bundle every ``RECHARGED_S``."""
    resume_s: float | None = None
    """The longest."""
    lateness: LatenessHistogram = field(default_factory=LatenessHistogram)


@dataclass(slots=True)
class DeliveryLog:
    """Measurements of a link direction from t0 on, in order of time.

    Those before the last ``fold`` are in ``folded``.
    """

    bundle_bytes: int = 0
    """The most that leaves at once."""
    looks: list[Sample] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    rates: list[Rate] = field(default_factory=list)
    """When the asked rate became what, in bit/s; the first entry is at 0."""
    lateness_s: MutableSequence[float] = field(default_factory=lambda: array("d"))
    outages: list[OutageSeen] = field(default_factory=list)
    mismatches: list[Mismatch] = field(default_factory=list)
    """The first of them."""
    unwatched_s: float = 0.0
    largest_backlog_bytes: int = 0
    folded: Folded = field(default_factory=Folded)

    def note(self, mismatch: Mismatch) -> None:
        """One more, as long as it would be in the report."""
        if len(self.mismatches) < MOST_MISMATCHES:
            self.mismatches.append(mismatch)

    def fold(self, until_s: float, rates_from_s: float = inf) -> None:
        """Judge what was until then, and forget it. There is a mark later than ``until_s``.

        A change that was due before ``until_s`` and comes after this no longer changes what was
        judged. ``rates_from_s``: rates are wanted from then on.
        """
        after = bisect_right(self.marks, until_s, key=itemgetter(0))
        if not after:
            return
        self._close(until_s, until_s)
        del self.marks[: after - 1]
        # what ended by the first mark that is left is in no bin that begins later
        self._forget_looks(bisect_right(self.looks, self.marks[0][0], key=lambda look: look.to_s))
        open_s = [bins.begin[0] for bins in (self.folded.seconds, self.folded.steps) if bins.begin]
        needed_s = min(self.marks[0][0], rates_from_s, *open_s)
        self._forget_rates(bisect_right(self.rates, needed_s, key=itemgetter(0)) - 1)
        self._forget_outages(len(self.outages) - 1)
        if len(self.lateness_s) > MOST_LATENESS:
            self.folded.lateness.take(self.lateness_s)
            self.lateness_s = array("d")

    def whole(self) -> Folded:
        """All of it folded; the record stays as it is."""
        # of lists that alone: what is in them stays as it is, and there may be hundreds of links
        rest = replace(self, folded=deepcopy(self.folded))
        rest.looks, rest.marks = list(self.looks), list(self.marks)
        rest.rates, rest.outages = list(self.rates), list(self.outages)
        if rest.marks:
            ends_s = rest.marks[-1][0]
            rest._close(floor(ends_s + 1e-3), ends_s, ended=True)
            if rest.rates and not rest.rates[-1][1]:  # an outage that is not over
                rest.folded.outage_s += max(0.0, ends_s - rest.rates[-1][0])
        rest._forget_looks(len(rest.looks))
        rest._forget_rates(len(rest.rates) - 1)
        rest._forget_outages(len(rest.outages))
        return rest.folded

    def _close(self, seconds_to_s: float, steps_to_s: float, *, ended: bool = False) -> None:
        """Judge the bins up to these edges; ``ended``: no change that is due at the end counts."""
        folded = self.folded
        if folded.from_s is None:
            folded.from_s = self.marks[0][0]
        parts = self.looks, self.marks, self.rates, self.bundle_bytes
        first = floor(max(-1.0, folded.seconds.edge_s)) + 1
        folded.seconds.close(map(float, range(first, floor(seconds_to_s) + 1)), *parts)
        due = (at for at, _ in self.rates if at > folded.steps.edge_s)
        edges = [at for at in due if at < steps_to_s or (at == steps_to_s and not ended)]
        folded.steps.close(edges, *parts)

    def _forget_looks(self, count: int) -> None:
        folded, left = self.folded, self.looks[:count]
        for bins in (folded.seconds, folded.steps):
            bins.leave(left)
        for look in left:
            folded.all.add(look)
            if look.busy:
                folded.busy.add(look)
                folded.rows += not folded.was_busy
            folded.was_busy = look.busy
        del self.looks[:count]

    def _forget_rates(self, count: int) -> None:
        if count > 0:
            left = self.rates[: count + 1]
            for (at, rate), (after, _) in pairwise(left):
                if not rate:
                    self.folded.outage_s += after - at
            del self.rates[:count]

    def _forget_outages(self, count: int) -> None:
        """The last one may still learn how soon service was back."""
        folded = self.folded
        for outage in self.outages[: max(0, count)]:
            folded.outages += 1
            folded.leaked_bytes += outage.leaked_bytes
            if folded.worst is None or self._beyond(outage) > self._beyond(folded.worst):
                folded.worst = outage
            if outage.resume_s is not None:
                folded.resume_s = max(folded.resume_s or 0.0, outage.resume_s)
        del self.outages[: max(0, count)]

    def _beyond(self, outage: OutageSeen) -> float:
        return outage.leaked_bytes - outage.seconds // RECHARGED_S * self.bundle_bytes


def measures(record: DeliveryLog) -> dict[str, Any]:
    """The fields of ``EndReport`` that follow from a record alone."""
    whole = record.whole()
    seconds, steps, resume_s = whole.seconds, whole.steps, whole.resume_s
    worst = whole.worst
    return {
        "asked_bits": whole.all.asked_bits,
        "delivered_bits": whole.all.delivered_bits,
        "ratio": whole.all.ratio,
        "mape_1s": seconds.all.mean,
        "busy_mape_1s": seconds.busy.mean,
        "worst_1s": seconds.all.worst,
        "busy_worst_1s": seconds.busy.worst,
        "busy_bins_1s": seconds.busy.count,
        "excess_share": seconds.excess_bits / whole.all.delivered_bits
        if (seconds.all.count or seconds.excess_bits) and whole.all.delivered_bits
        else None,
        "mape_step": steps.all.mean,
        "busy_mape_step": steps.busy.mean,
        "busy_share": whole.busy.seconds / whole.all.seconds if whole.all.seconds else 0.0,
        "busy_ratio": whole.busy.ratio,
        "busy_ratio_slack": _slack(whole, record.bundle_bytes),
        "changes": whole.lateness.count + len(record.lateness_s),
        "lateness_ms": lateness_ms(chain(whole.lateness, record.lateness_s)),
        "outages": whole.outages,
        "outage_s": whole.outage_s,
        "outage_bytes": whole.leaked_bytes,
        "outage_worst_bytes": None if worst is None else worst.leaked_bytes,
        "outage_worst_s": 0.0 if worst is None else worst.seconds,
        "resume_ms": None if resume_s is None else resume_s * 1e3,
        "from_s": whole.from_s or 0.0,
        "to_s": record.marks[-1][0] if record.marks else 0.0,
        "unwatched_s": record.unwatched_s,
        "largest_backlog_bytes": record.largest_backlog_bytes,
        "mismatches": [mismatch._asdict() for mismatch in record.mismatches[:MOST_MISMATCHES]],
    }


def _slack(whole: Folded, bundle_bytes: int) -> float:
    """The share of the asked bits that a bundle for each row of busy looks may come to."""
    requested, rows = whole.busy.asked_bits, whole.rows
    # errors of which none knows of the others add up as the root of their number
    return 8 * bundle_bytes * min(rows, 2 * sqrt(rows)) / requested if requested else 0.0


def lateness_ms(lateness_s: Iterable[float]) -> dict[str, float | None] | None:
    """Percentiles in ms (see ``quantiles``); None of nothing. One change alone shows no p99."""
    late = quantiles(list(lateness_s), fewest=2)
    if late["max"] is None:
        return None
    return {name: None if late_s is None else late_s * 1e3 for name, late_s in late.items()}
