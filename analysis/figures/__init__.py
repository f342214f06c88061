"""A module for a figure, or for several that belong together, each with ``NAME``, ``data(runs)``
(the rows plotted) and ``draw(runs)``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from matplotlib.figure import Figure

from analysis.figures import (
    density,
    fidelity,
    label_shares,
    layers,
    rate_k_delay,
    timeline,
)
from analysis.figures.algorithms import accuracy_over_time, pareto, phases, speedup_bars
from analysis.figures.job import job_bytes, job_phases, job_steps, job_values
from analysis.load import Run
from analysis.style import Rows


class FigureModule(Protocol):
    """Interface of a figure's module."""

    @property
    def NAME(self) -> str:  # noqa: N802 - a constant of modules
        """How its files are called."""
        ...

    def data(self, runs: Sequence[Run], /) -> Rows:
        """Exactly what is plotted, as rows of a table."""
        ...

    def draw(self, runs: Sequence[Run], /) -> Figure:
        """The figure of ``data(runs)``."""
        ...


FIGURES: tuple[FigureModule, ...] = (
    accuracy_over_time,
    rate_k_delay,
    speedup_bars,
    phases,
    fidelity,
)
"""Figures of any runs, in the order of the report."""

OF_SOME: tuple[FigureModule, ...] = (pareto, density, timeline, layers, label_shares)
"""Drawn only of runs that they have data for; they come after the others."""

OF_JOBS: tuple[FigureModule, ...] = (job_steps, job_phases, job_values, job_bytes, fidelity)
"""Figures of runs of somebody else's command, those that they have data for."""


def figures_of(runs: Sequence[Run]) -> list[FigureModule]:
    """Return the modules of the figures that are drawn of ``runs``."""
    if runs[0].is_job:
        return [module for module in OF_JOBS if module.data(runs)]
    return [*FIGURES, *(module for module in OF_SOME if module.data(runs))]
