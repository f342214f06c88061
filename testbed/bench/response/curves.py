"""A run as the figures of ``testbed bench control`` see it: density, time and accuracy by step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from testbed.errors import ExperimentError
from testbed.record.directory import LINKS, read_events, read_jsonl

Rates = list[tuple[float, float]]
"""From when (s) which rate (bit/s) was asked for."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One run. Means over workers; step i of the lists is the run's step i + 1."""

    start_s: Sequence[float]
    end_s: Sequence[float]
    density: Sequence[float]
    """k: requested."""
    evaluated: Sequence[tuple[float, float, float]]
    """Step, time (s) and test accuracy of every evaluation."""

    @property
    def mean_k(self) -> float:
        """Over all steps."""
        return fmean(self.density)

    def reached(self, level: float) -> tuple[float, float] | None:
        """Step and time (s) at which accuracy comes to ``level``, on straight lines between evaluations; or None."""
        before: tuple[float, float, float] | None = None
        for step, time_s, accuracy in self.evaluated:
            if accuracy >= level:
                if before is None:
                    return step, time_s
                share = (level - before[2]) / (accuracy - before[2])
                return before[0] + share * (step - before[0]), before[1] + share * (
                    time_s - before[1]
                )
            before = step, time_s, accuracy
        return None

    def to_json(self) -> dict[str, Any]:
        """As a plain object."""
        return asdict(self)


def read(directory: Path) -> Curve:
    """From a run's records. Raises ExperimentError where there are no steps."""
    events = read_events(directory)
    by_step: dict[int, list[Mapping[str, Any]]] = {}
    for record in events.get("step", []):
        by_step.setdefault(int(record["step"]), []).append(record)
    if not by_step:
        raise ExperimentError(f"{directory} has no steps")
    start, end, density = (
        [fmean(float(record[key]) for record in records) for _, records in sorted(by_step.items())]
        for key in ("start_s", "end_s", "density")
    )
    found = sorted(
        (float(record["step"]), float(record["time_s"]), float(record["accuracy"]))
        for record in events.get("evaluation", [])
    )
    return Curve(start, end, density, found)


def asked(directory: Path) -> Rates:
    """What the server's downlink was asked to carry, whenever that was another rate than before."""
    rates: Rates = []
    for from_s, to_s, bits in _samples(read_jsonl(directory / LINKS)):
        rate = round(bits / (to_s - from_s))
        if not rates or abs(rate - rates[-1][1]) > 1e-3 * rates[-1][1]:
            rates.append((from_s, float(rate)))
    return rates


def _samples(records: Iterable[Mapping[str, Any]]) -> list[tuple[float, float, float]]:
    return sorted(
        (float(record["from_s"]), float(record["to_s"]), float(record["asked_bits"]))
        for record in records
        if record["kind"] == "sample"
        and (record["link"], record["direction"]) == ("server", "down")
        and record["to_s"] > record["from_s"]
    )
