"""Algorithms against a baseline over several seeds: differences paired by seed, with 95 % intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import sqrt
from statistics import fmean, stdev
from typing import Any

MEASURES = ("time_s", "accuracy", "bytes_up", "bytes_down")
"""What is compared; keys of a run's entry."""

Entry = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Paired:
    """Mean of ``algorithm`` minus ``baseline`` over their common seeds, with the interval's half width.

    ``half`` None: fewer than two pairs. ``differs``: the interval leaves out no difference.
    """

    algorithm: str
    baseline: str
    measure: str
    pairs: int
    baseline_mean: float
    mean: float
    half: float | None

    @property
    def differs(self) -> bool:
        """Whether no difference lies outside the interval."""
        return self.half is not None and abs(self.mean) > self.half

    def sentence(self) -> str:
        """The comparison in words."""
        about = f"{self.algorithm} against {self.baseline}, {self.measure}"
        share = self.mean / self.baseline_mean if self.baseline_mean else float("nan")
        if self.half is None:
            return f"{about}: {self.mean:+.4g} ({share:+.1%}), one pair: no interval"
        kind = "" if self.differs else "; the interval includes no difference"
        return (
            f"{about}: {self.mean:+.4g} ± {self.half:.2g} ({share:+.1%}), {self.pairs} pairs{kind}"
        )

    def to_json(self) -> dict[str, Any]:
        """All fields and whether they differ."""
        return {**asdict(self), "differs": self.differs}


def paired(entries: Sequence[Entry], baseline: str | None = None) -> list[Paired]:
    """Every algorithm against ``baseline`` (the first one by default); invalid runs are left out."""
    sound = [entry for entry in entries if entry["verdict"] != "invalid"]
    names = list(dict.fromkeys(entry["algorithm"] for entry in sound))
    if not names:
        return []
    against = baseline or names[0]
    return [
        result
        for name in names
        if name != against
        for measure in MEASURES
        if (result := _pair(sound, name, against, measure)) is not None
    ]


def _pair(entries: Sequence[Entry], name: str, baseline: str, measure: str) -> Paired | None:
    mine, theirs = (
        {entry["seed"]: entry[measure] for entry in entries if entry["algorithm"] == which}
        for which in (name, baseline)
    )
    seeds = sorted(
        seed
        for seed in set(mine) & set(theirs)
        if mine[seed] is not None and theirs[seed] is not None
    )
    if not seeds:
        return None
    differences = [mine[seed] - theirs[seed] for seed in seeds]
    return Paired(
        algorithm=name,
        baseline=baseline,
        measure=measure,
        pairs=len(seeds),
        baseline_mean=fmean(theirs[seed] for seed in seeds),
        mean=fmean(differences),
        half=_half_width(differences),
    )


def _half_width(differences: Sequence[float]) -> float | None:
    """Half the 95 % interval of the mean, by Student's t."""
    if len(differences) < 2:
        return None
    from scipy.stats import t

    quantile = float(t.ppf(0.975, len(differences) - 1))
    return quantile * stdev(differences) / sqrt(len(differences))
