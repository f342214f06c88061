"""Figures of benchmarks: virtual time held against real links, and how a step grows with the number of workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.style import PAGE_IN, Rows, heading, look, new_figure, save

BenchRows = Sequence[Mapping[str, Any]]
_PARTS = ("compute", "send", "wait", "receive")


def draw_agreement(out: Path, rows: BenchRows) -> list[Path]:
    """Measured against simulated step times into ``out``: agreement.png, .pdf and .csv."""
    return save(out, "agreement", rows, _rows, _agreement)


def draw_scale(out: Path, rows: BenchRows) -> list[Path]:
    """Step time by its parts, memory and time to simulate it into ``out``: scale.png, .pdf and .csv."""
    return save(out, "scale", rows, _rows, _scale)


def draw_exchange(out: Path, rows: BenchRows) -> list[Path]:
    """Rounds per second by size, a panel for each link, into ``out``: exchange.png, .pdf and .csv."""
    return save(out, "exchange", rows, _rows, _exchange)


def _rows(rows: BenchRows) -> Rows:
    return [dict(row) for row in rows]


def _agreement(rows: BenchRows) -> Figure:
    """Left: one against the other; right: how far they are apart, by what is measured."""
    figure = new_figure(PAGE_IN, 3.1)
    both, errors = figure.subplots(1, 2, width_ratios=(1, 1.25))
    algorithms = list(dict.fromkeys(str(row["algorithm"]) for row in rows))
    handles = []
    for index, algorithm in enumerate(algorithms):
        same = [row for row in rows if row["algorithm"] == algorithm]
        style = {**look(index), "linestyle": "", "markersize": 3}
        measured = np.array([row["measured_s"] for row in same])
        handles += both.plot(measured, [row["simulated_s"] for row in same], **style)
        errors.plot(measured, [100 * row["error"] for row in same], **style)
    ends = [min(r["measured_s"] for r in rows) / 1.2, max(r["measured_s"] for r in rows) * 1.2]
    both.plot(ends, ends, color="black", linewidth=0.6, zorder=0)
    both.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    both.set(xlabel="Measured mean step time (s)", ylabel="Simulated mean step time (s)")
    for share, line in ((5, "--"), (10, ":")):
        for side in (-share, share):
            errors.axhline(side, color="black", linewidth=0.6, linestyle=line, zorder=0)
    errors.axhline(0, color="black", linewidth=0.6, zorder=0)
    errors.set(xscale="log", xlabel="Measured mean step time (s)", ylabel="Error (%)")
    heading(figure, "Virtual time against real links", handles, algorithms)
    return figure


def _scale(rows: BenchRows) -> Figure:
    """Left and middle: a step and its parts with the fewest and the most servers; right: the simulation."""
    figure = new_figure(PAGE_IN, 3.1)
    axes = figure.subplots(1, 3)
    servers = sorted({int(row["servers"]) for row in rows})
    highest = max(float(row["step_s"]) for row in rows)
    labels, handles = ["step", *_PARTS], []
    for place, many in zip(axes, dict.fromkeys((servers[0], servers[-1])), strict=False):
        same = _sorted(rows, many)
        workers = [row["workers"] for row in same]
        handles = [
            place.plot(workers, [row[f"{label}_s"] for row in same], **look(i), markersize=3)[0]
            for i, label in enumerate(labels)
        ]
        place.set(xscale="log", yscale="log", ylim=(1e-4, 2 * highest))
        place.set(xlabel="Workers", ylabel="Time per step (s)")
        place.set_title(_servers(many))
    _simulation(axes[2], rows, servers)
    if len(servers) == 1:
        axes[1].set_visible(False)
    heading(figure, "Workers behind oversubscribed racks", handles, labels)
    return figure


def _simulation(axes: Axes, rows: BenchRows, servers: Sequence[int]) -> None:
    for index, many in enumerate(servers):
        same = _sorted(rows, many)
        workers = [row["workers"] for row in same]
        style = {**look(index), "markersize": 3}
        axes.plot(
            workers,
            [r["run_per_step_s"] for r in same],
            **style,
            label=f"s per step, {_servers(many)}",
        )
        style["linestyle"], style["color"] = ":", "black"
        axes.plot(
            workers,
            [r["memory_bytes"] / 2**30 for r in same],
            **style,
            label=f"GiB, {_servers(many)}",
        )
    axes.set(xscale="log", yscale="log", xlabel="Workers")
    axes.set_title("To simulate it")
    axes.legend(fontsize=6)


def _exchange(rows: BenchRows) -> Figure:
    """Side by side, the links; one below the other, the numbers of nodes."""
    links, nodes = ([*dict.fromkeys(row[key] for row in rows)] for key in ("link", "nodes"))
    names = list(dict.fromkeys(str(row["exchange"]) for row in rows))
    figure = new_figure(PAGE_IN, 0.9 + 2.2 * len(nodes))
    places = figure.subplots(len(nodes), len(links), sharex=True, squeeze=False)
    handles = []
    for down, many in enumerate(nodes):
        for along, link in enumerate(links):
            axes = places[down, along]
            here = [row for row in rows if row["link"] == link and row["nodes"] == many]
            handles = [_speeds(axes, here, name, index) for index, name in enumerate(names)]
            axes.set(xscale="log", yscale="log", title=f"{link}, {many} nodes")
            if along == 0:
                axes.set_ylabel("Rounds per second")
            if many == nodes[-1]:
                axes.set_xlabel("Gradient (B)")
    heading(figure, "Rounds of gradients", handles, names)
    return figure


def _speeds(axes: Axes, rows: BenchRows, name: str, index: int) -> Line2D:
    same = [row for row in rows if row["exchange"] == name and row["rounds_per_s"] is not None]
    same.sort(key=lambda row: int(row["bytes"]))
    sizes, speeds = [row["bytes"] for row in same], [row["rounds_per_s"] for row in same]
    return axes.plot(sizes, speeds, **look(index), markersize=3)[0]


def _sorted(rows: BenchRows, servers: int) -> list[Mapping[str, Any]]:
    same = [row for row in rows if row["servers"] == servers]
    return sorted(same, key=lambda row: int(row["workers"]))


def _servers(many: int) -> str:
    return f"{many} server{'s' if many > 1 else ''}"
