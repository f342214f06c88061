"""Values that a job gave for its steps (a loss), over steps and over time."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.load import Run
from analysis.style import PAGE_IN, Rows, finished, look, new_figure

NAME = "job_values"
MOST = 4
"""So many values are drawn: the first that were told."""
_MARKED = 40
"""The most steps of which every one has its marker."""


def data(runs: Sequence[Run]) -> Rows:
    """Per run, value and step: the mean over processes, and when the step ended. Nothing where none
    was told."""
    rows = [
        {
            "run": index,
            "algorithm": run.algorithm,
            "value": name,
            "step": step.number,
            "time_s": step.end_s / run.dilation,
            "mean": value,
        }
        for index, run in enumerate(runs)
        for step in run.known.steps
        for name, value in step.values.items()
    ]
    drawn = list(dict.fromkeys(row["value"] for row in rows))[:MOST]
    return [row for row in rows if row["value"] in drawn]


def draw(runs: Sequence[Run]) -> Figure:
    """A row of panels per value: over steps on the left, over time on the right."""
    rows = data(runs)
    names = list(dict.fromkeys(row["value"] for row in rows))
    figure = new_figure(PAGE_IN, 0.7 + 1.9 * len(names))
    grid = figure.subplots(len(names), 2, squeeze=False, sharex="col", sharey="row")
    indices = [index for index in range(len(runs)) if any(row["run"] == index for row in rows)]
    for (over_steps, over_time), name in zip(grid, names, strict=True):
        mine = [row for row in rows if row["value"] == name]
        handles = [_line(over_steps, "step", mine, index) for index in indices]
        for index in indices:
            _line(over_time, "time_s", mine, index)
        over_steps.set(ylabel=name.capitalize())
    grid[-1][0].set(xlabel="Step", xlim=(0, None))
    grid[-1][1].set(xlabel="Model time (s)", xlim=(0, None))
    labels = [runs[index].algorithm for index in indices]
    return finished(figure, "What steps came to, as the job said", handles, labels, runs=runs)


def _line(axes: Axes, over: str, rows: Rows, index: int) -> object:
    mine = [row for row in rows if row["run"] == index]
    every = max(1, len(mine) // _MARKED * 4)
    return axes.plot(
        [row[over] for row in mine], [row["mean"] for row in mine], **look(index), markevery=every
    )[0]
