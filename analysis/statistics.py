"""Intervals by Student's t (95 %), algorithms against a baseline paired by seed, and time to an
accuracy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import exp, isfinite, log, sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal

from analysis import MARGIN
from testbed.fidelity.summary import LEVELS, first_reached
from testbed.records.run_directory import MANIFEST, read_events, read_json


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean and its 95 % interval. ``low``, ``high`` None: of one value, or none. ``mean`` None:
    of none."""

    mean: float | None = None
    low: float | None = None
    high: float | None = None

    def to_json(self) -> dict[str, float | None]:
        """``mean``, ``low``, ``high``."""
        return asdict(self)

    def leaves_out(self, value: float) -> bool:
        """Return whether ``value`` is outside; False without an interval."""
        if self.low is None or self.high is None:
            return False
        return not self.low <= value <= self.high

    def through(self, function: Callable[[float], float]) -> Interval:
        """Mean and ends through a rising function."""
        return Interval(
            *(None if end is None else function(end) for end in (self.mean, self.low, self.high))
        )


ONE = Interval(1.0, 1.0, 1.0)
_SAME = 1.05
"""Speeds within this factor are called alike."""


def interval(values: Sequence[float | None]) -> Interval:
    """Return the interval of the values that are known and finite: mean ± t(0.975, n − 1) · s /
    √n."""
    known = [float(value) for value in values if value is not None and isfinite(value)]
    if not known:
        return Interval()
    mean = fmean(known)
    if len(known) < 2:
        return Interval(mean)
    half = _quantile(len(known) - 1) * stdev(known) / sqrt(len(known))
    return Interval(mean, mean - half, mean + half)


def ratio(above: Sequence[float], below: Sequence[float]) -> Interval:
    """Geometric mean of ``above`` ÷ ``below``, pair by pair, with the interval of its logarithm.

    Pairs of which a number is not positive have no ratio and are left out.
    """
    pairs = zip(above, below, strict=True)
    return interval([log(a / b) for a, b in pairs if a > 0 and b > 0]).through(exp)


def _quantile(freedom: int) -> float:
    """Return Student's t at 97.5 %. scipy.stats calls the same function, but takes a second longer
    to import."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.975))


MEASURES = ("time_s", "accuracy", "bytes_up", "bytes_down")
"""Measures that are compared; keys of a run's entry."""

Entry = Mapping[str, Any]
BySeed = Mapping[int, float]
Inferiority = Literal["not inferior", "inferior", "not decided"]


@dataclass(frozen=True, slots=True)
class Paired:
    """``algorithm`` against ``baseline`` over their common seeds, of which there are ``pairs``.

    ``difference``: own minus baseline's. ``speedup``: baseline's ÷ own, geometric mean; of times
    only.
    """

    algorithm: str
    baseline: str
    measure: str
    pairs: int
    baseline_mean: float
    difference: Interval
    speedup: Interval | None = None

    @property
    def differs(self) -> bool:
        """Return whether no difference lies outside the interval: of the speed-up, where there is
        one, so that sentence and speed-up agree."""
        if self.speedup is None or self.speedup.mean is None:
            return self.difference.leaves_out(0.0)
        return self.speedup.leaves_out(1.0)

    def sentence(self) -> str:
        """The comparison in words."""
        mean = self.difference.mean or 0.0
        share = f" ({mean / self.baseline_mean:+.1%})" if self.baseline_mean else ""
        about = f"{self.algorithm} against {self.baseline}, {self.measure}: {mean:+.4g}"
        if self.difference.high is None:
            return f"{about}{share}{self._ratio()}, one pair: no interval"
        kind = "" if self.differs else "; the interval includes no difference"
        if self.differs != self.difference.leaves_out(0.0):
            kind = f"; by the speed-up they {'differ' if self.differs else 'may be alike'}"
        half = self.difference.high - mean
        return f"{about} ± {half:.2g}{share}{self._ratio()}, {self.pairs} pairs{kind}"

    def to_json(self) -> dict[str, Any]:
        """All fields and whether they differ."""
        return {
            "algorithm": self.algorithm,
            "baseline": self.baseline,
            "measure": self.measure,
            "pairs": self.pairs,
            "baseline_mean": self.baseline_mean,
            **self.difference.to_json(),
            "speedup": None if self.speedup is None else self.speedup.to_json(),
            "differs": self.differs,
        }

    def _ratio(self) -> str:
        return "" if self.speedup is None else f", speed-up {times(self.speedup)}"


def paired(entries: Sequence[Entry], baseline: str | None = None) -> list[Paired]:
    """Every algorithm against ``baseline`` (the first one by default); invalid runs are left
    out."""
    names = list(dict.fromkeys(entry["algorithm"] for entry in entries))
    if not names:
        return []
    kept, against = sound(entries), baseline or names[0]
    return [
        result
        for name in names
        if name != against
        for measure in MEASURES
        if (result := _pair_entries(kept, name, against, measure)) is not None
    ]


def sound(entries: Sequence[Entry]) -> list[Entry]:
    """Those that count: runs that ended, and whose links were what was asked for."""
    return [entry for entry in entries if entry["verdict"] != "invalid"]


def pair(name: str, baseline: str, measure: str, mine: BySeed, theirs: BySeed) -> Paired | None:
    """Compare the seeds that both have; None without one."""
    seeds = sorted(set(mine) & set(theirs))
    if not seeds:
        return None
    own, other = [mine[seed] for seed in seeds], [theirs[seed] for seed in seeds]
    return Paired(
        algorithm=name,
        baseline=baseline,
        measure=measure,
        pairs=len(seeds),
        baseline_mean=fmean(other),
        difference=interval([a - b for a, b in zip(own, other, strict=True)]),
        speedup=ratio(other, own) if measure.startswith("time") else None,
    )


def inferiority(difference: Interval, margin: float = MARGIN) -> Inferiority:
    """Return what the interval of own minus baseline's accuracy says of a loss of more than
    ``margin``."""
    if difference.low is not None and difference.low > -margin:
        return "not inferior"
    if difference.high is not None and difference.high < -margin:
        return "inferior"
    return "not decided"


def times(speedup: Interval) -> str:
    """A ratio as people read it."""
    if speedup.mean is None:
        return "–"
    if speedup.low is None or speedup.high is None:
        return f"{speedup.mean:.3g}×"
    return f"{speedup.mean:.3g}× [{speedup.low:.3g}, {speedup.high:.3g}]"


def as_fast(speedup: Interval, baseline: str) -> str:
    """Say how fast it is against ``baseline``, with as many digits of the mean as of its ends."""
    if speedup.mean is None:
        return f"not compared with {baseline}: no seed has a run of both that counts"
    mean, low, high = speedup.mean, speedup.low, speedup.high
    if slow := mean < 1 / _SAME:
        mean = 1 / mean
        low, high = (None if end is None else 1 / end for end in (high, low))
    between = "" if low is None else f" (95 % interval {low:.3g} to {high:.3g})"
    if 1 / _SAME < mean < _SAME:
        return f"as fast as {baseline}{between}"
    return f"{mean:.3g} times as {'slow' if slow else 'fast'} as {baseline}{between}"


def _pair_entries(entries: Sequence[Entry], name: str, against: str, measure: str) -> Paired | None:
    mine, theirs = (
        {
            entry["seed"]: float(entry[measure])
            for entry in entries
            if entry["algorithm"] == which and entry[measure] is not None
        }
        for which in (name, against)
    )
    return pair(name, against, measure, mine, theirs)


@dataclass(frozen=True, slots=True)
class Reached:
    """``algorithm`` at a target: ``reached`` of ``seeds`` sound runs did, after ``time_s`` (model
    seconds).

    ``paired``: against the baseline, of the seeds with which both reached it; None of the baseline,
    or without one.
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
        """Describe the result in sentences."""
        said = [] if self.paired is None else [self.paired.sentence()]
        if self.reached < self.seeds:
            how = f"reached by {self.reached} of {self.seeds} seeds"
            said.append(f"{self.algorithm}, accuracy {self.target:g}: {how}")
        return said


Times = Mapping[str, Mapping[int, float | None]]


def targets(
    entries: Sequence[Entry], baseline: str, requested: Sequence[float] = ()
) -> dict[str, list[Reached]]:
    """Return the results of each algorithm at every target asked for, ascending.

    Without any: at the usual levels that every sound run of the algorithm and of the baseline
    reached. ``entries``: summaries, whose ``dir`` is where the run is.
    """
    kept = sound(entries)
    names = list(dict.fromkeys(str(entry["algorithm"]) for entry in entries))
    results: dict[str, list[Reached]] = {name: [] for name in names}
    for target in sorted(set(requested or LEVELS)):
        times = {name: _times(kept, name, target) for name in names}
        for name in names:
            if requested or _everybody(times, name, baseline):
                results[name].append(_reached(times, name, baseline, target))
    return results


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


def highest(results: Mapping[str, Sequence[Reached]]) -> float | None:
    """The highest target that all algorithms have: the one to show where there is room for one."""
    common = [{each.target for each in reached} for reached in results.values()]
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
