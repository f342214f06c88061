"""Where a step's time goes: mean seconds of every phase, stacked."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from analysis.load import Run, by_algorithm
from analysis.style import BarPart, Rows, stacked_bars
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
    """A bar per algorithm, a part per phase that takes time, the whole written at its end."""
    rows = data(runs)
    lengths = {phase: [row["seconds"] for row in rows if row["phase"] == phase] for phase in PHASES}
    parts = [BarPart(phase, times, *LOOKS[phase]) for phase, times in lengths.items() if any(times)]
    return stacked_bars(list(by_algorithm(runs)), parts, "Mean time of a step by phase", runs)
