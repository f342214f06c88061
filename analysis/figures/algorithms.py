"""Figures of algorithms side by side: test accuracy against model time, how many times faster than
``none`` each finished the same steps, where a step's time goes, and time against final accuracy,
with the Pareto front of the fixed densities.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, ScalarFormatter

from analysis import tables
from analysis.load import Run, by_algorithm
from analysis.statistics import Interval, interval
from analysis.style import (
    COLUMN_IN,
    PAGE_IN,
    BarPart,
    Rows,
    RunFigure,
    banner,
    finished,
    heading,
    look,
    new_figure,
    rows_of_bars,
    shade_unreliable,
    stacked_bars,
    write_beside,
)
from testbed.records.events import PHASES
from testbed.runner.comparison import fixed_density

_FEW = 8
"""More algorithms have the width of a page; bands would hide each other."""


def accuracy_rows(runs: Sequence[Run]) -> Rows:
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


def draw_accuracy(runs: Sequence[Run]) -> Figure:
    """Mean over seeds as a line; the range over seeds as a band where there are several, and few
    algorithms."""
    rows, names = accuracy_rows(runs), list(by_algorithm(runs))
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
    shade_unreliable([axes], runs, [run.algorithm for run in runs], handles, labels)
    return finished(figure, "Test accuracy over time", handles, labels, runs=runs)


def speedup_rows(runs: Sequence[Run]) -> Rows:
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


def draw_speedup(runs: Sequence[Run]) -> Figure:
    """A bar each, labelled with its value; a whisker for the range over seeds."""
    rows = speedup_rows(runs)
    figure = new_figure(COLUMN_IN, 1.1 + 0.32 * len(rows))
    axes = figure.add_subplot()
    known = [row["speedup_max"] for row in rows if row["speedup"] is not None]
    for index, row in enumerate(rows):
        if row["speedup"] is None:
            axes.text(0.02, index, "no run to compare with 'none'", va="center", fontsize=7)
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


PHASE_LOOKS = {
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


def phase_rows(runs: Sequence[Run]) -> Rows:
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


def draw_phases(runs: Sequence[Run]) -> Figure:
    """A bar per algorithm, a part per phase that takes time, the whole written at its end."""
    rows = phase_rows(runs)
    lengths = {phase: [row["seconds"] for row in rows if row["phase"] == phase] for phase in PHASES}
    parts = [
        BarPart(phase, times, *PHASE_LOOKS[phase]) for phase, times in lengths.items() if any(times)
    ]
    return stacked_bars(list(by_algorithm(runs)), parts, "Mean time of a step by phase", runs)


LEAST = 3
"""Fixed densities that it takes to draw a front."""
_LOG_SPAN = 3.0
"""Times that span more than this factor are drawn on a logarithmic axis."""
_LEGEND_ROWS, _LEGEND_IN = 8, 0.1
"""Algorithms beside the fixed densities for which the legend has room, and inches for each one
more."""
_FIXED = "0.25"
_BEYOND = 0.03
"""How much of the axis lies beyond an accuracy of 0 and 1."""
_PASSES, _POINTS = 200, 200
"""Passes in which labels are moved, and points of the front that they keep away from."""
_OPEN: dict[str, Any] = {
    "markersize": 8,
    "markerfacecolor": "none",
    "markeredgewidth": 1.5,
    "zorder": 4,
}
"""Style of the others' markers: markers under them are seen."""


def pareto_rows(runs: Sequence[Run]) -> Rows:
    """Per algorithm, over its seeds without invalid runs: mean time (s) and final accuracy with 95
    % intervals, ``density`` of exact top-k where that is fixed, and whether it is on the front of
    those.

    Empty with fewer than three fixed densities. Algorithms that were never evaluated are left out.
    """
    rows = [row for name, same in by_algorithm(runs).items() for row in _mean_rows(name, same)]
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


def draw_pareto(runs: Sequence[Run]) -> Figure:
    """Crosses as long as the intervals; the front as a line; a marker of its own for every other
    algorithm."""
    rows = pareto_rows(runs)
    others = [row for row in rows if row["density"] is None]
    figure = new_figure(PAGE_IN, 3.9 + _LEGEND_IN * max(0, len(others) - _LEGEND_ROWS))
    axes = figure.add_subplot()
    handles: list[Any] = [_draw_front(axes, rows)]
    labels = ["Pareto front of fixed k"]
    names = list(by_algorithm(runs))
    for row in others:
        own = look(names.index(row["algorithm"]))
        handles.append(_cross(axes, row, {**own, **_OPEN}))
        labels.append(row["algorithm"])
    axes.set(xlabel="Model time (s)", ylabel="Final test accuracy")
    _scale_times(axes, rows)
    low, high = axes.get_ylim()
    axes.set_ylim(max(low, -_BEYOND), min(high, 1 + _BEYOND))
    heading(figure, "Accuracy against time", handles, labels)
    banner(figure, runs)
    _label_points(axes, rows)
    return figure


def _label_points(axes: Axes, rows: Rows) -> None:
    """Write every fixed density beside its point, where no marker, interval or front is."""
    from adjustText import adjust_text  # with half of scipy

    texts = [
        axes.text(row["time_s"], row["accuracy"], f"{row['density']:g}", fontsize=7, color=_FIXED)
        for row in rows
        if row["density"]
    ]
    times, accuracies = zip(*_on_front(rows), strict=True)
    along = np.linspace(times[0], times[-1], _POINTS)
    covered = [*zip(along, np.interp(along, times, accuracies), strict=True)]
    for row in rows:
        low, high = (row[f"accuracy_{end}"] or row["accuracy"] for end in ("low", "high"))
        ends = max(0.0, low), min(1.0, high)
        covered += [(row["time_s"], accuracy) for accuracy in np.linspace(*ends, 9)]
    x, y = zip(*(text.get_position() for text in texts), strict=True)
    adjust_text(
        texts,
        *zip(*covered, strict=True),
        target_x=x,
        target_y=y,
        ax=axes,
        expand=(1.3, 1.6),
        iter_lim=_PASSES,
        min_arrow_len=4,
        arrowprops={"arrowstyle": "-", "color": _FIXED, "linewidth": 0.4},
    )


def _on_front(rows: Rows) -> list[tuple[float, float]]:
    """Return the points of the front, by time."""
    return sorted((row["time_s"], row["accuracy"]) for row in rows if row["on_front"])


def _mean_rows(name: str, runs: Sequence[Run]) -> Iterator[dict[str, Any]]:
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


def _draw_front(axes: Axes, rows: Rows) -> Any:
    for row in rows:
        if row["density"] is not None:
            face = _FIXED if row["on_front"] else "white"
            _cross(
                axes,
                row,
                {"color": _FIXED, "marker": "o", "markersize": 4, "markerfacecolor": face},
            )
    axes.plot(*zip(*_on_front(rows), strict=True), color=_FIXED, linewidth=1.2, marker="", zorder=2)
    return axes.plot([], [], color=_FIXED, linewidth=1.2, marker="o", markersize=4)[0]


def _cross(axes: Axes, row: dict[str, Any], style: dict[str, Any]) -> Any:
    """A marker and its intervals, as far as there are such values; returns the marker."""
    reach: dict[str, Any] = {
        error: [
            [row[key] - max(least, row[f"{key}_low"])],
            [min(most, row[f"{key}_high"]) - row[key]],
        ]
        for error, key, least, most in (("xerr", "time_s", 0, np.inf), ("yerr", "accuracy", 0, 1))
        if row[f"{key}_high"] is not None
    }
    at = row["time_s"], row["accuracy"]
    axes.errorbar(
        *at, **reach, fmt="none", ecolor=style["color"], elinewidth=0.8, capsize=2, zorder=3
    )
    (marker,) = axes.plot(*at, **{**style, "linestyle": "none"})
    return marker


def _scale_times(axes: Axes, rows: Rows) -> None:
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


accuracy_over_time = RunFigure("accuracy_over_time", accuracy_rows, draw_accuracy)
speedup_bars = RunFigure("speedup_bars", speedup_rows, draw_speedup)
phases = RunFigure("phases", phase_rows, draw_phases)
pareto = RunFigure("pareto", pareto_rows, draw_pareto)
