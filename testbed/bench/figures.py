"""Figures of benchmarks: virtual time against real links, growth with the number of workers, and
``testbed bench control`` with one for each controller and the regrets of all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from analysis.style import PAGE_IN, Rows, heading, look, new_figure, save
from testbed.bench.waveforms import CHANGE_S

BenchRows = Sequence[Mapping[str, Any]]
_PARTS = ("compute", "send", "wait", "receive")


def draw(out: Path, name: str, rows: BenchRows) -> list[Path]:
    """Draw the rows of ``testbed bench`` ``name`` into ``out``: name.png, .pdf and .csv. Nothing of
    no rows."""
    if not rows:
        return []
    figures = {"agreement": _agreement, "scale": _scale, "exchange": _exchange}
    return save(out, name, rows, lambda rows: [dict(row) for row in rows], figures[name])


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
    """Left and middle: a step and its parts with the fewest and the most servers; right: the
    simulation."""
    figure = new_figure(PAGE_IN, 3.1)
    axes = figure.subplots(1, 3)
    servers = sorted({int(row["servers"]) for row in rows})
    highest = max(float(row["step_s"]) for row in rows)
    labels, handles = ["step", *_PARTS], []
    for axis, count in zip(axes, dict.fromkeys((servers[0], servers[-1])), strict=False):
        same = _sorted(rows, count)
        workers = [row["workers"] for row in same]
        handles = [
            axis.plot(workers, [row[f"{label}_s"] for row in same], **look(i), markersize=3)[0]
            for i, label in enumerate(labels)
        ]
        axis.set(xscale="log", yscale="log", ylim=(1e-4, 2 * highest))
        axis.set(xlabel="Workers", ylabel="Time per step (s)")
        axis.set_title(_servers(count))
    _simulation(axes[2], rows, servers)
    if len(servers) == 1:
        axes[1].set_visible(False)
    heading(figure, "Workers behind oversubscribed racks", handles, labels)
    return figure


def _simulation(axes: Axes, rows: BenchRows, servers: Sequence[int]) -> None:
    for index, count in enumerate(servers):
        same = _sorted(rows, count)
        workers = [row["workers"] for row in same]
        style = {**look(index), "markersize": 3}
        axes.plot(
            workers,
            [r["run_per_step_s"] for r in same],
            **style,
            label=f"s per step, {_servers(count)}",
        )
        style["linestyle"], style["color"] = ":", "black"
        axes.plot(
            workers,
            [r["memory_bytes"] / 2**30 for r in same],
            **style,
            label=f"GiB, {_servers(count)}",
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
    for down, count in enumerate(nodes):
        for along, link in enumerate(links):
            axes = places[down, along]
            here = [row for row in rows if row["link"] == link and row["nodes"] == count]
            handles = [_speeds(axes, here, name, index) for index, name in enumerate(names)]
            axes.set(xscale="log", yscale="log", title=f"{link}, {count} nodes")
            if along == 0:
                axes.set_ylabel("Rounds per second")
            if count == nodes[-1]:
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


def _servers(count: int) -> str:
    return f"{count} server{'s' if count > 1 else ''}"


Results = Mapping[str, Any]
"""As ``step_responses.json`` holds it."""
_ROW_IN, _HEAD_IN = 1.45, 0.7
_OWN, _STILL, _BEST = "#0072B2", "#56B4E9", "#D55E00"
_MOST = 4.0
"""Ratio of times at which colours end."""


class _Of(NamedTuple):
    """Data that one figure is drawn from."""

    results: Results
    algorithm: str
    rows: Sequence[Mapping[str, Any]]


def draw_control(out: Path, results: Results) -> list[Path]:
    """control_<algorithm>.png, .pdf and .csv for every controller, and control_regrets, into
    ``out``."""
    paths = []
    names = [str(row["algorithm"]) for row in results["rows"]]
    for name in dict.fromkeys(each for each in names if not each.startswith("(")):
        rows = [row for row in results["rows"] if row["algorithm"] == name]
        paths += save(out, f"control_{name}", _Of(results, name, rows), _series, _controller)
    return paths + save(out, "control_regrets", results, _regret_rows, _regrets)


def _series(of: _Of) -> Rows:
    """Every point that is plotted: waveform, series, time in s and value (k, or bit/s)."""
    return [
        {"waveform": row["waveform"], "series": series, "time_s": time_s, "value": value}
        for row in of.rows
        for series, points in _lines(of, row).items()
        for time_s, value in zip(*points, strict=True)
    ]


def _lines(of: _Of, row: Mapping[str, Any]) -> dict[str, tuple[Sequence[float], Sequence[float]]]:
    """Times and values by series."""
    waveform = str(row["waveform"])
    curve = of.results["curves"][waveform][of.algorithm]
    lines = {"k": (curve["start_s"], curve["density"])}
    if still := _still(of, row):
        lines["k, constant link"] = (still["start_s"], still["density"])
    if best := of.results["bounds"].get(waveform):
        plan = best["plan"]
        lines["k, programme"] = (plan["starts_s"], plan["densities"])
    rates = of.results["rates"][waveform]
    lines["rate"] = ([at for at, _ in rates], [rate for _, rate in rates])
    return lines


def _still(of: _Of, row: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The run on a constant link that this one is held against, if any."""
    if row["responds"] is None:
        return None
    name = "constant-20" if row["waveform"] == "step-up" else "constant-100"
    still: Mapping[str, Any] | None = of.results["curves"].get(name, {}).get(of.algorithm)
    return still


def _controller(of: _Of) -> Figure:
    """A panel for every waveform."""
    figure = new_figure(PAGE_IN, _HEAD_IN + _ROW_IN * len(of.rows))
    panels = figure.subplots(len(of.rows), 1, squeeze=False)[:, 0]
    for axes, row in zip(panels, of.rows, strict=True):
        _panel(axes, of, row)
    panels[-1].set_xlabel("Model time (s)")
    handles = [
        Line2D([], [], color=_OWN),
        Line2D([], [], color=_STILL, linestyle=":"),
        Line2D([], [], color=_BEST, linewidth=0.8),
        Patch(color="0.88"),
        Line2D([], [], color="black", marker="v", linestyle=""),
    ]
    labels = ["k", "k, constant link", "k, programme", "asked rate", "target reached"]
    figure.legend(
        handles,
        labels,
        title=of.algorithm,
        title_fontsize="large",
        loc="outside upper center",
        ncols=5,
    )
    return figure


def _panel(axes: Axes, of: _Of, row: Mapping[str, Any]) -> None:
    lines, end_s = _lines(of, row), _end_s(of, row)
    rate = axes.twinx()
    at, bits = lines["rate"]
    heights = [each / 1e6 for each in [*bits, bits[-1]]]
    rate.fill_between([*at, end_s], heights, step="post", color="0.88", linewidth=0)
    rate.set(ylim=(0, 130), ylabel="Mbit/s", yticks=(0, 50, 100))
    rate.spines["right"].set_visible(True)
    rate.grid(False)
    axes.set_zorder(rate.get_zorder() + 1)
    axes.patch.set_visible(False)
    if "k, constant link" in lines:
        axes.step(*lines["k, constant link"], where="post", color=_STILL, linestyle=":")
    if "k, programme" in lines:
        axes.step(*lines["k, programme"], where="post", color=_BEST, linewidth=0.8)
    axes.step(*lines["k"], where="post", color=_OWN)
    _marks(axes, row)
    axes.set(yscale="log", ylim=(7e-4, 1.4), xlim=(0, end_s), ylabel="Density k")
    axes.set_title(_said(row), loc="left", fontsize=7.5)


def _end_s(of: _Of, row: Mapping[str, Any]) -> float:
    """The end of the run, s."""
    return float(of.results["curves"][row["waveform"]][of.algorithm]["end_s"][-1])


def _marks(axes: Axes, row: Mapping[str, Any]) -> None:
    """The change, the response, and when the target was reached."""
    axes.axvline(CHANGE_S, color="black", linewidth=0.6, linestyle="--")
    if (answer := row["response_s"]) is not None:
        axes.axvline(CHANGE_S + answer, color="black", linewidth=0.6)
        axes.axvspan(CHANGE_S, CHANGE_S + answer, ymax=0.025, color="black", linewidth=0)
    if (time_s := row["time_s"]) is not None:
        axes.plot([time_s], [0.8], marker="v", color="black")


def _said(row: Mapping[str, Any]) -> str:
    """Return the row's results in a line."""
    parts = [str(row["waveform"])]
    if row["responds"] is not None:
        parts.append(_answer(row))
    parts.append(f"mean k {row['mean_k']:.3g}")
    if row["regret_fixed"] is not None:
        parts.append(
            f"{row['target']:g} at {row['time_s']:.1f} s: {row['regret_fixed']:+.0%} to "
            f"{row['best_fixed']}, {row['regret_programme']:+.0%} to the programme"
        )
    return "; ".join(parts)


def _answer(row: Mapping[str, Any]) -> str:
    if not row["responds"]:
        return "no response"
    if row["response_s"] is None:
        return f"k × {row['factor']:.2g}, not settled"
    over = f", overshoot {row['overshoot']:.0%}" if row["overshoot"] >= 0.05 else ""
    return f"k × {row['factor']:.2g} in {row['response_s']:.1f} s{over}"


def _regret_rows(results: Results) -> Rows:
    keys = ("algorithm", "waveform", "time_s", "regret_fixed", "regret_programme")
    return [{key: row.get(key) for key in keys} for row in results["rows"]]


def _regrets(results: Results) -> Figure:
    """Left against the best fixed density, right against the programme."""
    rows = results["rows"]
    names = sorted({row["algorithm"] for row in rows}, key=lambda name: _order(rows, name))
    waveforms = list(dict.fromkeys(row["waveform"] for row in rows))
    figure = new_figure(PAGE_IN, 0.9 + 0.21 * len(names))
    panels = figure.subplots(1, 2, sharey=True)
    titles = {
        "regret_fixed": "against the best fixed k",
        "regret_programme": "against the programme",
    }
    for axes, (key, title) in zip(panels, titles.items(), strict=True):
        table = np.full((len(names), len(waveforms)), np.nan)
        for row in rows:
            if (value := row.get(key)) is not None:
                table[names.index(row["algorithm"]), waveforms.index(row["waveform"])] = value
        _heat(axes, table)
        axes.set_xticks(range(len(waveforms)), waveforms, rotation=30, ha="right")
        axes.set_title(f"Regret {title} (%)")
    panels[0].set_yticks(range(len(names)), names)
    return figure


def _order(rows: Sequence[Mapping[str, Any]], name: str) -> float:
    """Mean regret against the programme; without any, last."""
    own = [
        row["regret_programme"]
        for row in rows
        if row["algorithm"] == name and row["regret_programme"] is not None
    ]
    return float(np.mean(own)) if own else float("inf")


def _heat(axes: Axes, table: np.ndarray[Any, np.dtype[np.float64]]) -> None:
    """Numbers on their colours: blue is faster, red slower."""
    ratio, end = np.log1p(table), np.log(_MOST)
    axes.imshow(ratio, cmap="RdBu_r", vmin=-end, vmax=end, aspect="auto")
    axes.grid(False)
    for (i, j), value in np.ndenumerate(table):
        said = "–" if np.isnan(value) else f"{100 * value:+.0f}"
        colour = "white" if abs(ratio[i, j]) > 0.7 * end else "black"
        axes.text(j, i, said, ha="center", va="center", fontsize=7, color=colour)
