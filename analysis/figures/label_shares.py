"""Which labels each worker's samples have, where they differ: a bar each, of its shares."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from analysis.load import Run
from analysis.style import COLUMN_IN, Rows, finished, new_figure, rows_of_bars

NAME = "label_shares"
MOST = 40
"""The most workers that are drawn: the first ones."""


def data(runs: Sequence[Run]) -> Rows:
    """Return, for each worker and label, samples and their share of the worker's, from the first
    run that has any: all algorithms of a seed have the same."""
    dealt = next((records for run in runs if (records := run.events.get("labels"))), [])
    return [
        {
            "node": worker["node"],
            "label": label,
            "samples": count,
            "share": count / worker["samples"],
        }
        for worker in dealt[:MOST]
        for label, count in worker["labels"].items()
    ]


def draw(runs: Sequence[Run]) -> Figure:
    """Stacked bars, the first worker at the top; a colour a label."""
    rows = data(runs)
    nodes = list(dict.fromkeys(str(row["node"]) for row in rows))
    labels = list(dict.fromkeys(str(row["label"]) for row in rows))
    colours = mpl.colormaps["tab20" if len(labels) > 10 else "tab10"]
    figure = new_figure(COLUMN_IN, 1.6 + 0.2 * len(nodes))
    axes = figure.add_subplot()
    for row_number, node in enumerate(nodes):
        left = 0.0
        for row in (row for row in rows if row["node"] == node):
            colour = colours(labels.index(str(row["label"])) % colours.N)
            axes.barh(row_number, row["share"], left=left, height=0.8, color=colour)
            left += row["share"]
    axes.set(xlabel="Share of the worker's samples", xlim=(0, 1))
    rows_of_bars(axes, nodes)
    axes.grid(visible=False)
    handles = [Patch(color=colours(index % colours.N)) for index in range(len(labels))]
    return finished(
        figure,
        "Labels by worker",
        handles,
        labels,
        runs=[run for run in runs if run.events.get("labels")][:1],
    )
