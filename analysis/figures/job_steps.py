"""A job's step times and its links' rates on one axis of time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.load import Array, Run
from analysis.series import edges, ends, lengths, shares
from analysis.style import PAGE_IN, Rows, finished, look, new_figure, shade_unreliable

NAME = "job_steps"
_ASKED = "0.15"
_RATES = (
    "black: asked of the link that is slowest then; in colour: carried by the link that carries "
    "most; means of a second"
)


def data(runs: Sequence[Run]) -> Rows:
    """``what``: ``step`` (``value``: its s), ``busy`` (the share of it in which the busiest link
    was), ``asked`` (Mbit/s of the link that is slowest at that time; of the longest run),
    ``carried`` (Mbit/s of the link that carries most then, mean of a second); from ``from_s`` to
    ``to_s``. Nothing where no run has steps."""
    if not any(len(lengths(run)) for run in runs):
        return []
    rows = [row for index, run in enumerate(runs) for row in _of_run(index, run)]
    longest = max(range(len(runs)), key=lambda index: runs[index].summary["time_s"])
    return [*rows, *_rates(longest, runs[longest], "asked")]


def draw(runs: Sequence[Run]) -> Figure:
    """Step times, the share in which links were busy, and rates, one above the other."""
    rows = data(runs)
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
    shade_unreliable(panels[2:], runs, handles, labels)
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
