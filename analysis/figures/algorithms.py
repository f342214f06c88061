"""Figures of algorithms side by side: test accuracy against model time, how many times faster than
``none`` each finished the same steps, and where a step's time goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import numpy as np
from matplotlib.artist import Artist
from matplotlib.figure import Figure

from analysis import tables
from analysis.load import Run, by_algorithm
from analysis.style import (
    COLUMN_IN,
    PAGE_IN,
    BarPart,
    Rows,
    RunFigure,
    finished,
    look,
    new_figure,
    rows_of_bars,
    shade_unreliable,
    stacked_bars,
    write_beside,
)
from testbed.records.events import PHASES

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
    shade_unreliable([axes], runs, handles, labels)
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


accuracy_over_time = RunFigure("accuracy_over_time", accuracy_rows, draw_accuracy)
speedup_bars = RunFigure("speedup_bars", speedup_rows, draw_speedup)
phases = RunFigure("phases", phase_rows, draw_phases)
