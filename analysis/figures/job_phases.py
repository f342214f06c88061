"""Where a job's steps spend their time, in phases that it marked: mean seconds, stacked."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from analysis.load import Run
from analysis.series import NO_PHASE, phases_s
from analysis.style import PAGE_IN, Rows, banner, heading, look, new_figure

NAME = "job_phases"
_HATCHES = ("", "///", "...", "\\\\\\", "xxx", "---", "++", "ooo")
_REST = "0.85"


def data(runs: Sequence[Run]) -> Rows:
    """Per run and phase: mean seconds of a step over steps and processes. Nothing where no phases
    were marked."""
    return [
        {"run": index, "algorithm": run.algorithm, "phase": phase, "seconds": seconds}
        for index, run in enumerate(runs)
        for phase, seconds in phases_s(run).items()
    ]


def draw(runs: Sequence[Run]) -> Figure:
    """A bar per run, a part per phase, the whole written at its end."""
    rows = data(runs)
    marked = list(dict.fromkeys(row["run"] for row in rows))
    phases = list(dict.fromkeys(row["phase"] for row in rows if row["phase"] != NO_PHASE))
    figure = new_figure(PAGE_IN, 1.25 + 0.34 * len(marked))
    axes = figure.add_subplot()
    left, handles = np.zeros(len(marked)), []
    seconds = {(row["run"], row["phase"]): row["seconds"] for row in rows}
    for index, phase in enumerate([*phases, NO_PHASE]):
        width = np.array([seconds.get((run, phase), 0.0) for run in marked])
        colour = _REST if phase == NO_PHASE else look(index)["color"]
        handles.append(
            axes.barh(
                range(len(marked)),
                width,
                left=left,
                height=0.62,
                color=colour,
                hatch=_HATCHES[index % len(_HATCHES)],
                edgecolor="white",
                linewidth=0.3,
            )
        )
        left += width
    for place, total in enumerate(left):
        axes.annotate(
            f"{total:.3g} s",
            (total, place),
            (3, 0),
            textcoords="offset points",
            va="center",
            fontsize=7,
        )
    axes.set_yticks(range(len(marked)), [runs[run].algorithm for run in marked])
    axes.set(xlabel="Model time per step (s)", xlim=(0, 1.1 * max(float(left.max()), 1e-9)))
    axes.set_ylim(len(marked) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
    heading(figure, "Mean time of a step by phase, as marked", handles, [*phases, NO_PHASE])
    banner(figure, runs)
    return figure
