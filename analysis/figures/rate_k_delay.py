"""Rate of the server's link (the first worker's where none takes part in the longest run), the
controllers' response to it, and its cost: one time axis."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from analysis.load import Run, by_algorithm, longest, lowest_seeds
from analysis.series import MOST_BINS, EndSamples
from analysis.style import (
    PAGE_IN,
    Rows,
    finished,
    look,
    new_figure,
    scale,
    shade_unreliable,
)
from testbed.records.run_directory import equal_parts

NAME = "rate_k_delay"
_LOG_SPAN = 20.0
"""Values that span more than this factor are drawn on a logarithmic axis."""
_BINS = 60
"""Delivered traffic is on and off: it is drawn as means over so many equal times."""


def data(runs: Sequence[Run]) -> Rows:
    """``asked`` and ``delivered`` (Mbit/s), ``k`` and ``delay`` (s) over time; lowest seed of
    each."""
    chosen = lowest_seeds(runs)
    drawn, width_s = longest(chosen), _width_s(chosen)
    requested = _requested(drawn, drawn.server)
    rows = [_row("", drawn.seed, "asked_mbit_s", *point) for point in requested]
    for run in chosen:
        times = run.per_step("end_s")
        series = {
            "delivered_mbit_s": _delivered(run, drawn.server, width_s),
            "k": zip(times, run.per_step("density"), strict=True),
            "delay_s": zip(times, run.per_step("delay_s"), strict=True),
        }
        for quantity, points in series.items():
            rows += [_row(run.algorithm, run.seed, quantity, *point) for point in points]
    return rows


def draw(runs: Sequence[Run]) -> Figure:
    """Three panels: link rate, k, communication delay."""
    figure = new_figure(PAGE_IN, 4.6)
    panels = figure.subplots(3, 1, sharex=True)
    rows, names, handles = data(runs), list(by_algorithm(runs)), []
    chosen = lowest_seeds(runs)
    requested = _points(rows, "", "asked_mbit_s")
    handles += panels[0].plot(
        *requested, color="0.15", linewidth=1.0, drawstyle="steps-post", zorder=3
    )
    for index, algorithm in enumerate(names):
        style = {**look(index), "marker": "", "linewidth": 1.0}
        times, rates = _points(rows, algorithm, "delivered_mbit_s")
        if times:  # the last rate, too, held for its time
            times, rates = [*times, times[-1] + _width_s(chosen)], [*rates, rates[-1]]
        panels[0].plot(times, rates, **style, drawstyle="steps-post")
        handles += panels[1].plot(*_points(rows, algorithm, "k"), **style)
        panels[2].plot(*_points(rows, algorithm, "delay_s"), **style)
    panels[0].set(ylabel=f"Rate to {longest(chosen).server}\n(Mbit/s)")
    panels[0].set_ylim(bottom=0)
    panels[1].set(ylabel="Density k")
    panels[2].set(ylabel="Communication\ndelay (s)", xlabel="Model time (s)")
    panels[2].set_xlim(left=0)
    for axes, quantity in zip(panels[1:], ("k", "delay_s"), strict=True):
        scale(axes, [row["value"] for row in rows if row["quantity"] == quantity], _LOG_SPAN)
    figure.align_ylabels(list(panels))
    labels = ["asked", *names]
    shade_unreliable(panels, chosen, names, handles, labels)
    return finished(
        figure, "Link rate, density and communication delay", handles, labels, runs=chosen
    )


def _width_s(chosen: Sequence[Run]) -> float:
    return float(longest(chosen).summary["time_s"]) / _BINS


def _row(
    algorithm: str, seed: int, quantity: str, time_s: float, value: float
) -> dict[str, object]:
    return {
        "quantity": quantity,
        "algorithm": algorithm,
        "seed": seed,
        "time_s": float(time_s),
        "value": float(value),
    }


def _requested(run: Run, link: str) -> list[tuple[float, float]]:
    samples = EndSamples(run, link, "down").samples
    if not len(samples.start):
        return []
    begun = samples.start >= -1e-9
    points = [
        (max(0.0, float(t)), float(r) / 1e6)
        for t, r in zip(samples.start[begun], samples.requested[begun], strict=True)
    ]
    return [*points, (float(samples.stop[-1]), float(samples.requested[-1]) / 1e6)]


def _delivered(run: Run, link: str, width_s: float) -> list[tuple[float, float]]:
    """Mean delivered rate in equal times; a sample's bits are spread evenly over its time.

    What is left of the run after the last whole one is not drawn.
    """
    samples = EndSamples(run, link, "down").samples
    start, stop = samples.start, samples.stop
    if not len(start) or width_s <= 0:
        return []
    edges = equal_parts(0.0, float(run.summary["time_s"]) * (1 + 1e-9), width_s, MOST_BINS)
    total = np.concatenate([[0.0], np.cumsum(samples.delivered * (stop - start))])
    passed = np.interp(edges, np.concatenate([start[:1], stop]), total)
    return list(zip(edges[:-1], np.diff(passed) / width_s / 1e6, strict=True))


def _points(rows: Rows, algorithm: str, quantity: str) -> tuple[list[float], list[float]]:
    mine = [row for row in rows if (row["algorithm"], row["quantity"]) == (algorithm, quantity)]
    return [row["time_s"] for row in mine], [row["value"] for row in mine]
