"""Series that the report's page draws, of runs that compare, as short columns of finite numbers,
and its table of steps by the link's rate.

Every series ends up as JSON in the page: numbers have four to six digits, a line has at most
``MOST_POINTS`` points (the least and the most of every stretch are kept), and times are seconds of
model time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from math import isfinite
from operator import itemgetter
from statistics import fmean
from typing import Any

import numpy as np

from analysis.figures import timeline
from analysis.figures.algorithms import phases
from analysis.figures.job import job_bytes, job_phases, job_steps, job_values
from analysis.load import Array, Run, by_algorithm, longest, lowest_seeds
from analysis.series import EndSamples, LinkBins, ends
from analysis.statistics import Interval
from analysis.tables import layer_rows
from analysis.timeline import middle
from testbed.fidelity.summary import step_bytes
from testbed.units import Rate

MOST_POINTS = 400
"""The most points of a line."""
MOST_VIEWS, MOST_BARS = 6, 400
"""The most algorithms of which one step is drawn, and the most bars of each node in it."""
MOST_CHANGES = 12
"""With more changes of the rate, steps are not told apart by it, and sentences give the range of k
alone."""
_WORKERS = 4
_DIGITS = 4
_VARIES = 1e-9
_SHORT_S = 1e-6
_FALL = 0.8
"""A rate that falls to less than this share of it has fallen."""

Column = list[float | None]
Points = list[Column]
"""Times, values, and more columns of the same length."""


def short(value: float | None, digits: int = _DIGITS) -> float | None:
    """``value`` with so many digits; None where it is not finite, as JSON has no such numbers."""
    if value is None or not isfinite(value):
        return None
    return float(f"{value:.{digits}g}")


def columns(*arrays: Iterable[float]) -> Points:
    """Arrays as columns; the first, of times, with more digits."""
    first, *others = arrays
    return [
        [short(float(value), _DIGITS + 2) for value in first],
        *([short(float(value)) for value in other] for other in others),
    ]


def thinned(
    times: Array, values: Array, *others: Array, most: int = MOST_POINTS
) -> tuple[Array, ...]:
    """At most ``most`` of the points, in their order: of every stretch of equally many points, the
    one with the least value and the one with the largest. ``others``: more values of each."""
    if len(times) <= most:
        return times, values, *others
    kept = set[int]()
    for part in np.array_split(np.arange(len(times)), most // 2):
        own = np.nan_to_num(values[part])
        kept |= {int(part[own.argmin()]), int(part[own.argmax()])}
    order = sorted(kept)
    return tuple(column[order] for column in (times, values, *others))


def watched_end(runs: Sequence[Run]) -> tuple[str, str]:
    """Return the link and the direction whose rates are drawn: to the server if its rate changes or
    none does; else that whose rate changes most."""
    run = longest(runs)
    first = run.server, "down"
    spans = {(end.link, end.direction): _span(end.samples) for end in ends(run)}
    if spans.get(first, 1.0) > 1 + _VARIES or not spans:
        return first
    return max(spans, key=lambda end: (spans[end] > 1 + _VARIES, spans[end], end == first))


def _span(samples: LinkBins) -> float:
    """Largest asked rate over the least one that is not an outage; 1 without samples."""
    rates = samples.requested[samples.requested > 0]
    return float(rates.max() / rates.min()) if len(rates) else 1.0


def rate_changes(run: Run, link: str, direction: str) -> list[tuple[float, float]]:
    """When the asked rate of a link direction became what it then was (bit/s), from t0 on: by the
    records of its changes. A sample in which it changed has the mean of several rates."""
    samples = EndSamples(run, link, direction).samples
    if not len(after := np.flatnonzero(samples.stop > 0)):
        return []
    start, stop, mean = (
        float(column[after[0]]) for column in (samples.start, samples.stop, samples.requested)
    )
    due = _changes_due(run, link, direction, start, float(samples.stop[-1]))
    early = [(time_s, rate) for time_s, rate in due if time_s < stop]
    changes = [(max(0.0, start), _rate_before(early, start, stop, mean))]
    for time_s, rate in due:
        if abs(rate - changes[-1][1]) > 1e-3 * max(rate, changes[-1][1]):
            changes.append((time_s, rate))
    return changes


def _changes_due(
    run: Run, link: str, direction: str, from_s: float, to_s: float
) -> list[tuple[float, float]]:
    """When changes of a link direction were due between the two, and the rates (bit/s) from then
    on."""
    every = [
        (float(record["due_s"]) / run.dilation, float(record["rate_bits"]) * run.dilation)
        for record in run.links
        if record["kind"] == "change" and (record["link"], record["direction"]) == (link, direction)
    ]
    return sorted((change for change in every if from_s < change[0] < to_s), key=itemgetter(0))


def _rate_before(
    changes: Sequence[tuple[float, float]], start: float, stop: float, mean: float
) -> float:
    """Return the rate at the start of a sample, from its mean and the ``changes`` in it."""
    edges = [*(time_s for time_s, _ in changes), stop]
    later = sum(
        rate * (end - begin)
        for (_, rate), (begin, end) in zip(changes, pairwise(edges), strict=True)
    )
    if edges[0] - start < _SHORT_S:  # too short to tell
        return changes[0][1]
    return max(0.0, (mean * (stop - start) - later) / (edges[0] - start))


def falls_and_rises(
    changes: Sequence[tuple[float, float]],
) -> list[tuple[float, float, float, bool]]:
    """When, until when, to what rate, and whether it fell: of changes that are large."""
    turns = []
    for index in range(1, len(changes)):
        (_, before), (time_s, rate) = changes[index - 1], changes[index]
        until_s = changes[index + 1][0] if index + 1 < len(changes) else float("inf")
        if rate < _FALL * before or before < _FALL * rate:
            turns.append((time_s, until_s, rate, rate < before))
    return turns


STRETCH_HEADINGS = ("From", "Rate", "Algorithm", "Steps", "Time of a step", "Delay", "k")


def stretches(runs: Sequence[Run]) -> list[list[str]]:
    """While the watched link had one rate: each algorithm's steps that began then, and their means;
    empty without changes of the rate, or with many."""
    end = watched_end(runs)
    changes = rate_changes(longest(runs), *end)
    if not 1 < len(changes) <= MOST_CHANGES:
        return []
    until_s = [*(time_s for time_s, _ in changes[1:]), float("inf")]
    cells = []
    for (from_s, rate), to_s in zip(changes, until_s, strict=True):
        for run in lowest_seeds(runs):
            starts = run.per_step("start_s")
            own = (starts >= from_s if from_s > changes[0][0] else starts < to_s) & (starts < to_s)
            lengths = run.per_step("end_s") - starts
            if not own.any():
                continue
            step, delay, k = (
                f"{values[own].mean():.3g}"
                for values in (lengths, run.per_step("delay_s"), run.per_step("density"))
            )
            first = [f"{from_s:.1f} s", rate_words(rate), run.algorithm, str(own.sum())]
            cells.append([*first, f"{step} s", f"{delay} s", k])
    return cells


def section_data(
    runs: Sequence[Run], results: Iterable[Mapping[str, Any]], target: float | None = None
) -> dict[str, Any]:
    """Everything that the page draws of ``runs``; ``results``: a row per algorithm, as
    ``result_row`` gives it; ``target``: an accuracy that all of them reached."""
    data: dict[str, Any] = {
        "algorithms": list(by_algorithm(runs)),
        "seeds": sorted({run.seed for run in runs}),
        "time_s": short(float(longest(runs).summary["time_s"]), 6),
        "job": runs[0].is_job,
        "results": list(results),
    }
    if runs[0].is_job:
        return {**data, **_of_jobs(runs)}
    link, direction = watched_end(runs)
    return {
        **data,
        "link": f"{link} {direction}",
        "bytes_words": bytes_words(runs, target),
        "runs": [_of_run(index, run, link, direction) for index, run in enumerate(runs)],
        "phases": [
            {**row, "seconds": short(row["seconds"])} for row in phases.data(runs) if row["seconds"]
        ],
        "layers": [
            {
                "algorithm": row["algorithm"],
                "layer": row["layer"],
                "bytes": short(row["bytes_up"]),
                "k": short(row["achieved"]),
            }
            for row in layer_rows(runs)
        ],
        "step": _step_bars(runs),
        "step_words": [
            f"{run.algorithm}: {step_words(run, (link, direction))}"
            for run in lowest_seeds(runs)[:MOST_VIEWS]
        ],
    }


def rate_words(rate_bits: float) -> str:
    """A rate of a link in three digits, with its unit."""
    return str(Rate(round(float(f"{rate_bits:.3g}"))))


def step_words(run: Run, end: tuple[str, str]) -> str:
    """Which step is drawn, when it began, and the rates that link direction ``end`` was asked for
    during it."""
    position = list(run.steps).index(middle(run))
    start_s = float(run.range_per_step("start_s")[0][position])
    stop_s = float(run.range_per_step("end_s")[1][position])
    changes = rate_changes(run, *end)
    before = [rate for time_s, rate in changes if time_s <= start_s][-1:]
    rates = [*before, *(rate for time_s, rate in changes if start_s < time_s < stop_s)]
    requested = " to ".join(dict.fromkeys(map(rate_words, _ends_of(rates))))
    return f"step {middle(run)} at {start_s:.1f} s" + (
        requested and f", {' '.join(end)} at {requested}"
    )


def _ends_of(values: Sequence[float]) -> list[float]:
    return [min(values), max(values)] if values else []


def result_row(
    algorithm: str, time_s: Interval, accuracy: Interval, on_front: bool
) -> dict[str, Any]:
    """An algorithm's mean time and accuracy with their intervals, for the chart of both."""
    return {
        "algorithm": algorithm,
        "front": on_front,
        **{f"time_{end}": short(value) for end, value in time_s.to_json().items()},
        **{f"accuracy_{end}": short(value) for end, value in accuracy.to_json().items()},
    }


def _of_run(index: int, run: Run, link: str, direction: str) -> dict[str, Any]:
    samples = EndSamples(run, link, direction).samples
    return {
        "run": index,
        "algorithm": run.algorithm,
        "seed": run.seed,
        "asked": _asked(rate_changes(run, link, direction), float(run.summary["time_s"])),
        "delivered": _delivered(samples),
        "k": _of_workers(run, "density"),
        "delay": _of_workers(run, "delay_s"),
        "accuracy": _accuracy(run),
        "unreliable": _unreliable(run),
    }


def _of_workers(run: Run, column: str) -> Points:
    """When steps ended, and ``column``: the workers' mean; where they differ, also the least and
    the largest of them."""
    mean, (least, largest) = run.per_step(column), run.range_per_step(column)
    spread = () if np.allclose(least, largest, rtol=_VARIES, atol=0) else (least, largest)
    return columns(*thinned(run.per_step("end_s"), mean, *spread))


def _asked(changes: Sequence[tuple[float, float]], stop_s: float) -> Points:
    """Mbit/s: where it changes, and at the end."""
    if not changes:
        return [[], []]
    times, rates = (np.array(column) for column in zip(*changes, strict=True))
    times, rates = thinned(times, rates)
    return columns([*times, max(stop_s, float(times[-1]))], [*rates / 1e6, rates[-1] / 1e6])


def _delivered(samples: LinkBins) -> Points:
    """Mbit/s of the samples in which a queue stood throughout: in others the link cannot be blamed
    for what it did not deliver."""
    busy = samples.busy & (samples.start >= 0)
    middle = (samples.start + samples.stop) / 2
    return columns(*thinned(middle[busy], samples.delivered[busy] / 1e6))


def _accuracy(run: Run) -> Points:
    """Times, accuracies and MB, of every evaluation."""
    return columns(*_evaluated(run))


def _evaluated(run: Run) -> tuple[Array, Array, Array]:
    """Times, accuracies and MB that all workers had sent and received by then."""
    steps, times, accuracies = run.evaluations()
    carried = ((step, up + down) for step, up, down in step_bytes(run.manifest, run.events))
    numbers, sizes = np.array([*carried], np.float64).reshape(-1, 2).T
    order = np.argsort(numbers, kind="stable")
    total = np.concatenate([[0.0], np.cumsum(sizes[order])])
    sent = total[np.searchsorted(numbers[order], steps, side="right")] / 1e6
    return times, accuracies, sent


def bytes_words(runs: Sequence[Run], target: float | None) -> str:
    """MB until the first evaluation with the accuracy ``target``: each algorithm's mean over the
    runs that count; empty without one."""
    if target is None:
        return ""
    means = []
    for algorithm, same in by_algorithm(runs).items():
        reached = [
            float(sent[accuracies >= target][0])
            for run in same
            if run.verdict != "invalid"
            for _, accuracies, sent in [_evaluated(run)]
            if (accuracies >= target).any()
        ]
        if reached:
            means.append(f"{algorithm} {short(fmean(reached), 3):g} MB")
    return f"To {target:g}: {', '.join(means)}"


def _unreliable(run: Run) -> Points:
    spans = run.disturbed()[:MOST_POINTS]
    return columns([start for start, _ in spans], [stop for _, stop in spans])


def _step_bars(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Bars of the step in the middle of every algorithm's lowest seed, of so many nodes as there is
    room for."""
    return [
        {
            "algorithm": run.algorithm,
            **{key: bar[key] for key in ("node", "activity", "layers", "step")},
            "from_ms": short(bar["from_ms"], 6),
            "to_ms": short(bar["to_ms"], 6),
        }
        for run in lowest_seeds(runs)[:MOST_VIEWS]
        for _, bars in timeline.View(run, (middle(run),), _WORKERS).panels()
        for bar in bars[:MOST_BARS]
    ]


def _of_jobs(runs: Sequence[Run]) -> dict[str, Any]:
    """Rows of the figures of jobs, under names that tell runs of the same label apart."""
    names = job_labels(runs)
    tables = {
        module.NAME: [
            {**{key: _plain(value) for key, value in row.items()}, "algorithm": names[row["run"]]}
            for row in _every(module.data(runs))
        ]
        for module in (job_steps, job_phases, job_values, job_bytes)
    }
    unreliable = [
        {"algorithm": name, "spans": _unreliable(run)}
        for name, run in zip(names, runs, strict=True)
    ]
    return {**tables, "algorithms": names, "unreliable": unreliable}


def _plain(value: object) -> object:
    """A number with few digits; anything else as it is."""
    return short(value, _DIGITS + 2) if isinstance(value, float) else value


def job_labels(runs: Sequence[Run]) -> list[str]:
    """A name for each run: its label, with a number where several have the same."""
    labels = [run.algorithm for run in runs]
    return [
        label if labels.count(label) == 1 else f"{label} ({labels[: index + 1].count(label)})"
        for index, label in enumerate(labels)
    ]


def _every(rows: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """Not more rows than a page has room for: every so-many-th."""
    return rows[:: -(-len(rows) // (10 * MOST_POINTS)) or 1]
