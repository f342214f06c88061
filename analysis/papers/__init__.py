"""Verdicts on published claims, from the runs that test them, and the pages that say so.

A *record* is what a page needs of one run: measures of its summary, evaluations, and the course of
density and accuracy. Pages are made of records alone, which lie beside them as JSON, so that every
number of a page can be made again without a run.

A claim has one value for each seed, larger where it is truer. The two-sided p-value is Student's;
Holm's correction over all claims of a page keeps the chance of any wrong verdict at 5 %.
Differences and ratios are paired by seed (docs/how-to/comparing.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, log, sqrt
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

from analysis import MARGIN
from analysis.statistics import Interval, inferiority, interval, ratio, sound
from testbed.errors import InputError
from testbed.records.run_directory import COMPARISON, MANIFEST, SUMMARY, read_events, read_json
from testbed.records.stored import Record

HOLDS, NOT, OPEN = "holds", "does not", "not supported"
CHOSEN = "by construction"
"""In place of ``holds``, where the rules were chosen so that it should."""
LEVEL = 0.05
"""The chance of any wrong verdict on a page."""
_EARLY, _LATE = 0.1, 0.5
"""Shares of a run's steps: the first tenth, and the second half."""
_PIECES = 30
"""Values along a run that a record keeps of a course, at least (if there are as many steps)."""
_MEASURES = ("time_s", "step_s", "accuracy", "mean_k", "bytes_up", "bytes_down", "phases_s")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a page. ``measured``: in the claim's unit."""

    claim: str
    paper: str
    measured: str
    verdict: str


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim and its values, one for each seed.

    It holds where their mean is at least ``reach`` and the values lie above ``least``; it does not
    where the mean is less and they lie below ``most``.
    """

    text: str
    paper: str
    values: tuple[float, ...]
    form: Callable[[float], str]
    """A value as the page has it."""
    least: float = 0.0
    most: float = 0.0
    reach: float = 0.0
    chosen: bool = False
    """Rules were chosen so that it holds."""

    @property
    def candidate(self) -> str:
        """The verdict that the mean points to."""
        return HOLDS if self.values and fmean(self.values) >= self.reach else NOT

    @property
    def p(self) -> float:
        """Two-sided p-value of that verdict; 1 of fewer than two values."""
        if len(self.values) < 2:
            return 1.0
        bound, sign = (self.least, 1) if self.candidate == HOLDS else (self.most, -1)
        away = sign * (fmean(self.values) - bound)
        spread = stdev(self.values) / sqrt(len(self.values))
        if spread < 1e-12:
            return 0.0 if away > 0 else 1.0
        return min(1.0, 2 * _beyond(away / spread, len(self.values) - 1))

    @property
    def measured(self) -> str:
        """Mean and 95 % interval."""
        estimate = interval(self.values)
        ends = ("–" if end is None else self.form(end) for end in (estimate.low, estimate.high))
        return f"{'–' if estimate.mean is None else self.form(estimate.mean)} [{', '.join(ends)}]"


def _beyond(t: float, freedom: int) -> float:
    from scipy.special import stdtr

    return float(stdtr(freedom, -t))


def judge(claims: Sequence[Claim]) -> list[Row]:
    """Return a row for every claim; verdicts by Holm's step-down procedure over all of them."""
    order = sorted(range(len(claims)), key=lambda index: claims[index].p)
    verdicts = [OPEN] * len(claims)
    for turn, index in enumerate(order):
        if claims[index].p * (len(claims) - turn) > LEVEL:
            break
        verdicts[index] = claims[index].candidate
    return [
        Row(c.text, c.paper, c.measured, CHOSEN if c.chosen and verdict == HOLDS else verdict)
        for c, verdict in zip(claims, verdicts, strict=True)
    ]


def percent(value: float) -> str:
    """A difference of shares, in points."""
    return f"{100 * value:+.2f} points"


def saving(log_ratio: float) -> str:
    """Share of time saved, of log(their time ÷ own)."""
    return f"{1 - exp(-log_ratio):.1%}"


def factor(log_ratio: float) -> str:
    """A ratio, of its logarithm."""
    return f"{exp(log_ratio):.2f}×"


def saves(text: str, paper: str, values: Sequence[float], share: float) -> Claim:
    """Claim that a ``share`` of time is saved; ``values``: log(their time ÷ own). All of it must be
    above half of the share to hold, or below the share not to."""
    half, whole = -log(1 - share / 2), -log(1 - share)
    return Claim(text, paper, tuple(values), saving, least=half, most=whole, reach=whole)


def times_as_fast(text: str, paper: str, values: Sequence[float], claimed: float) -> Claim:
    """Claim to be ``claimed`` times as fast, likewise."""
    half, whole = log(1 + (claimed - 1) / 2), log(claimed)
    return Claim(text, paper, tuple(values), factor, least=half, most=whole, reach=whole)


def keeps(text: str, paper: str, values: Sequence[float], margin: float = MARGIN) -> Claim:
    """Claim that accuracy is not lost: own minus theirs is not below −``margin``."""
    return Claim(text, paper, tuple(values), percent, -margin, -margin, -margin)


def condensed(run: Path, skip: int = 0) -> dict[str, Any]:
    """Return the record of a finished run: times in model seconds, courses as means of pieces of
    ``every`` steps. ``skip``: first steps that pay for what is loaded; where there are any,
    ``step_s`` is the median of the others."""
    summary, manifest = read_json(run / SUMMARY), read_json(run / MANIFEST)
    events = read_events(run, {"step", "evaluation", "fit"})
    dilation, steps = float(manifest["dilation"]), events.get("step", [])
    count = max((int(step["step"]) for step in steps), default=0)
    every = max(1, count // _PIECES)
    evaluations = sorted(
        (int(e["step"]), _short(e["time_s"] / dilation), _short(e["accuracy"]))
        for e in events.get("evaluation", [])
    )
    return {
        "algorithm": summary["algorithm"],
        "seed": summary["seed"],
        "verdict": summary["verdict"],
        **{name: _rounded(summary.get(name)) for name in _MEASURES},
        "steps": count,
        "every": every,
        "density": _course(steps, "density", every, count),
        "train": _course(steps, "accuracy", every, count),
        "evaluations": [list(evaluation) for evaluation in evaluations],
        "fits": _fits(events.get("fit", [])),
        "run": run.name,
        "scenario_hash": manifest["scenario_hash"],
        "commit": (manifest["machine"]["commit"] or {}).get("hash"),
        **(_without_first(steps, skip, dilation, manifest["fabric"]) if skip else {}),
    }


def _without_first(
    steps: Iterable[Record], skip: int, dilation: float, fabric: str
) -> dict[str, Any]:
    """The median of the steps after ``skip``, and how long each took: means over workers."""
    by_step: dict[int, list[float]] = {}
    for step in steps:
        length = (float(step["end_s"]) - float(step["start_s"])) / dilation
        by_step.setdefault(int(step["step"]), []).append(length)
    lengths = [_short(fmean(by_step[number])) for number in sorted(by_step)]
    return {
        "step_s": median(lengths[skip:]) if len(lengths) > skip else None,
        "lengths_s": lengths,
        "skip": skip,
        "fabric": fabric,
    }


def brief(record: Record) -> dict[str, Any]:
    """Return a record without its courses: the decline of its density in place of them."""
    kept = ("algorithm", "seed", "verdict", "time_s", "accuracy", "mean_k", "commit")
    declined = _short(decline(record["density"]))
    return {**{name: record[name] for name in kept}, "decline": declined}


def _course(steps: Iterable[Record], name: str, every: int, count: int) -> list[float]:
    sums, counts = [0.0] * -(-count // every), [0] * -(-count // every)
    for step in steps:
        piece = (int(step["step"]) - 1) // every
        sums[piece] += float(step[name])
        counts[piece] += 1
    return [_short(total / most) for total, most in zip(sums, counts, strict=True) if most]


def _fits(fits: Iterable[Record]) -> list[list[Any]]:
    """Step, parameter, its elements, and the distances without unit to a Laplace and a normal
    distribution, means over workers."""
    grouped: dict[tuple[int, str, int], list[tuple[float, float]]] = {}
    for fit in fits:
        key = (int(fit["step"]), str(fit["bucket"]), int(fit["size"]))
        grouped.setdefault(key, []).append((float(fit["laplace"]), float(fit["normal"])))
    return [
        [*key, _short(fmean(pair[0] for pair in pairs)), _short(fmean(pair[1] for pair in pairs))]
        for key, pairs in sorted(grouped.items())
    ]


def _short(value: float) -> float:
    return float(f"{value:.6g}")


def _rounded(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _rounded(each) for name, each in value.items()}
    return _short(value) if isinstance(value, float) else value


class Runs:
    """The sound runs among ``records``: a value for every algorithm and seed."""

    def __init__(self, records: Iterable[Record]) -> None:
        self._kept = sound(list(records))

    @classmethod
    def read(cls, comparison: Path) -> Runs:
        """Return the runs of a comparison's directory."""
        entries = read_json(comparison / COMPARISON)["runs"]
        return cls(condensed(Path(entry["dir"])) for entry in entries)

    def names(self) -> list[str]:
        """Algorithms, in the order of the comparison."""
        return list(dict.fromkeys(str(each["algorithm"]) for each in self._kept))

    def of(self, algorithm: str) -> list[Record]:
        """Records of an algorithm. Raises InputError where there is no such run."""
        if own := [each for each in self._kept if each["algorithm"] == algorithm]:
            return own
        raise InputError(f"the comparison has no sound run of {algorithm!r}")

    def values(self, algorithm: str, measure: str) -> dict[int, float]:
        """Return a measure by seed. Raises InputError where there is no such run."""
        return {int(each["seed"]): float(each[measure]) for each in self.of(algorithm)}

    def reached(self, algorithm: str, accuracy: float) -> dict[int, tuple[float, int]]:
        """Return, by seed, model seconds and steps to the first evaluation of at least
        ``accuracy``; seeds without one are left out."""
        by_seed = {}
        for each in self._kept:
            if each["algorithm"] == algorithm and (at := _first(each, accuracy)) is not None:
                by_seed[int(each["seed"])] = at
        return by_seed

    def faster(self, mine: str, theirs: str, accuracy: float | None = None) -> list[float]:
        """Return log(their time ÷ mine) by seed: to ``accuracy``, of seeds that reach it with both;
        or of whole runs."""
        if accuracy is None:
            own, other = self.values(mine, "time_s"), self.values(theirs, "time_s")
        else:
            own, other = (
                {seed: at[0] for seed, at in self.reached(name, accuracy).items()}
                for name in (mine, theirs)
            )
        return [log(other[seed] / own[seed]) for seed in sorted(set(own) & set(other))]

    def differences(self, mine: str, theirs: str, measure: str) -> list[float]:
        """Return mine minus theirs by seed."""
        a, b = self._pairs(mine, theirs, measure)
        return [x - y for x, y in zip(a, b, strict=True)]

    def sooner(self, mine: str, theirs: str, accuracy: float) -> Interval:
        """Share of their time to ``accuracy`` that mine does not take, of the seeds with which both
        reach it."""
        logs = self.faster(mine, theirs, accuracy)
        return _saved(interval([-each for each in logs]).through(exp))

    def difference(self, mine: str, theirs: str, measure: str) -> Interval:
        """Mine minus theirs."""
        return interval(self.differences(mine, theirs, measure))

    def saved(self, mine: str, theirs: str) -> Interval:
        """Share of their time that mine does not take."""
        return _saved(ratio(*self._pairs(mine, theirs, "time_s")))

    def declines(self, algorithm: str, skip: int = 0) -> list[float]:
        """Mean density of the first tenth of the steps minus that of the second half, by seed.
        ``skip``: steps that do not count."""
        return [
            decline(each["density"][-(-skip // int(each["every"])) :])
            for each in self.of(algorithm)
        ]

    def decline(self, algorithm: str) -> Interval:
        """The interval of ``declines``."""
        return interval(self.declines(algorithm))

    def _pairs(self, mine: str, theirs: str, measure: str) -> tuple[list[float], list[float]]:
        a, b = self.values(mine, measure), self.values(theirs, measure)
        seeds = sorted(set(a) & set(b))
        return [a[seed] for seed in seeds], [b[seed] for seed in seeds]


@dataclass(frozen=True, slots=True)
class Results:
    """Records of runs by group, and rows of measurements by part: a page is made of them."""

    groups: Mapping[str, Sequence[Record]] = field(default_factory=dict)
    measured: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    gpu: Results | None = None
    """Those of the size ``gpu``, where the page's folder has them."""

    def runs(self, group: str) -> Runs:
        """Return the runs of a group. Raises InputError for one that has none."""
        if group not in self.groups:
            raise InputError(
                f"no runs of {group!r}", hint=f"There are: {', '.join(self.groups) or 'none'}"
            )
        return Runs(self.groups[group])


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


def page(rows: Sequence[Row]) -> str:
    """A table in Markdown."""
    head = ["| claim | paper | here: mean [95 % interval] | |", "| --- | --- | --- | --- |"]
    return "\n".join(
        head + [f"| {r.claim} | {r.paper} | {r.measured} | **{r.verdict}** |" for r in rows]
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


Sections = Mapping[str, str]
"""Text of each marked part of a page, by its mark."""


def overview(results: Results) -> Sections:
    """A table for every group of runs: the page of a size by which no claims are judged."""
    head = "algorithm|seeds|time (s)|times as fast as the first|accuracy|MB up / down"
    sections = {}
    for group in results.groups:
        runs, rows = results.runs(group), []
        for name in (names := runs.names()):
            own = runs.of(name)
            speed = interval(runs.faster(name, names[0])).through(exp)
            sent = (fmean(each[key] for each in own) / 1e6 for key in ("bytes_up", "bytes_down"))
            times, accuracies = ([each[of] for each in own] for of in ("time_s", "accuracy"))
            cells = [f"`{name}`", str(len(own)), written(interval(times), "{:.1f}")]
            cells += [written(speed, "{:.2f}"), written(interval(accuracies), "{:.2%}")]
            rows.append([*cells, " / ".join(f"{each:.1f}" for each in sent)])
        sections[group] = f"## {group}\n\n{table(head.split('|'), rows)}"
    return sections


def with_figure(text: str, name: str, caption: str) -> str:
    """A section with the figure ``name`` under it, which lies in the page's folder."""
    return f"{text}\n\n![{caption}]({name}.png)\n\n*{caption}.*"


def between_marks(text: str, sections: Sections) -> str:
    """Return the page ``text`` with each section between ``<!-- NAME -->`` and ``<!-- end NAME
    -->``.

    Raises InputError for a section whose marks the page does not have.
    """
    for name, content in sections.items():
        begin, end = f"<!-- {name} -->", f"<!-- end {name} -->"
        head, mark, rest = text.partition(begin)
        _, closed, tail = rest.partition(end)
        if not mark or not closed:
            raise InputError(f"the page has no {begin} … {end}", hint="Add the two lines")
        text = f"{head}{begin}\n\n{content}\n\n{end}{tail}"
    return text


def gpu_setup(results: Results) -> str:
    """Where and when the runs of the size ``gpu`` were made, in a paragraph."""
    (device,) = results.measured["device"]
    record = next(each for records in results.groups.values() for each in records)
    commit, fabric = str(record["commit"])[:10], f"fabric `{record['fabric']}`"
    if record["fabric"] == "sim":
        fabric += " (computation measured, one worker at a time; links modelled)"
    return (
        f"Measured on a GPU: one {device['device']} for all workers, {fabric}, {device['date']}, "
        f"commit {commit}; the time of a step is the median without the first {record['skip']}. "
        "No pace: computation takes what it takes there."
    )


def gpu_speedup(results: Results, group: str, name: str, base: str = "none") -> str:
    """How many times as fast as ``base`` an algorithm's steps are; a dash: a run is invalid."""
    runs = {each["algorithm"]: each for each in sound(list(results.groups.get(group, ())))}
    pair = [runs[each] for each in (base, name) if each in runs]
    if len(pair) < 2 or None in (each["step_s"] for each in pair):
        return "–"
    worse = sorted({each["verdict"] for each in pair} - {"valid"})
    times = float(pair[0]["step_s"]) / float(pair[1]["step_s"])
    return f"{times:.2f}" + "".join(f" ({each})" for each in worse)


def gpu_steps(results: Results) -> str:
    """Every run of the size ``gpu``: verdict, step times, and what was sent."""
    head = "runs|algorithm|verdict|step (s)|speed-up|each step (s)|MB up / down"
    rows = []
    for group, records in results.groups.items():
        for each in records:
            step_s = "–" if each["step_s"] is None else f"{each['step_s']:.4g}"
            lengths = ", ".join(f"{length:.3g}" for length in each["lengths_s"])
            sent = " / ".join(f"{each[key] / 1e6:.4g}" for key in ("bytes_up", "bytes_down"))
            speed = gpu_speedup(results, group, each["algorithm"])
            cells = [f"`{each['algorithm']}`", each["verdict"], step_s, speed, lengths, sent]
            rows.append([group, *cells])
    return table(head.split("|"), rows)


def _saved(share: Interval) -> Interval:
    ends = (share.mean, share.high, share.low)
    return Interval(*(None if end is None else 1 - end for end in ends))


def _first(record: Record, accuracy: float) -> tuple[float, int] | None:
    reached = (
        (float(time_s), int(step))
        for step, time_s, measured in record["evaluations"]
        if measured >= accuracy
    )
    return min(reached, default=None)


def decline(density: Sequence[float]) -> float:
    """Mean of the first tenth minus that of the second half."""
    early = max(1, round(_EARLY * len(density)))
    declined = fmean(density[:early]) - fmean(density[round(_LATE * len(density)) :])
    # means of the same number differ in their last bits, which would be a decline without variance
    return round(declined, 12)
