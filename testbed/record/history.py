"""What links were asked for, what they dropped and what the host did, from the records in ``links.jsonl``."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, cast

from testbed.record.changes import Changes
from testbed.record.host import Host, Moments
from testbed.record.spans import Spans
from testbed.scenario.shape import End

LATE_S = 0.06
"""Looks are 20 ms apart: an agent that has missed two of them in a row was kept from its work."""
_ADJOINING_S, _EQUAL = 1e-9, 1e-9
"""Samples that follow one another at rates that differ by no more than this are kept as one."""


class LinkHistory:
    """Integrals of the asked rate of every link direction, in wall seconds after t0.

    Between two samples the asked rate counts as even; before the first and after the last sample it is
    that sample's. Records are taken in one by one and kept packed: 24 bytes of a sample with another rate than the one before,
    and none where ``rates`` are not wanted; 48 of a moment of the host; 28 of a change.
    """

    def __init__(self, records: Iterable[Mapping[str, Any]], *, rates: bool = True) -> None:
        self._rates = rates
        self._asked: dict[End, _Asked] = {}
        self._dropping: dict[End, Spans] = {}
        self.late = Spans()
        """When the agent was kept from looking."""
        self.under_way = Spans()
        """When some link carried something."""
        self.changes: dict[End, Changes] = {}
        """``change`` records by direction, in order of time."""
        self.mismatches: list[Mapping[str, Any]] = []
        """``mismatch`` records."""
        self.nodes: list[Mapping[str, Any]] = []
        """``node`` records."""
        moments = Moments()
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
            elif kind == "node":
                self.nodes.append(record)
        self.host = Host(moments.by_time())
        self._stolen = self.host.stolen()
        self.changes = {end: made.by_time() for end, made in self.changes.items()}

    def __contains__(self, end: End) -> bool:
        return end in self._asked

    @property
    def stolen_s(self) -> float:
        """Processor seconds that the host lost to others."""
        return self.host.stolen_s

    def bits(self, end: End, start_s: float, stop_s: float) -> float:
        """Bits that ``end`` was asked to carry from ``start_s`` to ``stop_s``. KeyError: never sampled."""
        return self._asked[end].by(stop_s) - self._asked[end].by(start_s)

    def mean_rate(self, end: End, start_s: float, stop_s: float) -> float:
        """Mean asked rate in bit/s; the two times must differ."""
        return self.bits(end, start_s, stop_s) / (stop_s - start_s)

    def dropped(self, ends: Iterable[End], start_s: float, stop_s: float) -> bool:
        """Whether the queue of one of ``ends`` may have dropped packets between the two times."""
        found = (self._dropping.get(end) for end in ends)
        return any(spans is not None and spans.touches(start_s, stop_s) for spans in found)

    def stolen(self, start_s: float, stop_s: float) -> bool:
        """Whether the host may have lacked a processor between the two times."""
        return self._stolen.touches(start_s, stop_s)

    def _sample(self, record: Mapping[str, Any]) -> None:
        from_s, to_s = float(record["from_s"]), float(record["to_s"])
        if record.get("longest_gap_s", 0.0) > LATE_S:
            self.late.add(from_s, to_s)
        if record.get("delivered_bits", 0) > 0:
            self.under_way.add(from_s, to_s)
        if to_s <= from_s:
            return
        if self._rates:
            end = _end(record)
            if end not in self._asked:
                self._asked[end] = _Asked()
            self._asked[end].take(from_s, to_s, float(record["asked_bits"]))
        if record["drops"]:
            self._dropping.setdefault(_end(record), Spans()).add(from_s, to_s)

    def _change(self, record: Mapping[str, Any]) -> None:
        end = _end(record)
        if end not in self.changes:
            self.changes[end] = Changes()
        self.changes[end].take(record)


class _Asked:
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


def _end(record: Mapping[str, Any]) -> End:
    return End(record["link"], cast(Any, record["direction"]))
