"""Verdicts on published claims.

A claim, and what an interval says of it. Differences and ratios are paired by seed
(docs/how-to/comparing.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from analysis.load import load_all
from analysis.statistics import MARGIN, Interval, inferiority, interval, ratio, sound
from testbed.errors import InputError
from testbed.records.run_directory import COMPARISON, MANIFEST, SUMMARY, read_events, read_json

HOLDS, NOT, OPEN = "holds", "does not", "not supported"
_EARLY, _LATE = 0.1, 0.5
"""Shares of a run's steps: the first tenth, and the second half."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a page. ``measured``: in the claim's unit."""

    claim: str
    paper: str
    measured: str
    verdict: str


class Runs:
    """The sound runs of a comparison: a value for every algorithm and seed."""

    def __init__(self, comparison: Path) -> None:
        entries = read_json(comparison / COMPARISON)["runs"]
        summaries = [read_json(Path(entry["dir"]) / SUMMARY) for entry in entries]
        self._kept = sound(summaries)

    def names(self) -> list[str]:
        """Algorithms, in the order of the comparison."""
        return list(dict.fromkeys(str(each["algorithm"]) for each in self._kept))

    def values(self, algorithm: str, measure: str) -> dict[int, float]:
        """Return a measure by seed. Raises InputError where there is no such run."""
        by_seed = {
            int(each["seed"]): float(each[measure])
            for each in self._kept
            if each["algorithm"] == algorithm
        }
        if not by_seed:
            raise InputError(f"the comparison has no sound run of {algorithm!r}")
        return by_seed

    def reached(self, algorithm: str, accuracy: float) -> dict[int, tuple[float, int]]:
        """Return, by seed, model seconds and steps to the first evaluation of at least
        ``accuracy``; seeds without one are left out."""
        by_seed = {}
        for each in self._kept:
            if each["algorithm"] == algorithm and (at := _first(each, accuracy)) is not None:
                by_seed[int(each["seed"])] = at
        return by_seed

    def sooner(self, mine: str, theirs: str, accuracy: float) -> Interval:
        """Share of their time to ``accuracy`` that mine does not take, of the seeds with which both
        reach it."""
        own, other = self.reached(mine, accuracy), self.reached(theirs, accuracy)
        seeds = sorted(set(own) & set(other))
        return _saved(ratio([own[seed][0] for seed in seeds], [other[seed][0] for seed in seeds]))

    def difference(self, mine: str, theirs: str, measure: str) -> Interval:
        """Mine minus theirs."""
        a, b = self._pairs(mine, theirs, measure)
        return interval([x - y for x, y in zip(a, b, strict=True)])

    def saved(self, mine: str, theirs: str) -> Interval:
        """Share of their time that mine does not take."""
        return _saved(ratio(*self._pairs(mine, theirs, "time_s")))

    def decline(self, algorithm: str) -> Interval:
        """Mean density of the first tenth of the steps minus that of the second half, by seed."""
        paths = [Path(each["dir"]) for each in self._kept if each["algorithm"] == algorithm]
        return interval([_decline(run.per_step("density")) for run in load_all(paths)])

    def _pairs(self, mine: str, theirs: str, measure: str) -> tuple[list[float], list[float]]:
        a, b = self.values(mine, measure), self.values(theirs, measure)
        seeds = sorted(set(a) & set(b))
        return [a[seed] for seed in seeds], [b[seed] for seed in seeds]


def above(measured: Interval, bound: float = 0.0) -> str:
    """Judge the claim that something is above ``bound``."""
    if not measured.leaves_out(bound):
        return OPEN
    return HOLDS if (measured.mean or 0.0) > bound else NOT


def as_much(measured: Interval, claimed: float) -> str:
    """Judge the claim that so much is saved: the interval lies below it, or reaches it and is all
    above half of it, or neither."""
    if measured.low is None or measured.high is None:
        return OPEN
    if measured.high < claimed:
        return NOT
    return HOLDS if measured.low >= claimed / 2 else OPEN


def no_loss(measured: Interval, margin: float = MARGIN) -> str:
    """Judge the claim that accuracy is not lost, by non-inferiority."""
    said: Mapping[str, str] = {"not inferior": HOLDS, "inferior": NOT}
    return said.get(inferiority(measured, margin), OPEN)


def written(measured: Interval, form: str) -> str:
    """Mean and interval as a page has them."""
    ends = (measured.mean, measured.low, measured.high)
    mean, low, high = ("–" if end is None else form.format(end) for end in ends)
    return f"{mean} [{low}, {high}]"


def page(rows: list[Row]) -> str:
    """A table in Markdown."""
    head = ["| claim | paper | here: mean [95 % interval] | |", "| --- | --- | --- | --- |"]
    return "\n".join(
        head + [f"| {r.claim} | {r.paper} | {r.measured} | **{r.verdict}** |" for r in rows]
    )


def _saved(share: Interval) -> Interval:
    ends = (share.mean, share.high, share.low)
    return Interval(*(None if end is None else 1 - end for end in ends))


def _first(summary: Mapping[str, Any], accuracy: float) -> tuple[float, int] | None:
    reached = (
        evaluation[:2]
        for evaluation in _evaluations(Path(summary["dir"]))
        if evaluation[2] >= accuracy
    )
    return min(reached, default=None)


@cache
def _evaluations(run: Path) -> list[tuple[float, int, float]]:
    """Model seconds, step and accuracy of each."""
    dilation = float(read_json(run / MANIFEST)["dilation"])
    return [
        (
            float(evaluation["time_s"]) / dilation,
            int(evaluation["step"]),
            float(evaluation["accuracy"]),
        )
        for evaluation in read_events(run).get("evaluation", [])
    ]


def _decline(density: Any) -> float:
    early = max(1, round(_EARLY * len(density)))
    declined = np.mean(density[:early]) - np.mean(density[round(_LATE * len(density)) :])
    # means of the same number differ in their last bits, which would be a decline without variance
    return round(float(declined), 12)
