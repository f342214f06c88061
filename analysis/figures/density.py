"""How many elements were sent against how many were asked for, and what choosing them cost, step by
step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from analysis.load import Run, by_algorithm, lowest_seeds
from analysis.style import PAGE_IN, Rows, finished, look, new_figure, scale
from testbed.compress.gradient_stats import element_count
from testbed.records.stored import by_number

NAME = "density"
TOLERANCE = 0.05
"""The half width of the band that is drawn, as a share of the target."""
_LOG_SPAN = 20.0
"""Densities that span more than this factor are drawn on a logarithmic axis."""
_WIDE = 2.0
"""Ratios beyond this factor of 1 too."""
_TARGET = "0.15"
_BAND: dict[str, Any] = {"facecolor": "0.5", "alpha": 0.22, "linewidth": 0}


def data(runs: Sequence[Run]) -> Rows:
    """Per step, over workers: means of target and achieved density and of passes, least, mean and
    most of sent ÷ asked, and the share of workers ``within`` the tolerance. Lowest seed of each
    algorithm; only those whose selector looked at the elements to choose."""
    rows: Rows = []
    for run in _chosen(runs):
        looked = list(filter(_looked, run.events["step"]))
        rows += [_row(run, int(own[0]["step"]), own) for (own,) in by_number(looked)]
    return rows


def draw(runs: Sequence[Run]) -> Figure:
    """Three panels: density, sent ÷ asked with its band, passes over the vector."""
    figure = new_figure(PAGE_IN, 4.6)
    panels = figure.subplots(3, 1, sharex=True)
    rows, handles, labels = data(runs), [], []
    for index, name in enumerate(by_algorithm(runs)):
        if not (mine := [row for row in rows if row["algorithm"] == name]):
            continue
        handles += _draw_one(panels, mine, {**look(index), "marker": "", "linewidth": 1.0})
        labels.append(f"{name} ({_within(mine)})")
    panels[1].axhspan(1 - TOLERANCE, 1 + TOLERANCE, zorder=0, **_BAND)
    handles += [panels[0].get_lines()[-1], Patch(**_BAND)]
    labels += ["asked", f"asked ± {100 * TOLERANCE:g} % (share of steps)"]
    panels[0].set(ylabel="Density k")
    panels[1].set(ylabel="Sent ÷ asked")
    panels[2].set(ylabel="Passes over\nthe vector", xlabel="Step")
    for axes in panels:
        axes.margins(x=0)
    scale(panels[0], [row["achieved"] for row in rows], _LOG_SPAN)
    scale(panels[2], [row["passes"] for row in rows], np.inf)
    _frame(panels[1], rows)
    figure.align_ylabels(list(panels))
    return finished(
        figure, "Elements sent against elements asked for", handles, labels, runs=_chosen(runs)
    )


def _draw_one(panels: Sequence[Axes], rows: Rows, style: dict[str, Any]) -> list[Any]:
    steps = [row["step"] for row in rows]
    line = panels[0].plot(steps, [row["achieved"] for row in rows], **style)
    requested = [row["target"] for row in rows]
    panels[0].plot(steps, requested, color=_TARGET, linewidth=0.7, linestyle=":", zorder=3)
    panels[1].plot(steps, [row["ratio"] for row in rows], **style)
    low, high = ([row[f"ratio_{side}"] for row in rows] for side in ("min", "max"))
    panels[1].fill_between(steps, low, high, color=style["color"], alpha=0.18, linewidth=0)
    panels[2].plot(steps, [row["passes"] for row in rows], **style)
    return line


def _chosen(runs: Sequence[Run]) -> list[Run]:
    return [run for run in lowest_seeds(runs) if any(map(_looked, run.events.get("step", [])))]


def _looked(record: Mapping[str, Any]) -> bool:
    """Return whether elements were chosen by what they are, not by chance or all of them."""
    how = record.get("selection")
    return how is not None and how["passes"] > 0


def _row(run: Run, step: int, records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    ratios = [_ratio(record) for record in records]
    return {
        "algorithm": run.algorithm,
        "seed": run.seed,
        "step": step,
        "target": float(np.mean([record["density"] for record in records])),
        "achieved": float(np.mean([record["sent_count"] / record["size"] for record in records])),
        "ratio": float(np.mean(ratios)),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
        "passes": float(np.mean([record["selection"]["passes"] for record in records])),
        "within": float(np.mean([_is_within(record) for record in records])),
    }


def _ratio(record: Mapping[str, Any]) -> float:
    return float(record["sent_count"] / element_count(record["size"], record["density"]))


def _is_within(record: Mapping[str, Any]) -> bool:
    """Ties apart: no threshold can send some of them and not the others."""
    requested = element_count(record["size"], record["density"])
    most, least = record["sent_count"], record["sent_count"] - record["selection"]["ties"]
    return bool(most >= (1 - TOLERANCE) * requested and least <= (1 + TOLERANCE) * requested)


def _within(rows: Rows) -> str:
    """Share of the steps, of all workers; not rounded up to all of them."""
    share = float(np.mean([row["within"] for row in rows]))
    return f"{np.floor(1000 * share) / 10:g} %"


def _frame(axes: Axes, rows: Rows) -> None:
    """So much of the ratios that all are seen, and the band at least."""
    low, high = min(row["ratio_min"] for row in rows), max(row["ratio_max"] for row in rows)
    if high > _WIDE or low < 1 / _WIDE:
        axes.set_yscale("log")
        return
    axes.set_ylim(min(1 - 2 * TOLERANCE, low - 0.01), max(1 + 2 * TOLERANCE, high + 0.01))
