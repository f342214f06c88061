"""Test accuracy against model time, one line per algorithm."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.artist import Artist
from matplotlib.figure import Figure

from analysis.load import Run, by_algorithm
from analysis.style import (
    COLUMN_IN,
    PAGE_IN,
    Rows,
    finished,
    look,
    new_figure,
    shade_unreliable,
)

NAME = "accuracy_over_time"

_FEW = 8
"""More algorithms have the width of a page; bands would hide each other."""


def data(runs: Sequence[Run]) -> Rows:
    """Per algorithm and evaluated step: mean time and accuracy over seeds, least and most of it."""
    rows: Rows = []
    for algorithm, same in by_algorithm(runs).items():
        by_step: dict[float, list[tuple[float, float]]] = {}
        for run in same:
            for step, time_s, accuracy in zip(*run.evaluations(), strict=True):
                by_step.setdefault(float(step), []).append((float(time_s), float(accuracy)))
        for step in sorted(by_step):
            times, accuracies = zip(*by_step[step], strict=True)
            rows.append(
                {
                    "algorithm": algorithm,
                    "step": int(step),
                    "time_s": float(np.mean(times)),
                    "accuracy": float(np.mean(accuracies)),
                    "accuracy_min": min(accuracies),
                    "accuracy_max": max(accuracies),
                    "seeds": len(times),
                }
            )
    return rows


def draw(runs: Sequence[Run]) -> Figure:
    """Mean over seeds as a line; the range over seeds as a band where there are several, and few
    algorithms."""
    rows, names = data(runs), list(by_algorithm(runs))
    wide = len(names) > _FEW
    figure = new_figure(*((PAGE_IN, 3.2 + 0.06 * len(names)) if wide else (COLUMN_IN, 2.7)))
    axes = figure.add_subplot()
    handles: list[Artist] = []
    for index, algorithm in enumerate(names):
        mine = [row for row in rows if row["algorithm"] == algorithm]
        times = [row["time_s"] for row in mine]
        style = look(index)
        handles += axes.plot(times, [row["accuracy"] for row in mine], **style)
        if not wide and any(row["seeds"] > 1 for row in mine):
            low, high = ([row[f"accuracy_{side}"] for row in mine] for side in ("min", "max"))
            axes.fill_between(times, low, high, color=style["color"], alpha=0.18, linewidth=0)
    axes.set(xlabel="Model time (s)", ylabel="Test accuracy", ylim=(0, 1.02))
    axes.set_xlim(left=0)
    labels = [*names]
    shade_unreliable([axes], runs, handles, labels)
    return finished(figure, "Test accuracy over time", handles, labels, runs=runs)
