"""Where a job's steps spend their time, in phases that it marked: mean seconds, stacked."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from analysis.load import Run
from analysis.series import NO_PHASE, phases_s
from analysis.style import BarPart, Rows, look, stacked_bars

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
