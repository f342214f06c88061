"""Figure ``pareto``: time against final accuracy. The fixed densities with their Pareto front,
and every other algorithm on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from adjustText import adjust_text
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, ScalarFormatter

from analysis.load import Run, by_algorithm
from analysis.statistics import Interval, interval
from analysis.style import PAGE_IN, Rows, banner, heading, look, new_figure
from testbed.runner.comparison import fixed_density

NAME = "pareto"
LEAST = 3
"""Fixed densities that it takes to draw a front."""
_LOG_SPAN = 3.0
"""Times that span more than this factor are drawn on a logarithmic axis."""
_FEW, _LEGEND_IN = 8, 0.1
"""Algorithms beside the fixed densities for which the legend has room, and inches for each one
more."""
_FIXED = "0.25"
_PASSES, _POINTS = 200, 200
"""Passes in which labels are moved, and points of the front that they keep away from."""
_OPEN: dict[str, Any] = {
    "markersize": 8,
    "markerfacecolor": "none",
    "markeredgewidth": 1.5,
    "zorder": 4,
}
"""Style of the others' markers: markers under them are seen."""


def data(runs: Sequence[Run]) -> Rows:
    """Per algorithm, over its seeds without invalid runs: mean time (s) and final accuracy with 95
    % intervals, ``density`` of exact top-k where that is fixed, and whether it is on the front of
    those.

    Empty with fewer than three fixed densities. Algorithms that were never evaluated are left out.
    """
    rows = [row for name, same in by_algorithm(runs).items() for row in _rows(name, same)]
    fixed = [row for row in rows if row["density"] is not None]
    if len(fixed) < LEAST:
        return []
    best = front([(row["time_s"], row["accuracy"]) for row in fixed])
    for row in rows:
        row["on_front"] = row["density"] is not None and (row["time_s"], row["accuracy"]) in best
    return rows


def front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Those that none beats in one of less time and more accuracy without losing in the other, by
    time."""
    kept: list[tuple[float, float]] = []
    for point in sorted(set(points), key=lambda point: (point[0], -point[1])):
        if not kept or point[1] > kept[-1][1]:
            kept.append(point)
    return kept


def draw(runs: Sequence[Run]) -> Figure:
    """Crosses as long as the intervals; the front as a line; a marker of its own for every other
    algorithm."""
    rows = data(runs)
    others = [row for row in rows if row["density"] is None]
    figure = new_figure(PAGE_IN, 3.9 + _LEGEND_IN * max(0, len(others) - _FEW))
    axes = figure.add_subplot()
    handles: list[Any] = [_front(axes, rows)]
    labels = ["Pareto front of fixed k"]
    for index, row in enumerate(others):
        handles.append(_cross(axes, row, {**look(index), **_OPEN}))
        labels.append(row["algorithm"])
    axes.set(xlabel="Model time (s)", ylabel="Final test accuracy")
    _scale(axes, rows)
    heading(figure, "Accuracy against time", handles, labels)
    banner(figure, runs)
    _label(axes, rows)
    return figure


def _label(axes: Axes, rows: Rows) -> None:
    """Write every fixed density beside its point, where no marker, interval or front is."""
    texts = [
        axes.text(row["time_s"], row["accuracy"], f"{row['density']:g}", fontsize=7, color=_FIXED)
        for row in rows
        if row["density"]
    ]
    times, accuracies = zip(*_best(rows), strict=True)
    along = np.linspace(times[0], times[-1], _POINTS)
    covered = [*zip(along, np.interp(along, times, accuracies), strict=True)]
    for row in rows:
        low, high = (row[f"accuracy_{end}"] or row["accuracy"] for end in ("low", "high"))
        covered += [(row["time_s"], accuracy) for accuracy in np.linspace(low, high, 9)]
    x, y = zip(*(text.get_position() for text in texts), strict=True)
    adjust_text(
        texts,
        *zip(*covered, strict=True),
        target_x=x,
        target_y=y,
        ax=axes,
        expand=(1.3, 1.6),
        iter_lim=_PASSES,
    )


def _best(rows: Rows) -> list[tuple[float, float]]:
    """Return the points of the front, by time."""
    return sorted((row["time_s"], row["accuracy"]) for row in rows if row["on_front"])


def _rows(name: str, runs: Sequence[Run]) -> Iterator[dict[str, Any]]:
    known = [
        run.summary
        for run in runs
        if run.verdict != "invalid" and run.summary["accuracy"] is not None
    ]
    if not known:
        return
    time_s, accuracy = (
        interval([summary[key] for summary in known]) for key in ("time_s", "accuracy")
    )
    yield {
        "algorithm": name,
        "density": fixed_density(name),
        "seeds": len(known),
        **_ends("time_s", time_s),
        **_ends("accuracy", accuracy),
    }


def _ends(key: str, estimate: Interval) -> dict[str, float | None]:
    return {key: estimate.mean, f"{key}_low": estimate.low, f"{key}_high": estimate.high}


def _front(axes: Axes, rows: Rows) -> Any:
    for row in rows:
        if row["density"] is not None:
            face = _FIXED if row["on_front"] else "white"
            _cross(
                axes,
                row,
                {"color": _FIXED, "marker": "o", "markersize": 4, "markerfacecolor": face},
            )
    axes.plot(*zip(*_best(rows), strict=True), color=_FIXED, linewidth=1.2, marker="", zorder=2)
    return axes.plot([], [], color=_FIXED, linewidth=1.2, marker="o", markersize=4)[0]


def _cross(axes: Axes, row: dict[str, Any], style: dict[str, Any]) -> Any:
    """A marker and its intervals; returns the marker."""
    reach: dict[str, Any] = {
        error: [[row[key] - row[f"{key}_low"]], [row[f"{key}_high"] - row[key]]]
        for error, key in (("xerr", "time_s"), ("yerr", "accuracy"))
        if row[f"{key}_high"] is not None
    }
    at = row["time_s"], row["accuracy"]
    axes.errorbar(
        *at, **reach, fmt="none", ecolor=style["color"], elinewidth=0.8, capsize=2, zorder=3
    )
    (marker,) = axes.plot(*at, **{**style, "linestyle": "none"})
    return marker


def _scale(axes: Axes, rows: Rows) -> None:
    times = [row["time_s"] for row in rows if row["time_s"] > 0]
    axes.margins(x=0.08, y=0.1)
    if times and max(times) > _LOG_SPAN * min(times):
        axes.set_xscale("log")
        around = axes.get_xlim()
        axes.set_xticks(_ticks(*around))
        axes.set_xlim(around)
        axes.xaxis.set_major_formatter(ScalarFormatter())
        axes.xaxis.set_minor_formatter(NullFormatter())


def _ticks(least: float, most: float) -> list[float]:
    """1, 2, 3, 5 and 7 times powers of ten in the range; over more than a decade 1, 2 and 5
    times."""
    digits = (1, 2, 5) if most > 10 * least else (1, 2, 3, 5, 7)
    every = [digit * 10.0**power for power in range(-6, 9) for digit in digits]
    return [tick for tick in every if least <= tick <= most]
