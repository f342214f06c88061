"""How many times faster than ``none`` each algorithm finished the same steps."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from matplotlib.figure import Figure

from analysis import tables
from analysis.load import Run, by_algorithm
from analysis.style import (
    COLUMN_IN,
    Rows,
    finished,
    look,
    new_figure,
    rows_of_bars,
    write_beside,
)

NAME = "speedup_bars"


def data(runs: Sequence[Run]) -> Rows:
    """Per algorithm: mean, least and most over seeds of (time of ``none`` ÷ its own), paired by
    seed."""
    rows: Rows = []
    for algorithm in by_algorithm(runs):
        pairs = [row["speedup"] for row in tables.rows(runs) if row["algorithm"] == algorithm]
        known = [float(speedup) for speedup in pairs if speedup is not None]
        rows.append(
            {
                "algorithm": algorithm,
                "speedup": fmean(known) if known else None,
                "speedup_min": min(known, default=None),
                "speedup_max": max(known, default=None),
                "seeds": len(known),
            }
        )
    return rows


def draw(runs: Sequence[Run]) -> Figure:
    """A bar each, labelled with its value; a whisker for the range over seeds."""
    rows = data(runs)
    figure = new_figure(COLUMN_IN, 1.1 + 0.32 * len(rows))
    axes = figure.add_subplot()
    known = [row["speedup_max"] for row in rows if row["speedup"] is not None]
    for index, row in enumerate(rows):
        if row["speedup"] is None:
            axes.text(0.02, index, "no run of 'none' with as many steps", va="center", fontsize=7)
            continue
        axes.barh(index, row["speedup"], height=0.62, color=look(index)["color"])
        end = row["speedup"]
        if row["seeds"] > 1:
            reach = [[end - row["speedup_min"]], [row["speedup_max"] - end]]
            axes.errorbar(end, index, xerr=reach, color="0.1", capsize=2, linewidth=0.8)
            end = row["speedup_max"]
        write_beside(axes, f"{row['speedup']:.2f}×", end, index)
    axes.axvline(1.0, color="0.3", linewidth=0.7, linestyle=(0, (3, 2)))
    axes.set(xlabel="Time of none ÷ time of algorithm", xlim=(0, 1.18 * max([1.0, *known])))
    rows_of_bars(axes, [row["algorithm"] for row in rows])
    return finished(figure, "Speed-up against sending everything", runs=runs)
