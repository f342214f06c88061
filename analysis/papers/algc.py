"""ALGC's three parts (Wang and Zhu), each on and off, and whether it is faster than whole-model top-k, from a comparison of ours.

python -m analysis.papers.algc comparisons/<…>_paper-algc_<…> [DIR]     DIR: where the figure goes
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from analysis.factorial import Cell, Effect, Values, cells, conditional, effects
from analysis.factorial_figure import Found, draw_factorial
from analysis.papers.claim import Row, Runs, above, page, written
from analysis.statistics import Interval, interval

FACTORS = ("threshold", "layer-wise", "overlap")
ACCURACY = 0.93
"""Of the test set: algorithms are compared by the time to it."""
MEASURES = (f"time to {ACCURACY * 100:g} %", "steps to it", "a step's time")
"""The first is the product of the others, and so are its effects."""
FIXED = ("topk-0.01", "topk-0.03", "topk-0.1")
OTHERS = ("none", "none-overlap", "topk-0.03-overlap", "algc-whole", "lags", "lgreco", *FIXED)
_PERCENT = "{:.1%}"


def algorithm(cell: Cell) -> str:
    """In which just these parts are on, as ``scenarios/papers/algc`` names it."""
    if len(cell) == len(FACTORS):
        return "algc"
    parts = [factor.replace("-", "") for factor in FACTORS if factor in cell]
    return "-".join(["algc", *(parts or ["plain"])])


def measures(runs: Runs) -> dict[str, Values]:
    """What the factors act on, in seconds of model time and steps, of the seeds that reach the accuracy."""
    found: dict[str, dict[Cell, dict[int, float]]] = {name: {} for name in MEASURES}
    for cell in cells(FACTORS):
        reached = runs.reached(algorithm(cell), ACCURACY)
        for name, of in zip(MEASURES, (_time, _steps, _step_s), strict=True):
            found[name][cell] = {seed: of(*at) for seed, at in reached.items()}
    return dict(found)


def rows(runs: Runs) -> Iterator[Row]:
    """Claims, in the order of the page."""
    names = runs.names()
    best = _best(runs)
    for name in (*FIXED, *(other for other in OTHERS if other not in FIXED)):
        if name in names:
            found = runs.sooner("algc", name, ACCURACY)
            note = " (the best fixed density)" if name == best else ""
            claim = f"ALGC is sooner at {ACCURACY * 100:g} % than {name}{note}"
            paper = "shortest time" if name in ("none", *FIXED) else "–"
            yield Row(claim, paper, written(found, _PERCENT), above(found))


def effects_table(found: dict[str, list[Effect]]) -> str:
    """By what each part multiplies each measure, in Markdown."""
    lines = [
        f"| part | {' | '.join(found)} |",
        f"| --- | {' | '.join('---' for _ in found)} |",
    ]
    for same in zip(*found.values(), strict=True):
        marked = " | ".join(_marked(effect.ratio) for effect in same)
        lines.append(f"| {same[0].name} | {marked} |")
    return "\n".join(lines)


def alone_and_last(values: Values) -> str:
    """By what each part multiplies the time where all others are off, and where all are on, in Markdown."""
    lines = ["| part | alone | on top of the others |", "| --- | --- | --- |"]
    for factor in FACTORS:
        found = conditional(FACTORS, factor, values)
        alone, last = found[frozenset()], found[frozenset(FACTORS) - {factor}]
        lines.append(f"| {factor} | {_marked(alone)} | {_marked(last)} |")
    return "\n".join(lines)


def algorithms_table(runs: Runs) -> str:
    """Every algorithm: time and steps to the accuracy, a step, mean density, bytes."""
    lines = [
        f"| algorithm | to {ACCURACY * 100:g} % (s) | seeds | steps | a step (ms) | mean k | MB up / down |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    return "\n".join([*lines, *(_line(runs, name) for name in runs.names())])


def main(comparison: Path, out: Path) -> str:
    """The page's tables; the figure goes into ``out``."""
    runs = Runs(comparison)
    values = measures(runs)
    found = {name: effects(FACTORS, values[name]) for name in MEASURES}
    draw_factorial(out, Found(FACTORS, values[MEASURES[0]], found))
    seeds = found[MEASURES[0]][0].seeds
    parts = (
        effects_table(found), f"*{seeds} seeds with all eight*", alone_and_last(values[MEASURES[0]]),
        page(list(rows(runs))), algorithms_table(runs),
    )  # fmt: skip
    return "\n\n".join(parts)


def _best(runs: Runs) -> str:
    """The fixed density that gets there first in the mean, of those that do with most seeds; chosen after the fact."""
    given = [name for name in FIXED if name in runs.names()]
    reached = {name: [time_s for time_s, _ in runs.reached(name, ACCURACY).values()] for name in given}  # fmt: skip
    return min(given, key=lambda name: (-len(reached[name]), interval(reached[name]).mean or 0.0))


def _line(runs: Runs, name: str) -> str:
    reached = runs.reached(name, ACCURACY).values()
    mean = partial(_mean, runs, name)
    times, steps = interval([at for at, _ in reached]), interval([at for _, at in reached])
    count = f"{len(reached)} of {len(runs.values(name, 'step_s'))}"
    cells_ = (
        f"`{name}`", written(times, "{:.2f}"), count, "–" if steps.mean is None else f"{steps.mean:.0f}",
        f"{mean('step_s') * 1e3:.1f}",
        f"{mean('mean_k'):.4f}",
        f"{mean('bytes_up') / 1e6:.1f} / {mean('bytes_down') / 1e6:.1f}",
    )  # fmt: skip
    return f"| {' | '.join(cells_)} |"


def _mean(runs: Runs, name: str, measure: str) -> float:
    return interval([*runs.values(name, measure).values()]).mean or 0.0


def _marked(found: Interval) -> str:
    """Bold where 1 is outside the interval."""
    text = written(found, "{:.3f}")
    return f"**{text}**" if found.leaves_out(1.0) else text


def _time(time_s: float, steps: int) -> float:  # noqa: ARG001
    return time_s


def _steps(time_s: float, steps: int) -> float:  # noqa: ARG001
    return float(steps)


def _step_s(time_s: float, steps: int) -> float:
    return time_s / steps


if __name__ == "__main__":
    given = [Path(argument) for argument in sys.argv[1:]]
    sys.stdout.write(main(given[0], given[1] if given[1:] else given[0] / "figures") + "\n")
