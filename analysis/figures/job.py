"""Figures of runs of somebody else's command: step times and the links' rates on one axis of time,
phases and values as the job marked them, and what each node's link carried.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.load import Array, Run
from analysis.series import NO_PHASE, edges, ends, lengths, phases_s, shares
from analysis.style import (
    PAGE_IN,
    BarPart,
    Rows,
    RunFigure,
    finished,
    grouped_bars,
    look,
    new_figure,
    shade_unreliable,
    stacked_bars,
)

_ASKED = "0.15"
_RATES = (
    "black: asked of the link that is slowest then; in colour: carried by the link that carries "
    "most; means of a second"
)


def step_rows(runs: Sequence[Run]) -> Rows:
    """``what``: ``step`` (``value``: its s), ``busy`` (the share of it in which the busiest link
    was), ``asked`` (Mbit/s of the link that is slowest at that time; of the longest run),
    ``carried`` (Mbit/s of the link that carries most then, mean of a second); from ``from_s`` to
    ``to_s``. Nothing where no run has steps."""
    if not any(len(lengths(run)) for run in runs):
        return []
    rows = [row for index, run in enumerate(runs) for row in _of_run(index, run)]
    longest = max(range(len(runs)), key=lambda index: runs[index].summary["time_s"])
    return [*rows, *_rates(longest, runs[longest], "asked")]


def draw_steps(runs: Sequence[Run]) -> Figure:
    """Step times, the share in which links were busy, and rates, one above the other."""
    rows = step_rows(runs)
    figure = new_figure(PAGE_IN, 4.6)
    panels: list[Axes] = list(figure.subplots(3, 1, sharex=True, height_ratios=(1.5, 0.7, 1.2)))
    handles: list[Any] = []
    names = [_label(run) for run in runs]
    labels = list(dict.fromkeys(names))
    for index, name in enumerate(names):
        own = look(labels.index(name))
        style = {"color": own["color"], "linestyle": own["linestyle"]}
        for axes, what in zip(panels, ("step", "busy", "carried"), strict=True):
            drawn = _stairs(
                axes, [r for r in rows if (r["run"], r["what"]) == (index, what)], style
            )
            if what == "step" and names.index(name) == index:
                handles.append(drawn)
    _stairs(
        panels[2], [r for r in rows if r["what"] == "asked"], {"color": _ASKED, "linewidth": 0.8}
    )
    panels[0].set(ylabel="Step (s)", ylim=(0, None))
    panels[1].set(ylabel="Links busy", ylim=(0, 1.05))
    panels[2].set(ylabel="Rate (Mbit/s)", xlabel="Model time (s)", ylim=(0, None))
    panels[2].set_xlim(0, max(row["to_s"] for row in rows))
    panels[2].set_title(_RATES, loc="left", fontsize=6.5)
    shade_unreliable(panels[2:], runs, names, handles, labels)
    figure.align_ylabels(panels)
    return finished(figure, "Step time and rate of the links", handles, labels, runs=runs)


def _label(run: Run) -> str:
    """Whose steps, and how they are known where nobody said."""
    known = run.known
    if known.by == "traffic":
        return f"{run.algorithm} (inferred, {known.confidence:.2f})"
    return run.algorithm if known.by else f"{run.algorithm} (steps not known)"


def _of_run(index: int, run: Run) -> Rows:
    spans = edges(run)
    steps = [
        _row(index, run, what, span, value)
        for what, column in (("step", lengths(run)), ("busy", shares(run)))
        for span, value in zip(pairwise(spans), column, strict=True)
    ]
    return [*steps, *_rates(index, run, "carried")]


def _rates(index: int, run: Run, what: str) -> Rows:
    """In bins of a second: of all links, the lowest rate asked for, or the highest carried."""
    by_direction = [end.seconds() for end in ends(run)]
    count = min((len(bins.start) for bins in by_direction), default=0)
    if not count:
        return []
    if what == "asked":
        rates = np.min([bins.requested[:count] for bins in by_direction], axis=0)
    else:
        rates = np.max([bins.delivered[:count] for bins in by_direction], axis=0)
    spans = zip(by_direction[0].start[:count], by_direction[0].stop[:count], strict=True)
    return [
        _row(index, run, what, span, rate / 1e6) for span, rate in zip(spans, rates, strict=True)
    ]


def _row(
    index: int, run: Run, what: str, span: tuple[float, float], value: float
) -> dict[str, Any]:
    return {
        "run": index,
        "algorithm": run.algorithm,
        "what": what,
        "from_s": float(span[0]),
        "to_s": float(span[1]),
        "value": float(value),
    }


def _stairs(axes: Axes, rows: Rows, style: dict[str, Any]) -> Any:
    """Values that follow one another in time; without any, a line for the legend."""
    if not rows:
        return axes.plot([], [], **style)[0]
    bounds: Array = np.array([rows[0]["from_s"], *(row["to_s"] for row in rows)])
    values = np.array([row["value"] for row in rows])
    return axes.plot(np.repeat(bounds, 2)[1:-1], np.repeat(values, 2), **style)[0]


_HATCHES = ("", "///", "...", "\\\\\\", "xxx", "---", "++", "ooo")
_REST = "0.85"


def phase_rows(runs: Sequence[Run]) -> Rows:
    """Per run and phase: mean seconds of a step over steps and processes. Nothing where no phases
    were marked."""
    return [
        {"run": index, "algorithm": run.algorithm, "phase": phase, "seconds": seconds}
        for index, run in enumerate(runs)
        for phase, seconds in phases_s(run).items()
    ]


def draw_phases(runs: Sequence[Run]) -> Figure:
    """A bar per run, a part per phase, the whole written at its end."""
    rows = phase_rows(runs)
    marked = list(dict.fromkeys(row["run"] for row in rows))
    phases = list(dict.fromkeys(row["phase"] for row in rows if row["phase"] != NO_PHASE))
    seconds = {(row["run"], row["phase"]): row["seconds"] for row in rows}
    parts = [
        BarPart(
            phase,
            [seconds.get((run, phase), 0.0) for run in marked],
            _REST if phase == NO_PHASE else look(index)["color"],
            _HATCHES[index % len(_HATCHES)],
        )
        for index, phase in enumerate([*phases, NO_PHASE])
    ]
    names = [runs[run].algorithm for run in marked]
    return stacked_bars(names, parts, "Mean time of a step by phase, as marked", runs)


MOST_VALUES = 4
"""So many values are drawn: the first that were told."""
_MARKED = 40
"""The most steps of which every one has its marker."""


def value_rows(runs: Sequence[Run]) -> Rows:
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
    drawn = list(dict.fromkeys(row["value"] for row in rows))[:MOST_VALUES]
    return [row for row in rows if row["value"] in drawn]


def draw_values(runs: Sequence[Run]) -> Figure:
    """A row of panels per value: over steps on the left, over time on the right."""
    rows = value_rows(runs)
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


MOST_NODES = 16
"""So many nodes are drawn: those whose links carried most."""
_DIRECTIONS = ("up", "down")


def carried_rows(runs: Sequence[Run]) -> Rows:
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


def draw_carried(runs: Sequence[Run]) -> Figure:
    """Up above, down below; at each node a bar per run."""
    rows, nodes = carried_rows(runs), _nodes(runs)
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
    kept = sorted(most, key=lambda name: -most[name])[:MOST_NODES]
    return [name for name in most if name in kept]


job_steps = RunFigure("job_steps", step_rows, draw_steps)
job_phases = RunFigure("job_phases", phase_rows, draw_phases)
job_values = RunFigure("job_values", value_rows, draw_values)
job_bytes = RunFigure("job_bytes", carried_rows, draw_carried)
