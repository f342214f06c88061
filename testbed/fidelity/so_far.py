"""The verdict so far: those of its checks that can be made while a run lasts, with the same limits.
Pure.

What is only known at the end (completion of messages, byte identity, round trips, loss) is not in
it, so it may be better than the verdict, and worse where a share is large only at the beginning.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from testbed.fidelity.evidence import CheckResult, State
from testbed.records.manifest import THRESHOLDS, Thresholds
from testbed.scenario.link_state import FRAME_BYTES

LEAST_STEPS = 20
"""Steps of all workers below which the share that overran is not judged."""


@dataclass
class _BusyTotals:
    """Sums over the samples in which one link direction was backlogged throughout."""

    seconds: float = 0.0
    asked_bits: float = 0.0
    delivered_bits: float = 0.0
    rows: int = 0
    """Stretches of such samples."""
    inside: bool = False

    def add(self, sample: Mapping[str, Any]) -> None:
        if sample["busy"]:
            self.seconds += sample["to_s"] - sample["from_s"]
            self.asked_bits += sample["asked_bits"]
            self.delivered_bits += sample["delivered_bits"]
            self.rows += not self.inside
        self.inside = sample["busy"]


class VerdictSoFar:
    """Checks of one run, fed by its records as they come. ``processors``: of this machine."""

    def __init__(self, processors: int, limits: Thresholds = THRESHOLDS) -> None:
        self._processors, self._limits = processors, limits
        self._busy: dict[str, _BusyTotals] = {}
        self._steps = self._overran = 0
        self._counts: Counter[str] = Counter()
        self._latest_ms = self._stolen_s = self._watched_s = 0.0

    def step(self, event: Mapping[str, Any]) -> None:
        """Take in a node's event; only ``step`` records matter."""
        if event.get("kind") == "step":
            self._steps += 1
            self._overran += bool(event["overran"])

    def record(self, record: Mapping[str, Any]) -> None:
        """Take in a record of links or the host."""
        kind = record.get("kind")
        if kind == "sample":
            end = f"{record['link']} {record['direction']}"
            self._busy.setdefault(end, _BusyTotals()).add(record)
        elif kind == "change":
            late_ms = 1e3 * (record["applied_s"] - record["due_s"])
            self._latest_ms = max(self._latest_ms, late_ms)
        elif kind == "mismatch":
            self._counts["mismatch"] += 1
        elif kind == "host":
            self._stolen_s += record["stolen_s"]
            self._watched_s += record["to_s"] - record["from_s"]
            self._counts["drops"] += record["backlog_drops"]

    def states(self) -> dict[str, State]:
        """Return the state of each check so far, keyed by its measure in the verdict; checks
        without enough to judge are valid."""
        return {
            result.measure: result.state(self._limits.degraded_factor) for result in self._results()
        }

    def _results(self) -> Iterator[CheckResult]:
        limits = self._limits
        yield CheckResult("read_back", "", float(self._counts["mismatch"]), 0.0)
        ratio = max(map(self._ratio_error, self._busy.values()), default=0.0)
        yield CheckResult("link_ratio", "", ratio, limits.ratio_deviation)
        yield CheckResult("lateness_max_ms", "", self._latest_ms, limits.lateness_max_ms)
        overran = self._overran / self._steps if self._steps >= LEAST_STEPS else None
        yield CheckResult("overrun_share", "", overran, limits.overrun_share)
        stolen = self._stolen_s / (self._watched_s * self._processors) if self._watched_s else None
        long = self._watched_s >= limits.busy_floor_s
        yield CheckResult("stolen_share", "", stolen if long else None, limits.stolen_share)
        drops = float(self._counts["drops"])
        yield CheckResult("foreign_drops", "", drops, limits.foreign_drops)

    def _ratio_error(self, busy: _BusyTotals) -> float:
        """Return |delivered / asked - 1|, less one packet at either end of each stretch."""
        if busy.seconds < self._limits.busy_floor_s or not busy.asked_bits:
            return 0.0
        slack = 2 * 8 * FRAME_BYTES * busy.rows / busy.asked_bits
        return max(0.0, abs(busy.delivered_bits / busy.asked_bits - 1) - slack)
