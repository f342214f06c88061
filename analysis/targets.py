"""Time to an accuracy: who reached it, when, and how much sooner than the baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.paired import Entry, Paired, pair, sound
from analysis.statistics import ONE, Interval, interval
from testbed.record.directory import MANIFEST, read_events, read_json
from testbed.record.summary import LEVELS, first_reached


@dataclass(frozen=True, slots=True)
class Reached:
    """``algorithm`` at a target: ``reached`` of ``seeds`` sound runs did, after ``time_s`` (model seconds).

    ``paired``: against the baseline, of the seeds with which both reached it; None of the baseline, or without one.
    """

    algorithm: str
    target: float
    reached: int
    seeds: int
    time_s: Interval
    paired: Paired | None
    is_baseline: bool = False

    @property
    def speedup(self) -> Interval:
        """Baseline's time ÷ own."""
        if self.is_baseline:
            return ONE
        return Interval() if self.paired is None else self.paired.speedup or Interval()

    def to_json(self) -> dict[str, Any]:
        """Seeds that reached it, their time; of the pairs the difference and the speed-up."""
        return {
            "reached": self.reached,
            "seeds": self.seeds,
            "time_s": self.time_s.to_json(),
            "difference": None if self.paired is None else self.paired.difference.to_json(),
            "speedup": self.speedup.to_json(),
            "pairs": self.reached if self.is_baseline else self.paired.pairs if self.paired else 0,
        }

    def sentences(self) -> list[str]:
        """What is to be said of it."""
        said = [] if self.paired is None else [self.paired.sentence()]
        if self.reached < self.seeds:
            how = f"reached by {self.reached} of {self.seeds} seeds"
            said.append(f"{self.algorithm}, accuracy {self.target:g}: {how}")
        return said


Times = Mapping[str, Mapping[int, float | None]]


def targets(
    entries: Sequence[Entry], baseline: str, asked: Sequence[float] = ()
) -> dict[str, list[Reached]]:
    """By algorithm, at every target asked for, ascending.

    Without any: at the usual levels that every sound run of the algorithm and of the baseline reached.
    ``entries``: summaries, whose ``dir`` is where the run is.
    """
    kept = sound(entries)
    names = list(dict.fromkeys(str(entry["algorithm"]) for entry in entries))
    found: dict[str, list[Reached]] = {name: [] for name in names}
    for target in sorted(set(asked or LEVELS)):
        times = {name: _times(kept, name, target) for name in names}
        for name in names:
            if asked or _everybody(times, name, baseline):
                found[name].append(_reached(times, name, baseline, target))
    return found


def time_to(summary: Entry, target: float) -> float | None:
    """Model seconds until the first evaluation at or above ``target``; None if there is none."""
    if target in LEVELS:
        return first(summary["time_to_accuracy_s"].get(f"{target:g}"))
    directory = Path(summary["dir"])
    evaluations = read_events(directory).get("evaluation", [])
    dilation = float(read_json(directory / MANIFEST)["dilation"])
    return first_reached(evaluations, target, dilation)


def first(time_s: Any) -> float | None:
    """A time out of a summary."""
    return None if time_s is None else float(time_s)


def highest(found: Mapping[str, Sequence[Reached]]) -> float | None:
    """The highest target that all algorithms have: the one to show where there is room for one."""
    common = [{each.target for each in reached} for reached in found.values()]
    return max(set.intersection(*common), default=None) if common else None


def _times(entries: Sequence[Entry], name: str, target: float) -> dict[int, float | None]:
    return {e["seed"]: time_to(e, target) for e in entries if e["algorithm"] == name}


def _everybody(times: Times, name: str, baseline: str) -> bool:
    both = [*times[name].values(), *times[baseline].values()]
    return bool(times[name]) and bool(times[baseline]) and None not in both


def _reached(times: Times, name: str, baseline: str, target: float) -> Reached:
    mine, theirs = (
        {seed: time_s for seed, time_s in times[which].items() if time_s is not None}
        for which in (name, baseline)
    )
    measure = f"time to accuracy {target:g}"
    return Reached(
        algorithm=name,
        target=target,
        reached=len(mine),
        seeds=len(times[name]),
        time_s=interval(list(mine.values())),
        paired=None if name == baseline else pair(name, baseline, measure, mine, theirs),
        is_baseline=name == baseline,
    )
