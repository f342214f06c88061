"""Contents of ``links.jsonl``: changes, what links were asked for and dropped, and what they
carried on one axis of time. Pure but for the reading.

Times in wall seconds after t0. A sample's bits and its use count as even over its time, or between
the looks that it tells.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from math import inf
from typing import Any, NamedTuple, Self, cast

import numpy as np
from numpy.typing import NDArray

from testbed.records.intervals import HostLog, HostMoments, IntervalSet
from testbed.records.run_directory import equal_parts
from testbed.scenario.link_state import FRAME_BYTES, LinkDirection

Impairments = dict[str, Any] | None


class Change(NamedTuple):
    """The part of a ``change`` record (``testbed.records.events.LinkChanged``) that is used."""

    due_s: float
    applied_s: float
    rate_bits: int
    queue_bytes: int
    impairments: Impairments


class Changes:
    """Packed ``change`` records, in order of arrival; equal impairments are kept once."""

    def __init__(self, records: Iterable[Mapping[str, Any]] = ()) -> None:
        self._due, self._applied = array("d"), array("d")
        self._rates, self._queues = array("q"), array("q")
        self._impaired = array("l")
        self._known: dict[str, int] = {}
        self._impairments: list[Impairments] = []
        for record in records:
            self.take(record)

    def __len__(self) -> int:
        return len(self._due)

    def __getitem__(self, at: int) -> Change:
        return Change(
            self._due[at],
            self._applied[at],
            self._rates[at],
            self._queues[at],
            self._impairments[self._impaired[at]],
        )

    def __iter__(self) -> Iterator[Change]:
        return (self[at] for at in range(len(self)))

    def take(self, record: Mapping[str, Any]) -> None:
        """One more."""
        self._due.append(float(record["due_s"]))
        self._applied.append(float(record["applied_s"]))
        self._rates.append(int(record["rate_bits"]))
        self._queues.append(int(record["queue_bytes"]))
        impairments = record.get("impairments")
        key = repr(impairments)
        if key not in self._known:
            self._known[key] = len(self._impairments)
            self._impairments.append(impairments)
        self._impaired.append(self._known[key])

    def by_time(self) -> Self:
        """The same, by when they were due."""
        if any(after < before for before, after in pairwise(self._due)):
            order = sorted(range(len(self)), key=self._due.__getitem__)
            for name in ("_due", "_applied", "_rates", "_queues", "_impaired"):
                column = getattr(self, name)
                column[:] = array(column.typecode, (column[at] for at in order))
        return self


LATE_S = 0.06
"""Looks are 20 ms apart: an agent that has missed two of them in a row was kept from its work."""
_ADJOINING_S, _EQUAL = 1e-9, 1e-9
"""Samples that follow one another at rates that differ by no more than this are kept as one."""


class LinkLog:
    """Integrals of the asked rate of every link direction, in wall seconds after t0.

    Between two samples the asked rate counts as even; before the first and after the last sample it
    is that sample's. Records are taken in one by one and kept packed: 24 bytes of a sample with
    another rate than the one before, and none where ``rates`` are not wanted; 48 of a moment of the
    host; 28 of a change.
    """

    def __init__(self, records: Iterable[Mapping[str, Any]], *, rates: bool = True) -> None:
        self._rates = rates
        self._requested: dict[LinkDirection, _RequestedBits] = {}
        self._dropping: dict[LinkDirection, IntervalSet] = {}
        self.late = IntervalSet()
        """When the agent was kept from looking."""
        self.under_way = IntervalSet()
        """When some link carried something."""
        self.changes: dict[LinkDirection, Changes] = {}
        """``change`` records by direction, in order of time."""
        self.mismatches: list[Mapping[str, Any]] = []
        """``mismatch`` records."""
        self.clocks: dict[str, list[int]] = {}
        """Largest movement of the clock of each of a swarm's hosts, and its error; ns."""
        self.nodes: list[Mapping[str, Any]] = []
        """``node`` records."""
        moments = HostMoments()
        for record in records:
            kind = record.get("kind")
            if kind == "sample":
                self._sample(record)
            elif kind == "host":
                moments.take(record)
            elif kind == "change":
                self._change(record)
            elif kind == "mismatch":
                self.mismatches.append(record)
            elif kind == "host_clock":
                self._clock(record)
            elif kind == "node":
                self.nodes.append(record)
        self.host = HostLog(moments.by_time())
        self._stolen = self.host.stolen()
        self.changes = {end: changes.by_time() for end, changes in self.changes.items()}

    def _clock(self, record: Mapping[str, Any]) -> None:
        moved = [abs(int(record["moved_ns"])), int(record["error_ns"])]
        self.clocks[record["host"]] = max(self.clocks.get(record["host"], moved), moved)

    def __contains__(self, end: LinkDirection) -> bool:
        return end in self._requested

    @property
    def stolen_s(self) -> float:
        """Processor seconds that the host lost to others."""
        return self.host.stolen_s

    def bits(self, end: LinkDirection, start_s: float, stop_s: float) -> float:
        """Bits asked of ``end`` from ``start_s`` to ``stop_s``. KeyError: never sampled."""
        return self._requested[end].by(stop_s) - self._requested[end].by(start_s)

    def dropped(self, ends: Iterable[LinkDirection], start_s: float, stop_s: float) -> bool:
        """Return whether a queue of ``ends`` may have dropped packets between the two."""
        dropping = (self._dropping.get(end) for end in ends)
        return any(spans is not None and spans.overlaps(start_s, stop_s) for spans in dropping)

    def stolen(self, start_s: float, stop_s: float) -> bool:
        """Return whether the host may have lacked a processor between the two times."""
        return self._stolen.overlaps(start_s, stop_s)

    def _sample(self, record: Mapping[str, Any]) -> None:
        from_s, to_s = float(record["from_s"]), float(record["to_s"])
        if record.get("longest_gap_s", 0.0) > LATE_S:
            self.late.add(from_s, to_s)
        if record.get("delivered_bits", 0) > 0:
            self.under_way.add(from_s, to_s)
        if to_s <= from_s:
            return
        if self._rates:
            end = end_of(record)
            if end not in self._requested:
                self._requested[end] = _RequestedBits()
            self._requested[end].take(from_s, to_s, float(record["asked_bits"]))
        if record["drops"]:
            self._dropping.setdefault(end_of(record), IntervalSet()).add(from_s, to_s)

    def _change(self, record: Mapping[str, Any]) -> None:
        end = end_of(record)
        if end not in self.changes:
            self.changes[end] = Changes()
        self.changes[end].take(record)


class _RequestedBits:
    """Samples of one link direction, and the integral over them once it is asked for."""

    def __init__(self) -> None:
        self._from, self._to, self._bits = array("d"), array("d"), array("d")
        self._times, self._integral = array("d"), array("d")

    def take(self, from_s: float, to_s: float, bits: float) -> None:
        """One more sample, of any time."""
        if self._to and abs(from_s - self._to[-1]) < _ADJOINING_S:
            before_s = self._to[-1] - self._from[-1]
            if abs(bits * before_s - self._bits[-1] * (to_s - from_s)) <= _EQUAL * bits * before_s:
                self._to[-1] = to_s
                self._bits[-1] += bits
                return
        self._from.append(from_s)
        self._to.append(to_s)
        self._bits.append(bits)

    def by(self, time_s: float) -> float:
        """Bits from the first sample until then."""
        if self._from:
            self._integrate()
        times, bits = self._times, self._integral
        right = min(max(bisect_right(times, time_s), 1), len(times) - 1)
        slope = (bits[right] - bits[right - 1]) / (times[right] - times[right - 1])
        return bits[right] + slope * (time_s - times[right])

    def _integrate(self) -> None:
        times, integral = self._times, self._integral
        columns = self._from, self._to, self._bits
        rows: Iterable[tuple[float, float, float]] = zip(*columns, strict=True)
        if any(after <= before for before, after in pairwise(self._from)):
            rows = sorted(rows)
        for from_s, to_s, asked_bits in rows:
            if not times:
                times.append(from_s)
                integral.append(0.0)
            if to_s > times[-1]:
                # A sample that was lost counts as one at the rate of the next.
                rate = asked_bits / (to_s - from_s)
                integral.append(integral[-1] + rate * (to_s - times[-1]))
                times.append(to_s)
        for column in columns:
            del column[:]


def end_of(record: Mapping[str, Any]) -> LinkDirection:
    """The link direction that a record is of."""
    return LinkDirection(record["link"], cast(Any, record["direction"]))


Array = NDArray[np.float64]
LOOK_S = 0.02
"""From look to look."""
LOOKS_S = 4 * 3600.0
"""Length of a run beyond which looks within samples are left out: too much memory."""
_MOST_LOOKS = 2_000_000
"""The most looks for a link direction; ``LOOKS_S`` has no more than a third of it."""
_LEAST_BITS = 4 * 8 * FRAME_BYTES
"""The least bits between looks: below, packets cannot be told from pauses."""


class TrafficRows:
    """Rows of samples, taken in one by one and kept packed: 32 bytes each, and as many for each
    look of the first ``LOOKS_S``."""

    def __init__(self, records: Iterable[Mapping[str, Any]] = ()) -> None:
        self._samples: dict[LinkDirection, array[float]] = {}
        self._looks: dict[LinkDirection, array[float]] = {}
        self._finer, self._long = False, False
        self._from_s = inf
        for record in records:
            self.take(record)

    def passing(self, records: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
        """Take in what goes by."""
        for record in records:
            self.take(record)
            yield record

    def take(self, record: Mapping[str, Any]) -> None:
        """One more record; those of other kinds are passed over."""
        if record.get("kind") != "sample" or record["to_s"] <= record["from_s"]:
            return
        end = LinkDirection(str(record["link"]), record["direction"])
        if end not in self._samples:
            self._samples[end] = array("d")
        self._samples[end].extend(chain.from_iterable(_rows(record, ())))
        if self._long:
            return
        self._from_s = min(self._from_s, float(record["from_s"]))
        if record["to_s"] - self._from_s > LOOKS_S:
            self._looks.clear()
            self._finer, self._long = False, True
            return
        looks = record.get("looks", ())
        self._looks.setdefault(end, array("d")).extend(chain.from_iterable(_rows(record, looks)))
        self._finer = self._finer or bool(looks)

    def tables(self) -> Iterator[tuple[LinkDirection, Array]]:
        """Yield, for each link direction, rows of from when to when, bits, and busy seconds; shape
        (n, 4), by time."""
        for end, samples in self._samples.items():
            yield end, _by_time(self._looks.get(end, samples))

    def drain(self) -> Iterator[tuple[LinkDirection, Array]]:
        """The same; what has been handed out is kept no longer."""
        for end in list(self._samples):
            samples = self._samples.pop(end)
            yield end, _by_time(self._looks.pop(end, samples))

    @property
    def axis(self) -> Array:
        """Times as the direction with most samples has them; with looks, equally spaced."""
        tables = (table for _, table in self.tables())
        longest = max(tables, key=len, default=np.zeros((0, 4)))
        if not self._finer:
            return np.concatenate([longest[:1, 0], longest[:, 1]])
        return equal_parts(longest[0, 0], longest[-1, 1] + LOOK_S / 2, LOOK_S, _MOST_LOOKS)


class LinkTraffic:
    """Cumulated over ``times_s`` (n,), ascending. ``TrafficRows`` are used up."""

    def __init__(self, records: Iterable[Mapping[str, Any]] | TrafficRows) -> None:
        rows = records if isinstance(records, TrafficRows) else TrafficRows(records)
        self.times_s: Array = rows.axis
        self.bits: dict[LinkDirection, Array] = {}
        """Bits that each link direction has carried by then."""
        self._used: dict[LinkDirection, Array] = {}
        self._busy_s: dict[str | None, Array] = {}
        for end, table in rows.drain():
            times = np.concatenate([table[:1, 0], table[:, 1]])
            for column, cumulated in ((2, self.bits), (3, self._used)):
                total = np.concatenate([[0.0], np.cumsum(table[:, column])])
                cumulated[end] = np.interp(self.times_s, times, total)

    def __len__(self) -> int:
        return max(0, len(self.times_s) - 1)

    @property
    def total_bits(self) -> Array:
        """Bits that all links together have carried by each of the times, shape (n,)."""
        return np.sum(list(self.bits.values()), axis=0) if self.bits else np.zeros(0)

    def use(self, link: str | None = None) -> Array:
        """Share of each time between two of ``times_s`` in which a link was busy, shape (n - 1,).

        That is the time which the bits carried take at the rate asked, or all of it where a queue
        stood throughout; of both directions the larger counts, for in a full-duplex link they can
        run at once. Of all links (no ``link``) the busiest counts.
        """
        shares = [
            np.diff(used) / np.diff(self.times_s)
            for end, used in self._used.items()
            if link is None or end.link == link
        ]
        return np.clip(np.max(shares, axis=0), 0.0, 1.0) if shares else np.zeros(len(self))

    def uses(self) -> Array:
        """Return the ``use`` of each link by itself, shape (links, n - 1)."""
        names = sorted({end.link for end in self._used})
        return np.array([self.use(name) for name in names]).reshape(len(names), len(self))

    def busiest_s(self, from_s: float, to_s: float) -> Array:
        """Seconds by each of ``times_s`` in which that direction of a link was busy that was busy
        for longest between the two times. There is at least one."""
        spans = {
            end: np.diff(np.interp([from_s, to_s], self.times_s, self._used[end]))[0]
            for end in self._used
        }
        return self._used[max(spans, key=spans.__getitem__)]

    def busy_s(self, link: str | None = None) -> Array:
        """Seconds in which it was busy by each of ``times_s``, likewise."""
        if link not in self._busy_s:
            lengths = self.use(link) * np.diff(self.times_s)
            self._busy_s[link] = np.concatenate([[0.0], np.cumsum(lengths)])
        return self._busy_s[link]

    def share(self, from_s: float, to_s: float, link: str | None = None) -> float | None:
        """The share of a time in which it was busy; None where there are no samples of it."""
        known = self.bits if link is None else [end for end in self.bits if end.link == link]
        if not known or len(self) == 0 or to_s <= from_s:
            return None
        first, last = np.interp([from_s, to_s], self.times_s, self.busy_s(link))
        return float(last - first) / (to_s - from_s)

    def bytes_of(self, link: str) -> tuple[int, int] | None:
        """Bytes that a link has carried up and down, headers counted; None: never sampled."""
        carried = {end.direction: own[-1] / 8 for end, own in self.bits.items() if end.link == link}
        if not carried:
            return None
        return round(carried.get("up", 0.0)), round(carried.get("down", 0.0))


def _by_time(rows: array[float]) -> Array:
    table = np.frombuffer(rows).reshape(-1, 4)
    if np.any(np.diff(table[:, 0]) <= 0):
        table = table[np.lexsort(table.T[::-1])]
    return table


def _rows(
    sample: Mapping[str, Any], looks: Sequence[Sequence[float]]
) -> Iterator[tuple[float, ...]]:
    """From when to when, bits, and seconds in which the link was busy: between ``looks``, where
    packets can be told from pauses."""
    from_s, to_s = float(sample["from_s"]), float(sample["to_s"])
    rate, total = float(sample["asked_bits"]) / (to_s - from_s), float(sample["delivered_bits"])
    looks = looks if rate * LOOK_S >= _LEAST_BITS else ()
    before_s, before = from_s, 0.0
    for at_s, carried in [*looks, (to_s, total)]:
        if at_s <= before_s:
            continue
        requested, bits = rate * (at_s - before_s), carried - before
        share = 1.0 if sample["busy"] else min(1.0, bits / requested) if requested > 0 else 0.0
        yield before_s, at_s, bits, share * (at_s - before_s)
        before_s, before = at_s, carried
