"""The figure of a factorial experiment: what each part multiplies the measures by, and the mean of every cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from analysis.factorial import Cell, Effect, Values, means
from analysis.statistics import Interval
from analysis.style import PAGE_IN, Rows, heading, look, new_figure, save

NAME = "factorial"
_APART = 0.22
"""Between the measures of one effect, of the distance between effects."""


@dataclass(frozen=True, slots=True)
class Found:
    """``values``: of the first measure, in seconds; ``effects``: of all measures, by their names."""

    factors: Sequence[str]
    values: Values
    effects: Mapping[str, Sequence[Effect]]


def draw_factorial(out: Path, found: Found) -> list[Path]:
    """factorial.png, .pdf and .csv into ``out``."""
    return save(out, NAME, found, _rows, draw)


def _rows(found: Found) -> Rows:
    """Everything that is plotted: effects as ratios, and the means of cells."""
    rows: Rows = [
        {"measure": measure, "of": effect.name, "kind": "effect", **effect.ratio.to_json()}
        for measure, own in found.effects.items()
        for effect in own
    ]
    first = next(iter(found.effects))
    return rows + [
        {"measure": first, "of": named(found.factors, cell), "kind": "cell", **mean.to_json()}
        for cell, mean in means(found.factors, found.values).items()
    ]


def named(factors: Sequence[str], cell: Cell) -> str:
    """The factors that are on, in their order."""
    return " + ".join(factor for factor in factors if factor in cell) or "none of them"


def draw(found: Found) -> Figure:
    """Effects of all measures, and the cells' means of the first."""
    many = 2 ** len(found.factors)
    figure = new_figure(PAGE_IN, 1.0 + 0.3 * many)
    left, right = figure.subplots(1, 2)
    handles = [
        _points(left, index, len(found.effects), [effect.ratio for effect in own])
        for index, own in enumerate(found.effects.values())
    ]
    effects = next(iter(found.effects.values()))
    _side(left, [effect.name for effect in effects], "Multiplied by (1: no effect)")
    left.axvline(1.0, color="0.3", linewidth=0.7, linestyle=(0, (3, 2)))
    cells = means(found.factors, found.values)
    _points(right, 0, 1, [*cells.values()])
    first = next(iter(found.effects))
    _side(right, [named(found.factors, cell) for cell in cells], f"{first.capitalize()} (s)")
    seeds = effects[0].seeds
    heading(figure, f"What each part does: means over {seeds} seeds, 95 % intervals", handles, [*found.effects])  # fmt: skip
    return figure


def _points(axes: Axes, index: int, of: int, found: Sequence[Interval]) -> object:
    """A marker for every mean, and a whisker for its interval, one row each: the ``index``-th of so many beside a tick."""
    style = look(index)
    handle: object = None
    for row, one in enumerate(found):
        if one.mean is None:
            continue
        reach = None
        if one.low is not None and one.high is not None:
            reach = [[one.mean - one.low], [one.high - one.mean]]
        handle = axes.errorbar(
            one.mean, row + _APART * (index - (of - 1) / 2), xerr=reach, color=style["color"], marker=style["marker"],
            markersize=4, linestyle="none", linewidth=0.9, capsize=2,
        )  # fmt: skip
    return handle


def _side(axes: Axes, names: Sequence[str], label: str) -> None:
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(label)
