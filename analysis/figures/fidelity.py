"""Rates that links were asked for and gave, errors per second, and how late changes were."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from analysis.load import Run
from analysis.series import EndSamples, ends
from analysis.style import (
    PAGE_IN,
    UNRELIABLE,
    Rows,
    banner,
    heading,
    look,
    new_figure,
    shade,
    shade_handle,
)

NAME = "fidelity"
MOST_ENDS = 6
"""So many link directions are drawn: those that were busy for the longest time."""
_RATE_IN, _ERROR_IN, _LATE_IN, _REST_IN = 1.05, 0.6, 1.35, 0.75
_LEAST_MS, _ERROR_SHOWN, _MARKED = 1e-2, 0.03, 20
_ASKED, _DELIVERED, _IDLE = "0.15", "#0072B2", "0.75"
_PALE = "not backlogged throughout"


def data(runs: Sequence[Run]) -> Rows:
    """Return the data of the run most in doubt: rates (Mbit/s) of 100 ms and of 1 s, errors of 1 s,
    lateness of changes (ms) and disturbed times (from ``time_s`` to ``value``), by link direction.
    ``busy``: backlogged throughout."""
    run = _most_doubtful(runs)
    rows: Rows = []
    for end in _chosen(run):
        rows += _of_end(run, end)
    rows += [
        _row("", "", "disturbed", from_s, to_s, busy=False) for from_s, to_s in run.disturbed()
    ]
    return rows


def draw(runs: Sequence[Run]) -> Figure:
    """Rates of each link direction, and errors of one that was ever busy for a second; lateness
    below."""
    run, rows = _most_doubtful(runs), data(runs)
    chosen = _chosen(run)
    panels = [(end, height) for end in chosen for height in _heights(end)]
    heights = [height for _, height in panels]
    figure = new_figure(PAGE_IN, _REST_IN + (sum(heights) or _RATE_IN) + _LATE_IN)
    grid = figure.add_gridspec(len(panels) + 1, 1, height_ratios=[*heights, _LATE_IN])
    handles: list[Any] = []
    labels: list[str] = []
    first: Axes | None = None
    for index, (end, height) in enumerate(panels):
        axes = figure.add_subplot(grid[index], sharex=first)
        first = first or axes
        mine = [row for row in rows if (row["link"], row["direction"]) == (end.link, end.direction)]
        if height == _RATE_IN:
            handles = _draw_rates(axes, end, mine)
            labels = ["asked", "delivered per 100 ms", "per 1 s"]
        else:
            _draw_errors(axes, mine)
        axes.tick_params(labelbottom=index == len(panels) - 1)
        axes.set(xlabel="Model time (s)" if index == len(panels) - 1 else "")
        shade(axes, run.disturbed(end.name))
    if first is not None:
        first.set_xlim(0, max(float(end.samples.stop[-1]) for end in chosen))
    _draw_lateness(figure.add_subplot(grid[-1]), chosen, rows)
    figure.align_ylabels(figure.axes)
    errors = [(row["link"], row["direction"]) for row in rows if _is_pale(row)]
    if any((end.link, end.direction) in errors and len(_heights(end)) > 1 for end in chosen):
        handles, labels = [*handles, Patch(color=_IDLE, linewidth=0)], [*labels, _PALE]
    if any(run.disturbed(end.name) for end in chosen):
        handles, labels = [*handles, shade_handle()], [*labels, UNRELIABLE]
    _title(figure, run, len(ends(run)) - len(chosen), handles, labels)
    banner(figure, [run])
    return figure


def _heights(end: EndSamples) -> list[float]:
    """Return the heights of its panels, in inches: rates, and errors if there is a second in which
    the link can be blamed for what it did not deliver."""
    return [_RATE_IN, _ERROR_IN] if end.seconds().busy.any() else [_RATE_IN]


def _most_doubtful(runs: Sequence[Run]) -> Run:
    """The first of those whose verdict is the worst."""
    return max(runs, key=lambda run: ("valid", "degraded", "invalid").index(run.verdict))


def _chosen(run: Run) -> list[EndSamples]:
    directions = ends(run)
    ranked = sorted(directions, key=lambda end: -float(end.samples.busy.sum()))[:MOST_ENDS]
    kept = {end.name for end in ranked}
    return [end for end in directions if end.name in kept]


def _of_end(run: Run, end: EndSamples) -> Iterator[dict[str, Any]]:
    samples, seconds = end.samples, end.seconds()
    for quantity, bins, values in (
        ("asked_100ms_mbit_s", samples, samples.requested / 1e6),
        ("delivered_100ms_mbit_s", samples, samples.delivered / 1e6),
        ("delivered_1s_mbit_s", seconds, seconds.delivered / 1e6),
        ("error_1s", seconds, seconds.error),
    ):
        for time_s, value, busy in zip(bins.start, values, bins.busy, strict=True):
            yield _row(end.link, end.direction, quantity, time_s, value, busy=busy)
    for change in run.links:
        if change["kind"] == "change" and f"{change['link']} {change['direction']}" == end.name:
            due_s = float(change["due_s"])
            late_ms = 1e3 * (float(change["applied_s"]) - due_s)
            yield _row(
                end.link, end.direction, "late_ms", due_s / run.dilation, late_ms, busy=False
            )


def _row(
    link: str, direction: str, quantity: str, time_s: float, value: float, *, busy: bool
) -> dict[str, Any]:
    return {
        "link": link,
        "direction": direction,
        "quantity": quantity,
        "time_s": float(time_s),
        "value": float(value),
        "busy": bool(busy),
    }


def _draw_rates(axes: Axes, end: EndSamples, rows: Rows) -> list[Any]:
    styles: dict[str, dict[str, Any]] = {
        "asked_100ms_mbit_s": {"color": _ASKED, "linewidth": 0.9, "zorder": 3},
        "delivered_100ms_mbit_s": {"color": _DELIVERED, "linewidth": 0.8, "alpha": 0.6},
        "delivered_1s_mbit_s": {"color": _DELIVERED, "linewidth": 1.6},
    }
    handles: list[Any] = []
    for quantity, style in styles.items():
        times, values, _ = _series(rows, quantity)
        if quantity == "delivered_1s_mbit_s" and times:
            times, values = [*times, times[-1] + 1.0], [*values, values[-1]]
        handles += axes.plot(times, values, drawstyle="steps-post", **style)
    axes.set(ylabel="Mbit/s")
    axes.set_title(end.name, loc="left", fontsize="medium")
    axes.set_ylim(bottom=0)
    return handles


def _draw_errors(axes: Axes, rows: Rows) -> None:
    """Bars of whole seconds; those in which there was not always something to send are pale."""
    times, errors, busy = _series(rows, "error_1s")
    centres = np.array(times) + 0.5
    shown = 100 * np.clip(np.nan_to_num(np.array(errors)), -_ERROR_SHOWN, _ERROR_SHOWN)
    colours = [_DELIVERED if flag else _IDLE for flag in busy]
    axes.bar(centres, shown, width=0.8, color=colours)
    axes.axhline(0, color=_ASKED, linewidth=0.6)
    axes.set(ylabel="error\n(%)")
    axes.set_ylim(-100 * _ERROR_SHOWN, 100 * _ERROR_SHOWN)


def _draw_lateness(axes: Axes, chosen: Sequence[EndSamples], rows: Rows) -> None:
    """The share of changes that were later than so much; what was told ahead of time is drawn at
    the left."""
    for index, end in enumerate(chosen):
        mine = [row for row in rows if (row["link"], row["direction"]) == (end.link, end.direction)]
        late = np.sort(np.maximum(_LEAST_MS, _series(mine, "late_ms")[1]))
        if len(late):
            share = 1 - np.arange(len(late)) / len(late)
            late, share = np.concatenate([[_LEAST_MS], late]), np.concatenate([[1.0], share])
            style = {**look(index), "linewidth": 1.0, "markevery": slice(1, None)}
            if len(late) > _MARKED:
                style["marker"] = ""  # few changes are points, and many a line
            axes.step(late, share, where="pre", label=end.name, **style)
    if not axes.lines:
        axes.text(0.5, 0.5, "no changes", transform=axes.transAxes, ha="center", va="center")
    else:
        axes.set(xscale="log", yscale="log")
        axes.legend(ncols=2, fontsize="x-small")
    axes.set(xlabel="Lateness of changes (ms)", ylabel="share of changes\nas late or later")


def _series(rows: Rows, quantity: str) -> tuple[list[float], list[float], list[bool]]:
    mine = [row for row in rows if row["quantity"] == quantity]
    return [r["time_s"] for r in mine], [r["value"] for r in mine], [r["busy"] for r in mine]


def _is_pale(row: Mapping[str, Any]) -> bool:
    """Return whether it is an error of a second in which something was not always to be sent."""
    return row["quantity"] == "error_1s" and not row["busy"] and abs(row["value"]) > 0


def _title(
    figure: Figure, run: Run, left_out: int, handles: Sequence[Any], labels: Sequence[str]
) -> None:
    what = run.algorithm if run.algorithm == "replay" else f"{run.algorithm} s{run.seed}"
    more = f" ({left_out} more directions were less busy)" if left_out else ""
    heading(figure, f"Links of {what}: asked and delivered{more}", handles, labels)
