"""Where a step's time goes: mean seconds of every phase, stacked."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from analysis.load import Run, by_algorithm
from analysis.style import PAGE_IN, Rows, banner, heading, new_figure
from testbed.records.events import PHASES

NAME = "phases"
LOOKS = {
    "compute": ("#BBBBBB", ""),
    "stall": ("#FFFFFF", "xxxxxx"),
    "compress": ("#E69F00", "///"),
    "send": ("#56B4E9", ""),
    "wait": ("#0072B2", "..."),
    "receive": ("#009E73", ""),
    "decompress": ("#D55E00", "\\\\\\"),
    "apply": ("#CC79A7", "xxx"),
}
"""Colour and hatch of every phase."""


def data(runs: Sequence[Run]) -> Rows:
    """Per algorithm and phase: mean seconds per step and worker, over all seeds."""
    return [
        {
            "algorithm": algorithm,
            "phase": phase,
            "seconds": float(np.mean(np.concatenate([run.phase(phase) for run in same]))),
            "seeds": len(same),
        }
        for algorithm, same in by_algorithm(runs).items()
        for phase in PHASES
    ]


def draw(runs: Sequence[Run]) -> Figure:
    """A bar per algorithm, a part per phase, the whole written at its end."""
    rows, names = data(runs), list(by_algorithm(runs))
    figure = new_figure(PAGE_IN, 1.25 + 0.34 * len(names))
    axes = figure.add_subplot()
    left, handles, shown = np.zeros(len(names)), [], list[str]()
    for phase in PHASES:
        width = np.array([row["seconds"] for row in rows if row["phase"] == phase])
        if not width.any():
            continue
        colour, hatch = LOOKS[phase]
        shown.append(phase)
        handles.append(
            axes.barh(
                range(len(names)),
                width,
                left=left,
                height=0.62,
                color=colour,
                hatch=hatch,
                edgecolor="white",
                linewidth=0.3,
            )
        )
        left += width
    for index, total in enumerate(left):
        axes.annotate(
            f"{total:.3g} s",
            (total, index),
            (3, 0),
            textcoords="offset points",
            va="center",
            fontsize=7,
        )
    axes.set_yticks(range(len(names)), names)
    axes.set(xlabel="Model time per step (s)", xlim=(0, 1.1 * max(float(left.max()), 1e-9)))
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
    heading(figure, "Mean time of a step by phase", handles, shown)
    banner(figure, runs)
    return figure
