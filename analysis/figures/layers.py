"""Bytes that each layer had of the messages, and the density that it was sent with, step by
step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from analysis.load import Array, Run, lowest_seeds
from analysis.series import LayerShares, layer_phase_shares
from analysis.style import PAGE_IN, Rows, finished, grouped_bars, look, new_figure
from analysis.tables import layer_rows

NAME = "layers"
MOST_RUNS = 6
"""So many algorithms are drawn."""
MOST_BINS = 120
"""More steps are drawn as means of equally many."""
_BARS_IN, _ROW_IN, _REST_IN = 2.0, 0.095, 1.0
_LEAST_IN, _MOST_IN = 0.7, 2.2
_LABELS = 30
"""More layers are not all named."""
_SMALL = 5.5
_DARK = 0.55
_ALIKE = 1e-6
"""Densities that differ by less are the same."""


def data(runs: Sequence[Run]) -> Rows:
    """``bytes_up``: per layer, mean over steps, workers and seeds. ``density``: per layer and step
    (of more steps than can be told apart, of several from ``step`` on), mean over workers, lowest
    seed."""
    rows: Rows = [
        {
            "algorithm": row["algorithm"],
            "layer": row["layer"],
            "quantity": "bytes_up",
            "step": "",
            "value": row["bytes_up"],
        }
        for row in _bytes(runs)
    ]
    for run, own in _chosen(runs):
        steps, density = binned(own)
        rows += [
            {
                "algorithm": run.algorithm,
                "layer": layer,
                "quantity": "density",
                "step": int(step),
                "value": float(density[row, column]),
            }
            for row, layer in enumerate(own.layers)
            for column, step in enumerate(steps)
        ]
    return rows


def draw(runs: Sequence[Run]) -> Figure:
    """Bars by layer, and below a map of densities for every algorithm, all in the same colours."""
    chosen = _chosen(runs)
    tall = [_BARS_IN, *(_height(own) for _, own in chosen)]
    figure = new_figure(PAGE_IN, _REST_IN + sum(tall) + 0.3 * len(chosen))
    top, *maps = figure.subplots(len(tall), 1, height_ratios=tall)
    handles, labels = _bars(top, _bytes(runs))
    norm = _norm([own.density for _, own in chosen])
    for axes, (run, own) in zip(maps, chosen, strict=True):
        image = _map(axes, own, norm)
        axes.set_title(f"{run.algorithm} s{run.seed}", loc="left", fontsize=8)
    maps[-1].set_xlabel("Step")
    bar = figure.colorbar(image, ax=list(maps), label="Density achieved", aspect=30, pad=0.01)
    bar.set_ticks(ticks := _ticks(norm), labels=[f"{tick:g}" for tick in ticks])
    bar.minorticks_off()
    left = len(lowest_seeds(_in_buckets(runs))) - len(chosen)
    more = f" ({left} more not drawn)" if left else ""
    return finished(
        figure,
        f"Bytes and density of every layer{more}",
        handles,
        labels,
        runs=[run for run, _ in chosen],
    )


def binned(own: LayerShares) -> tuple[Array, Array]:
    """First step of each bin, shape (n,), and mean density in it, shape (layers, n); n is at most
    ``MOST_BINS``."""
    each = -(-len(own.steps) // MOST_BINS)
    begins = range(0, len(own.steps), each)
    density = np.stack([np.nanmean(own.density[:, b : b + each], axis=1) for b in begins], axis=1)
    return own.steps[::each], density


def _bars(axes: Axes, rows: Rows) -> tuple[list[Patch], list[str]]:
    names = list(dict.fromkeys(row["algorithm"] for row in rows))
    layers = list(dict.fromkeys(row["layer"] for row in rows))
    lengths: dict[str, dict[str, float]] = {name: {} for name in names}
    for row in rows:
        lengths[row["algorithm"]][row["layer"]] = row["bytes_up"]
    grouped_bars(axes, layers, list(lengths.values()))
    axes.set(yscale="log", ylabel="Bytes up per step\nand worker", xlim=(-0.6, len(layers) - 0.4))
    every = -(-len(layers) // _LABELS)
    axes.set_xticks(range(0, len(layers), every), layers[::every], rotation=40, ha="right")
    axes.tick_params(axis="x", labelsize=_SMALL, length=0, pad=1)
    total = {name: sum(own.values()) for name, own in lengths.items()}
    patches = [Patch(color=look(index)["color"]) for index in range(len(names))]
    return patches, [f"{name} ({total[name] / 1e3:,.4g} kB in all)" for name in names]


def _map(axes: Axes, own: LayerShares, norm: LogNorm) -> Any:
    steps, density = binned(own)
    edges = [*steps, own.steps[-1] + 1]
    image = axes.pcolormesh(
        np.array(edges) - 0.5,
        np.arange(len(own.layers) + 1) - 0.5,
        density,
        norm=norm,
        cmap="viridis_r",
        rasterized=True,
    )
    every = -(-len(own.layers) // int(_height(own) / _ROW_IN))
    axes.set_yticks(range(0, len(own.layers), every), own.layers[::every])
    axes.set_ylim(len(own.layers) - 0.5, -0.5)
    axes.tick_params(axis="y", labelsize=_SMALL, length=0)
    axes.grid(visible=False)
    return image


def _height(own: LayerShares) -> float:
    """Return the height of its map, in inches."""
    return min(_MOST_IN, max(_LEAST_IN, _ROW_IN * len(own.layers)))


def _norm(densities: Sequence[Array]) -> LogNorm:
    """One scale for all, up to 1; never empty."""
    lowest = min(
        (float(np.nanmin(density[density > 0], initial=1.0)) for density in densities), default=1.0
    )
    return LogNorm(min(lowest, _DARK), 1.0)


def _ticks(norm: LogNorm) -> list[float]:
    """1, 2 and 5 of each decade as far as the scale goes; of a long one, 1 alone."""
    lowest = float(norm.vmin or 1.0)
    digits = (1, 2, 5) if lowest > 5e-3 else (1,)
    exact = [d / 10**power for power in range(9, -1, -1) for d in digits]
    return [tick for tick in exact if lowest <= tick * (1 + 1e-6) and tick <= 1]


def _bytes(runs: Sequence[Run]) -> Rows:
    drawn = {run.algorithm for run, _ in _chosen(runs)}
    return [row for row in layer_rows(runs) if row["algorithm"] in drawn]


def _chosen(runs: Sequence[Run]) -> list[tuple[Run, LayerShares]]:
    """Each algorithm's lowest seed, in their order; where there are too many, those first of which
    there is most to see."""
    known = [
        (run, own)
        for run in lowest_seeds(_in_buckets(runs))
        if (own := layer_phase_shares(run)) is not None
    ]
    kept = sorted(known, key=lambda pair: _plain(pair[1]))[:MOST_RUNS]
    return [pair for pair in known if pair in kept]


def _plain(own: LayerShares) -> int:
    """0: the densities asked for differ between layers or steps; 1: they do not; 2: and all is
    sent."""
    lowest, highest = np.nanmin(own.density_asked), np.nanmax(own.density_asked)
    if highest - lowest > _ALIKE:
        return 0
    return 2 if lowest > 1 - _ALIKE else 1


def _in_buckets(runs: Sequence[Run]) -> list[Run]:
    return [run for run in runs if run.events.get("bucket")]
