"""The rates that links were asked for and what they dropped, from the samples in ``links.jsonl``."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Any, cast

from testbed.scenario.shape import End


class LinkHistory:
    """Integrals of the asked rate of every link direction, in wall seconds after t0.

    Between two samples the asked rate counts as even; before the first and after the last sample it is
    that sample's.
    """

    def __init__(self, records: Iterable[Mapping[str, Any]]) -> None:
        self._times: dict[End, list[float]] = {}
        self._bits: dict[End, list[float]] = {}
        self._drops: list[tuple[float, float]] = []
        self._theft: list[tuple[float, float]] = []
        self.stolen_s = 0.0
        """Processor seconds that the host lost to others."""
        records = list(records)
        for record in records:
            if record.get("kind") == "host":
                self.stolen_s += float(record["stolen_s"])
                self._theft.append((float(record["from_s"]), float(record["to_s"])))
        samples = [record for record in records if record.get("kind") == "sample"]
        for sample in sorted(samples, key=lambda sample: float(sample["from_s"])):
            self._add(sample)

    def __contains__(self, end: End) -> bool:
        return end in self._times

    @property
    def ends(self) -> list[End]:
        """The link directions that were sampled."""
        return list(self._times)

    def bits(self, end: End, start_s: float, stop_s: float) -> float:
        """Bits that ``end`` was asked to carry from ``start_s`` to ``stop_s``. KeyError: never sampled."""
        return self._integral(end, stop_s) - self._integral(end, start_s)

    def mean_rate(self, end: End, start_s: float, stop_s: float) -> float:
        """Mean asked rate in bit/s; the two times must differ."""
        return self.bits(end, start_s, stop_s) / (stop_s - start_s)

    def dropped(self, start_s: float, stop_s: float) -> bool:
        """Whether an emulated queue may have dropped packets between the two times."""
        return _overlaps(self._drops, start_s, stop_s)

    def stolen(self, start_s: float, stop_s: float) -> bool:
        """Whether the host may have lacked a processor between the two times."""
        return _overlaps(self._theft, start_s, stop_s)

    def _add(self, sample: Mapping[str, Any]) -> None:
        from_s, to_s = float(sample["from_s"]), float(sample["to_s"])
        if to_s <= from_s:
            return
        end = End(sample["link"], cast(Any, sample["direction"]))
        times, bits = self._times.setdefault(end, []), self._bits.setdefault(end, [])
        if not times:
            times.append(from_s)
            bits.append(0.0)
        if to_s > times[-1]:
            # A sample that was lost counts as one at the rate of the next.
            rate = float(sample["asked_bits"]) / (to_s - from_s)
            bits.append(bits[-1] + rate * (to_s - times[-1]))
            times.append(to_s)
        if sample["drops"]:
            self._drops.append((from_s, to_s))

    def _integral(self, end: End, time_s: float) -> float:
        times, bits = self._times[end], self._bits[end]
        right = min(max(bisect_right(times, time_s), 1), len(times) - 1)
        slope = (bits[right] - bits[right - 1]) / (times[right] - times[right - 1])
        return bits[right] + slope * (time_s - times[right])


def _overlaps(spans: list[tuple[float, float]], start_s: float, stop_s: float) -> bool:
    return any(start_s < to and stop_s > from_ for from_, to in spans)
