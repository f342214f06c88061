"""Algorithms against a baseline over several seeds: differences and ratios paired by seed, with 95 % intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

from analysis.statistics import Interval, interval, ratio

MEASURES = ("time_s", "accuracy", "bytes_up", "bytes_down")
"""What is compared; keys of a run's entry."""
MARGIN = 0.005
"""Of accuracy: half a point."""

Entry = Mapping[str, Any]
BySeed = Mapping[int, float]
Inferiority = Literal["not inferior", "inferior", "not decided"]


@dataclass(frozen=True, slots=True)
class Paired:
    """``algorithm`` against ``baseline`` over their common seeds, of which there are ``pairs``.

    ``difference``: own minus baseline's. ``speedup``: baseline's ÷ own, geometric mean; of times only.
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
        """Whether no difference lies outside the interval."""
        return self.difference.leaves_out(0.0)

    def sentence(self) -> str:
        """The comparison in words."""
        mean = self.difference.mean or 0.0
        share = f" ({mean / self.baseline_mean:+.1%})" if self.baseline_mean else ""
        about = f"{self.algorithm} against {self.baseline}, {self.measure}: {mean:+.4g}"
        if self.difference.high is None:
            return f"{about}{share}{self._ratio()}, one pair: no interval"
        kind = "" if self.differs else "; the interval includes no difference"
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
    """Every algorithm against ``baseline`` (the first one by default); invalid runs are left out."""
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
    """Of the seeds that both have; None without one."""
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
    """What the interval of own minus baseline's accuracy says of a loss of more than ``margin``."""
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
