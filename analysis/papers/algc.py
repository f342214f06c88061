"""Claims of ALGC (Wang and Zhu) as a factorial experiment: what each of its three parts, on or
off, does to a measure, what several do together, and the figure of it.

There is a cell for every choice of factors that are on. With y the measure in a cell and s = +1 for
a factor that is on, −1 for one that is off, the effect of a set S of factors with one seed is the
usual contrast of logarithms

    e_S = 2^(1 − n) · Σ over cells of (Π over S of s) · log y

(Box, Hunter and Hunter). For one factor that is the mean logarithm with it minus that without; for
two, half of what the second changes about that: A adds e_A + e_AB with B on, e_A − e_AB with B off.
A seed has all cells in common, so effects are paired by it.

python -m analysis.papers.algc comparisons/<…>_paper-algc_<…> [DIR]     DIR: where the figure goes
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from math import exp, isfinite, log
from pathlib import Path
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from analysis.papers import (
    Claim,
    Results,
    Row,
    Runs,
    Sections,
    above,
    factor,
    judge,
    keeps,
    page,
    table,
    written,
)
from analysis.statistics import Interval, interval, ratio
from analysis.style import PAGE_IN, Rows, heading, look, new_figure, rows_of_bars, save

Cell = frozenset[str]
"""The factors that are on."""
Values = Mapping[Cell, Mapping[int, float]]
"""A positive measure by cell and seed."""


@dataclass(frozen=True, slots=True)
class Effect:
    """The factor by which ``factors`` together multiply the measure: the interval of exp e_S over
    ``seeds``. 1: not at all."""

    factors: tuple[str, ...]
    ratio: Interval
    seeds: int

    @property
    def name(self) -> str:
        """``threshold × overlap``."""
        return " × ".join(self.factors)

    @property
    def differs(self) -> bool:
        """Return whether no effect (1) lies outside the interval."""
        return self.ratio.leaves_out(1.0)


def cells(factors: Sequence[str]) -> list[Cell]:
    """All 2ⁿ: none on first, then one, and so on."""
    return [frozenset(chosen) for chosen in _sets(factors)]


def complete(factors: Sequence[str], values: Values) -> list[int]:
    """The seeds with a positive and finite measure in every cell, ascending. Only these count."""
    known = [
        {seed for seed, y in values.get(cell, {}).items() if isfinite(y) and y > 0}
        for cell in cells(factors)
    ]
    return sorted(set.intersection(*known))


def effects(factors: Sequence[str], values: Values) -> list[Effect]:
    """Main effects, then those of two factors, and so on."""
    seeds = complete(factors, values)
    results = []
    for chosen in list(_sets(factors))[1:]:
        contrasts = [_contrast(factors, chosen, values, seed) for seed in seeds]
        results.append(Effect(chosen, interval(contrasts).through(exp), len(seeds)))
    return results


def conditional(factors: Sequence[str], factor: str, values: Values) -> dict[Cell, Interval]:
    """Return the factor by which ``factor`` multiplies the measure, for each choice of the
    others."""
    seeds = complete(factors, values)
    ratios = {}
    for cell in cells([other for other in factors if other != factor]):
        own, without = values[cell | {factor}], values[cell]
        ratios[cell] = ratio([own[seed] for seed in seeds], [without[seed] for seed in seeds])
    return ratios


def means(factors: Sequence[str], values: Values) -> dict[Cell, Interval]:
    """Geometric mean in each cell, unpaired."""
    seeds = complete(factors, values)
    return {
        cell: interval([log(values[cell][seed]) for seed in seeds]).through(exp)
        for cell in cells(factors)
    }


def _sets(factors: Sequence[str]) -> Iterator[tuple[str, ...]]:
    for count in range(len(factors) + 1):
        yield from combinations(factors, count)


def _contrast(factors: Sequence[str], chosen: Sequence[str], values: Values, seed: int) -> float:
    signed = (
        (-1) ** sum(factor not in cell for factor in chosen) * log(values[cell][seed])
        for cell in cells(factors)
    )
    return float(2.0 ** (1 - len(factors)) * sum(signed))


NAME = "factorial"
_APART = 0.22
"""Between the measures of one effect, of the distance between effects."""


@dataclass(frozen=True, slots=True)
class FactorialResult:
    """``values``: of the first measure, in seconds; ``effects``: of all measures, by their
    names."""

    factors: Sequence[str]
    values: Values
    effects: Mapping[str, Sequence[Effect]]


def draw_factorial(out: Path, result: FactorialResult) -> list[Path]:
    """factorial.png, .pdf and .csv into ``out``."""
    return save(out, NAME, result, _rows, draw)


def _rows(result: FactorialResult) -> Rows:
    """Everything that is plotted: effects as ratios, and the means of cells."""
    rows: Rows = [
        {"measure": measure, "of": effect.name, "kind": "effect", **effect.ratio.to_json()}
        for measure, own in result.effects.items()
        for effect in own
    ]
    first = next(iter(result.effects))
    return rows + [
        {"measure": first, "of": named(result.factors, cell), "kind": "cell", **mean.to_json()}
        for cell, mean in means(result.factors, result.values).items()
    ]


def named(factors: Sequence[str], cell: Cell) -> str:
    """The factors that are on, in their order."""
    return " + ".join(factor for factor in factors if factor in cell) or "none of them"


def draw(result: FactorialResult) -> Figure:
    """Effects of all measures, and the cells' means of the first."""
    cell_count = 2 ** len(result.factors)
    figure = new_figure(PAGE_IN, 1.0 + 0.3 * cell_count)
    left, right = figure.subplots(1, 2)
    handles = [
        _points(left, index, len(result.effects), [effect.ratio for effect in own])
        for index, own in enumerate(result.effects.values())
    ]
    effects = next(iter(result.effects.values()))
    _side(left, [effect.name for effect in effects], "Multiplied by (1: no effect)")
    left.axvline(1.0, color="0.3", linewidth=0.7, linestyle=(0, (3, 2)))
    cells = means(result.factors, result.values)
    _points(right, 0, 1, [*cells.values()])
    first = next(iter(result.effects))
    _side(right, [named(result.factors, cell) for cell in cells], f"{first.capitalize()} (s)")
    seeds = effects[0].seeds
    heading(
        figure,
        f"What each part does: means over {seeds} seeds, 95 % intervals",
        handles,
        [*result.effects],
    )
    return figure


def _points(axes: Axes, index: int, of: int, intervals: Sequence[Interval]) -> object:
    """A marker for every mean, and a whisker for its interval, one row each: the ``index``-th of so
    many beside a tick."""
    style = look(index)
    handle: object = None
    for row, estimate in enumerate(intervals):
        if estimate.mean is None:
            continue
        reach = None
        if estimate.low is not None and estimate.high is not None:
            reach = [[estimate.mean - estimate.low], [estimate.high - estimate.mean]]
        handle = axes.errorbar(
            estimate.mean,
            row + _APART * (index - (of - 1) / 2),
            xerr=reach,
            color=style["color"],
            marker=style["marker"],
            markersize=4,
            linestyle="none",
            linewidth=0.9,
            capsize=2,
        )
    return handle


def _side(axes: Axes, names: Sequence[str], label: str) -> None:
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    rows_of_bars(axes, names)
    axes.set_xlabel(label)


FACTORS = ("threshold", "layer-wise", "overlap")
ACCURACY = 0.93
"""The accuracy on the test set: algorithms are compared by the time to it."""
MEASURES = (f"time to {ACCURACY * 100:g} %", "steps to it", "a step's time")
"""The first is the product of the others, and so are its effects."""
_OF_RUN: tuple[Callable[[float, int], float], ...] = (
    lambda time_s, _: time_s,
    lambda _, steps: float(steps),
    lambda time_s, steps: time_s / steps,
)
"""Their values, from a run's seconds and steps."""
FIXED = ("topk-0.01", "topk-0.03", "topk-0.1")
OTHERS = ("none", "none-overlap", "topk-0.03-overlap", "algc-whole", "lags", "lgreco", *FIXED)
_PERCENT = "{:.1%}"
_LAST = 3
"""Pieces of a record at its end, a tenth of the steps, whose training accuracy is told."""
RESIDUALS = "residuals"
"""The group of runs of ALGC with and without residuals at the server, of the same length."""
_KEPT, _SENT = "algc", "algc-residuals"


def algorithm(cell: Cell) -> str:
    """In which just these parts are on, as ``scenarios/papers/algc`` names it."""
    if len(cell) == len(FACTORS):
        return "algc"
    parts = [factor.replace("-", "") for factor in FACTORS if factor in cell]
    return "-".join(["algc", *(parts or ["plain"])])


def measures(runs: Runs) -> dict[str, Values]:
    """Return the measures that the factors act on, in seconds of model time and steps, of the seeds
    that reach the accuracy."""
    by_measure: dict[str, dict[Cell, dict[int, float]]] = {name: {} for name in MEASURES}
    for cell in cells(FACTORS):
        reached = runs.reached(algorithm(cell), ACCURACY)
        for name, of in zip(MEASURES, _OF_RUN, strict=True):
            by_measure[name][cell] = {seed: of(*at) for seed, at in reached.items()}
    return dict(by_measure)


def sections(results: Results) -> Sections:
    """Marked parts of the page, of the runs of its plan."""
    runs = results.runs("factorial")
    values = measures(runs)
    by_measure = {name: effects(FACTORS, values[name]) for name in MEASURES}
    seeds = by_measure[MEASURES[0]][0].seeds
    beside = results.runs(RESIDUALS) if RESIDUALS in results.groups else None
    claims = [*_claims(runs), *(_residual_claims(beside) if beside else ())]
    parts = {
        "claims": page(judge(claims)),
        "effects": f"{effects_table(by_measure)}\n\n*{seeds} seeds with all eight.*",
        "last": f"{alone_and_last(values[MEASURES[0]])}\n\n*{seeds} seeds with all eight.*",
        "algorithms": algorithms_table(runs),
    }
    return {**parts, RESIDUALS: residuals_table(beside)} if beside else parts


def _residual_claims(runs: Runs) -> Iterator[Claim]:
    sooner = tuple(runs.faster(_SENT, _KEPT, ACCURACY))
    yield Claim(f"{_SENT} is sooner at {ACCURACY:.0%} than {_KEPT}", "–", sooner, factor)
    gained = runs.differences(_SENT, _KEPT, "accuracy")
    yield keeps(f"{_SENT} loses no accuracy against {_KEPT} (margin 0.5 points)", "–", gained)
    own, other = (runs.values(name, "bytes_up") for name in (_SENT, _KEPT))
    less = tuple(log(other[seed] / own[seed]) for seed in sorted(set(own) & set(other)))
    yield Claim(f"{_SENT} sends less up than {_KEPT}", "–", less, factor)


def residuals_table(runs: Runs) -> str:
    """Return, in Markdown, what ALGC does with and without residuals at the server, and both held
    against each other by seed."""
    rows = [
        _against(runs, f"time to {ACCURACY:.0%} (s)", "{:.3g}", _reached(0)),
        _against(runs, "steps to it", "{:.0f}", _reached(1)),
        _against(runs, "a step (ms)", "{:.1f}", _measured("step_s", 1e3)),
        _against(runs, "MB up", "{:.1f}", _measured("bytes_up", 1e-6)),
        _against(runs, "MB down", "{:.1f}", _measured("bytes_down", 1e-6)),
        _against(runs, "test accuracy at the end", "{:.1%}", _measured("accuracy")),
        _against(runs, "training accuracy at the end", "{:.1%}", _trained),
    ]
    return table(["", f"`{_KEPT}`", f"`{_SENT}`", "the second over the first"], rows)


_BySeed = Callable[[Runs, str], Mapping[int, float]]
"""Values of an algorithm, by seed."""


def _reached(index: int) -> _BySeed:
    return lambda runs, name: {
        seed: float(at[index]) for seed, at in runs.reached(name, ACCURACY).items()
    }


def _measured(measure: str, unit: float = 1.0) -> _BySeed:
    return lambda runs, name: {
        seed: unit * value for seed, value in runs.values(name, measure).items()
    }


def _trained(runs: Runs, name: str) -> Mapping[int, float]:
    return {
        int(each["seed"]): fmean(own) for each in runs.of(name) if (own := each["train"][-_LAST:])
    }


def _against(runs: Runs, name: str, form: str, of: _BySeed) -> list[str]:
    """A row: both means, and the ratio by seed."""
    own, other = of(runs, _SENT), of(runs, _KEPT)
    seeds = sorted(set(own) & set(other))
    times = ratio([own[seed] for seed in seeds], [other[seed] for seed in seeds])
    means_ = [form.format(fmean(each.values())) if each else "–" for each in (other, own)]
    return [name, *means_, _marked(times)]


def _claims(runs: Runs) -> Iterator[Claim]:
    for name in (name for name in ("none", *FIXED) if name in runs.names()):
        logs = tuple(runs.faster("algc", name, ACCURACY))
        text = f"ALGC is sooner at {ACCURACY:.0%} than {name}"
        yield Claim(text, "shortest time", logs, factor)
    values = measures(runs)[MEASURES[0]]
    for name in FACTORS:
        rest = frozenset(FACTORS) - {name}
        with_it, without = values[rest | {name}], values[rest]
        logs = tuple(log(without[s] / with_it[s]) for s in sorted(set(with_it) & set(without)))
        yield Claim(f"{name} saves time on top of the other two", "–", logs, factor)


def rows(runs: Runs) -> Iterator[Row]:
    """Claims, in the order of the page."""
    names = runs.names()
    best = _best(runs)
    for name in (*FIXED, *(other for other in OTHERS if other not in FIXED)):
        if name in names:
            sooner = runs.sooner("algc", name, ACCURACY)
            note = " (the best fixed density)" if name == best else ""
            claim = f"ALGC is sooner at {ACCURACY * 100:g} % than {name}{note}"
            paper = "shortest time" if name in ("none", *FIXED) else "–"
            yield Row(claim, paper, written(sooner, _PERCENT), above(sooner))


def effects_table(by_measure: dict[str, list[Effect]]) -> str:
    """Return, in Markdown, the factor by which each part multiplies each measure."""
    lines = [
        f"| part | {' | '.join(by_measure)} |",
        f"| --- | {' | '.join('---' for _ in by_measure)} |",
    ]
    for same in zip(*by_measure.values(), strict=True):
        marked = " | ".join(_marked(effect.ratio) for effect in same)
        lines.append(f"| {same[0].name} | {marked} |")
    return "\n".join(lines)


def alone_and_last(values: Values) -> str:
    """Return, in Markdown, the factor by which each part multiplies the time where all others are
    off, and where all are on."""
    lines = ["| part | alone | on top of the others |", "| --- | --- | --- |"]
    for part in FACTORS:
        ratios = conditional(FACTORS, part, values)
        alone, last = ratios[frozenset()], ratios[frozenset(FACTORS) - {part}]
        lines.append(f"| {part} | {_marked(alone)} | {_marked(last)} |")
    return "\n".join(lines)


def algorithms_table(runs: Runs) -> str:
    """Every algorithm: time and steps to the accuracy, how many times as soon as ``none``, a step,
    training accuracy at the end, mean density, bytes."""
    lines = [
        f"| algorithm | to {ACCURACY * 100:g} % (s) | seeds | steps | speed-up | a step (ms) "
        "| training accuracy | mean k | MB up / down |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    return "\n".join([*lines, *(_line(runs, name) for name in runs.names())])


def main(comparison: Path, out: Path) -> str:
    """The page's tables; the figure goes into ``out``."""
    runs = Runs.read(comparison)
    values = measures(runs)
    by_measure = {name: effects(FACTORS, values[name]) for name in MEASURES}
    draw_factorial(out, FactorialResult(FACTORS, values[MEASURES[0]], by_measure))
    seeds = by_measure[MEASURES[0]][0].seeds
    parts = (
        effects_table(by_measure),
        f"*{seeds} seeds with all eight*",
        alone_and_last(values[MEASURES[0]]),
        page(list(rows(runs))),
        algorithms_table(runs),
    )
    return "\n\n".join(parts)


def _best(runs: Runs) -> str:
    """The fixed density that gets there first in the mean, of those that do with most seeds; chosen
    after the fact."""
    given = [name for name in FIXED if name in runs.names()]
    reached = {
        name: [time_s for time_s, _ in runs.reached(name, ACCURACY).values()] for name in given
    }
    return min(given, key=lambda name: (-len(reached[name]), interval(reached[name]).mean or 0.0))


def _line(runs: Runs, name: str) -> str:
    reached = runs.reached(name, ACCURACY).values()
    mean = partial(_mean, runs, name)
    times, steps = interval([at for at, _ in reached]), interval([at for _, at in reached])
    speed = interval(runs.faster(name, "none", ACCURACY)).through(exp)
    trained = interval([*_trained(runs, name).values()])
    count = f"{len(reached)} of {len(runs.values(name, 'step_s'))}"
    cells_ = (
        f"`{name}`",
        written(times, "{:.2f}"),
        count,
        "–" if steps.mean is None else f"{steps.mean:.0f}",
        "1" if name == "none" else written(speed, "{:.2f}"),
        f"{mean('step_s') * 1e3:.1f}",
        "–" if trained.mean is None else f"{trained.mean:.1%}",
        f"{mean('mean_k'):.4f}",
        f"{mean('bytes_up') / 1e6:.1f} / {mean('bytes_down') / 1e6:.1f}",
    )
    return f"| {' | '.join(cells_)} |"


def _mean(runs: Runs, name: str, measure: str) -> float:
    return interval([*runs.values(name, measure).values()]).mean or 0.0


def _marked(effect: Interval) -> str:
    """Bold where 1 is outside the interval."""
    text = written(effect, "{:.3f}")
    return f"**{text}**" if effect.leaves_out(1.0) else text


if __name__ == "__main__":
    given = [Path(argument) for argument in sys.argv[1:]]
    sys.stdout.write(main(given[0], given[1] if given[1:] else given[0] / "figures") + "\n")
