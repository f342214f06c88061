"""What links were asked for, what they dropped and what the host did, from the records in ``links.jsonl``."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Any, cast

from testbed.record.host import Host
from testbed.record.spans import Spans
from testbed.scenario.shape import End

LATE_S = 0.06
"""Looks are 20 ms apart: an agent that has missed two of them in a row was kept from its work."""


class LinkHistory:
    """Integrals of the asked rate of every link direction, in wall seconds after t0.

    Between two samples the asked rate counts as even; before the first and after the last sample it is
    that sample's.
    """

    def __init__(self, records: Iterable[Mapping[str, Any]]) -> None:
        self._times: dict[End, list[float]] = {}
        self._bits: dict[End, list[float]] = {}
        self._drops: dict[End, list[tuple[float, float]]] = {}
        self.late: list[tuple[float, float]] = []
        """When the agent was kept from looking."""
        self.changes: dict[End, list[Mapping[str, Any]]] = {}
        """``change`` records by direction, in order of time."""
        self.mismatches: list[Mapping[str, Any]] = []
        """``mismatch`` records."""
        self.nodes: list[Mapping[str, Any]] = []
        """``node`` records."""
        hosts: list[Mapping[str, Any]] = []
        samples: list[tuple[float, float, End, float, bool]] = []
        for record in records:
            kind = record.get("kind")
            if kind == "sample":
                samples.append(_sample(record))
                if record.get("longest_gap_s", 0.0) > LATE_S:
                    self.late.append((float(record["from_s"]), float(record["to_s"])))
            elif kind == "host":
                hosts.append(record)
            elif kind == "change":
                self.changes.setdefault(_end(record), []).append(record)
            elif kind == "mismatch":
                self.mismatches.append(record)
            elif kind == "node":
                self.nodes.append(record)
        self.host = Host.of(hosts)
        self._stolen = self.host.stolen()
        for made in self.changes.values():
            made.sort(key=lambda change: float(change["due_s"]))
        for sample in sorted(samples):
            self._add(*sample)
        self._dropping = {end: Spans(spans) for end, spans in self._drops.items()}

    def __contains__(self, end: End) -> bool:
        return end in self._times

    @property
    def ends(self) -> list[End]:
        """The link directions that were sampled."""
        return list(self._times)

    @property
    def stolen_s(self) -> float:
        """Processor seconds that the host lost to others."""
        return self.host.stolen_s

    def bits(self, end: End, start_s: float, stop_s: float) -> float:
        """Bits that ``end`` was asked to carry from ``start_s`` to ``stop_s``. KeyError: never sampled."""
        return self._integral(end, stop_s) - self._integral(end, start_s)

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

    def _add(self, from_s: float, to_s: float, end: End, asked_bits: float, dropped: bool) -> None:
        if to_s <= from_s:
            return
        times, bits = self._times.setdefault(end, []), self._bits.setdefault(end, [])
        if not times:
            times.append(from_s)
            bits.append(0.0)
        if to_s > times[-1]:
            # A sample that was lost counts as one at the rate of the next.
            rate = asked_bits / (to_s - from_s)
            bits.append(bits[-1] + rate * (to_s - times[-1]))
            times.append(to_s)
        if dropped:
            self._drops.setdefault(end, []).append((from_s, to_s))

    def _integral(self, end: End, time_s: float) -> float:
        times, bits = self._times[end], self._bits[end]
        right = min(max(bisect_right(times, time_s), 1), len(times) - 1)
        slope = (bits[right] - bits[right - 1]) / (times[right] - times[right - 1])
        return bits[right] + slope * (time_s - times[right])


def _end(record: Mapping[str, Any]) -> End:
    return End(record["link"], cast(Any, record["direction"]))


def _sample(record: Mapping[str, Any]) -> tuple[float, float, End, float, bool]:
    times = float(record["from_s"]), float(record["to_s"])
    return *times, _end(record), float(record["asked_bits"]), bool(record["drops"])
