"""A whole comparison as one object: what every algorithm came to, and how it did against the
baseline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from analysis import MARGIN
from analysis.statistics import (
    ONE,
    Entry,
    Inferiority,
    Interval,
    Paired,
    Reached,
    highest,
    inferiority,
    interval,
    paired,
    sound,
    targets,
)

COMPARED = "compared.json"


@dataclass(frozen=True, slots=True)
class ComparedOutcome:
    """One algorithm over its sound runs; times in model seconds. ``verdicts`` count all of its
    runs."""

    algorithm: str
    time_s: Interval
    speedup: Interval
    accuracy: Interval
    inferiority: Inferiority | None
    """Inferiority of its accuracy; None of the baseline, and where there is none."""
    bytes_up: float | None
    bytes_down: float | None
    mean_k: float | None
    verdicts: dict[str, int]
    targets: list[Reached] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """All but the targets."""
        return {key: value for key, value in asdict(self).items() if key != "targets"}


@dataclass(frozen=True, slots=True)
class Compared:
    """Algorithms in the order asked for, and pairs against ``baseline``; ``margin``: of
    accuracy."""

    scenario: str
    directory: Path
    baseline: str
    margin: float
    runs: list[dict[str, Any]]
    algorithms: list[ComparedOutcome]
    paired: list[Paired]
    every_target: bool = False
    """All targets are told of in words: they were asked for. Else each algorithm's highest."""

    @property
    def target(self) -> float | None:
        """The highest that all algorithms have."""
        return highest({outcome.algorithm: outcome.targets for outcome in self.algorithms})

    def loses(self, own: ComparedOutcome) -> bool:
        """Return whether its accuracy is inferior; where that is not decided, by the mean."""
        if own.inferiority != "not decided":
            return own.inferiority == "inferior"
        differences = [
            pair.difference.mean or 0.0
            for pair in self.paired
            if (pair.algorithm, pair.measure) == (own.algorithm, "accuracy")
        ]
        return any(difference < -self.margin for difference in differences)

    def to_json(self) -> dict[str, Any]:
        """As ``--json`` prints it."""
        return {
            "scenario": self.scenario,
            "baseline": self.baseline,
            "margin": self.margin,
            "algorithms": [outcome.to_json() for outcome in self.algorithms],
            "targets": {
                outcome.algorithm: {f"{each.target:g}": each.to_json() for each in outcome.targets}
                for outcome in self.algorithms
            },
            "paired": [result.to_json() for result in self.paired],
            "runs": self.runs,
            "directory": str(self.directory),
        }

    def sentences(self) -> Iterator[str]:
        """Everything in words: what was left out, pairs, accuracy against the margin, targets."""
        if invalid := sum(run["verdict"] == "invalid" for run in self.runs):
            yield f"{invalid} of {len(self.runs)} runs invalid: left out"
        for outcome in self.algorithms:
            for result in self.paired:
                if result.algorithm == outcome.algorithm:
                    yield self._said(result, outcome)
            for reached in outcome.targets if self.every_target else outcome.targets[-1:]:
                yield from reached.sentences()

    def _said(self, result: Paired, outcome: ComparedOutcome) -> str:
        if result.measure != "accuracy" or outcome.inferiority is None:
            return result.sentence()
        return f"{result.sentence()}; {outcome.inferiority}, by a margin of {self.margin:g}"


def compared(
    scenario: str,
    directory: Path,
    entries: Sequence[Entry],
    summaries: Sequence[Entry],
    *,
    baseline: str | None = None,
    asked_targets: Sequence[float] = (),
    margin: float = MARGIN,
    algorithms: Sequence[str] = (),
) -> Compared:
    """``entries``: of the runs, as they are listed; ``summaries``: theirs. ``algorithms``: in
    order, if not the runs'."""
    names = list(algorithms) or list(dict.fromkeys(str(e["algorithm"]) for e in entries))
    against = baseline or names[0]
    pairs = paired(summaries, against)
    reached = targets(summaries, against, asked_targets)
    return Compared(
        scenario=scenario,
        directory=directory,
        baseline=against,
        margin=margin,
        runs=[dict(entry) for entry in entries],
        algorithms=[
            _outcome(name, against, summaries, pairs, reached.get(name, []), margin)
            for name in names
        ],
        paired=pairs,
        every_target=bool(asked_targets),
    )


def _outcome(
    name: str,
    baseline: str,
    summaries: Sequence[Entry],
    pairs: Sequence[Paired],
    reached: list[Reached],
    margin: float,
) -> ComparedOutcome:
    all_of = [entry for entry in summaries if entry["algorithm"] == name]
    own = sound(all_of)
    against = {result.measure: result for result in pairs if result.algorithm == name}
    time, accuracy = against.get("time_s"), against.get("accuracy")
    up, down, mean_k = (_mean(own, key).mean for key in ("bytes_up", "bytes_down", "mean_k"))
    return ComparedOutcome(
        algorithm=name,
        time_s=_mean(own, "time_s"),
        speedup=ONE if name == baseline else (time and time.speedup) or Interval(),
        accuracy=_mean(own, "accuracy"),
        inferiority=None if accuracy is None else inferiority(accuracy.difference, margin),
        bytes_up=up,
        bytes_down=down,
        mean_k=mean_k,
        verdicts=dict(Counter(str(entry["verdict"]) for entry in all_of)),
        targets=reached,
    )


def _mean(entries: Sequence[Entry], key: str) -> Interval:
    return interval([entry[key] for entry in entries])
