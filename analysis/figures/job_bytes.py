"""Bytes that every node's link carried up and down in a job."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from analysis.load import Run
from analysis.style import PAGE_IN, Rows, finished, grouped_bars, new_figure

NAME = "job_bytes"
MOST = 16
"""So many nodes are drawn: those whose links carried most."""
_DIRECTIONS = ("up", "down")


def data(runs: Sequence[Run]) -> Rows:
    """MB over the whole run per run, node and direction, Ethernet headers counted."""
    return [
        {
            "run": index,
            "algorithm": run.algorithm,
            "node": node,
            "direction": direction,
            "megabytes": run.summary["nodes"][node][f"{direction}_bytes"] / 1e6,
        }
        for index, run in enumerate(runs)
        for node in _nodes(runs)
        if node in run.summary["nodes"]
        for direction in _DIRECTIONS
    ]


def draw(runs: Sequence[Run]) -> Figure:
    """Up above, down below; at each node a bar per run."""
    rows, nodes = data(runs), _nodes(runs)
    figure = new_figure(PAGE_IN, 3.2)
    panels = figure.subplots(2, 1, sharex=True, sharey=True)
    for axes, direction in zip(panels, _DIRECTIONS, strict=True):
        megabytes = [dict.fromkeys(nodes, 0.0) for _ in runs]
        for row in rows:
            if row["direction"] == direction:
                megabytes[row["run"]][row["node"]] = row["megabytes"]
        handles = grouped_bars(axes, nodes, megabytes, full=0.92)
        axes.set(ylabel=f"{direction.capitalize()} (MB)")
    panels[-1].set_xticks(range(len(nodes)), nodes, rotation=45 if len(nodes) > 8 else 0)
    total = len({node for run in runs for node in run.summary["nodes"]})
    left = f" ({total - len(nodes)} more not drawn)" if total > len(nodes) else ""
    return finished(
        figure,
        f"What each node's link carried{left}",
        handles,
        [run.algorithm for run in runs],
        runs=runs,
    )


def _nodes(runs: Sequence[Run]) -> list[str]:
    """Those drawn, in the order of the scenario."""
    most: dict[str, int] = {}
    for run in runs:
        for name, node in run.summary["nodes"].items():
            most[name] = max(most.get(name, 0), node["up_bytes"] + node["down_bytes"])
    kept = sorted(most, key=lambda name: -most[name])[:MOST]
    return [name for name in most if name in kept]
