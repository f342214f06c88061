"""One bandwidth trace: its rate over time, and in what share of the time it is which.

Not of the figures that are drawn from runs: ``testbed trace show`` draws it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.load import Array
from analysis.style import PAGE_IN, heading, look, narrows_style, new_figure, write
from testbed.records.intervals import IntervalSet
from testbed.traces.rate_trace import RateTrace, TraceSummary, summary

_MOST_STEPS = 3000
"""More steps than can be told apart are drawn as their mean and their span in equal times."""
_MOST_OUTAGES = 200
"""More would hide the rate: they are a strip along the axis."""
_BINS_IN_TIME = 1000
_BINS = 40
_OUTAGE = "#B00020"
_MARKED = (50, 5, 95)
_SCALES = ((1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s"), (1.0, "bit/s"))
_TIMES = ((6 * 3600.0, 3600.0, "h"), (3600.0, 60.0, "min"), (0.0, 1.0, "s"))


def draw(trace: RateTrace, title: str) -> Figure:
    """The figure of ``trace``: rate over time, and beside it on the same axis how its time is
    spread."""
    facts = summary(trace)
    factor, unit = next((s for s in _SCALES if facts.max_bits >= s[0]), _SCALES[-1])
    _, per, unit_of_time = next(t for t in _TIMES if trace.duration_s >= t[0])
    figure = new_figure(PAGE_IN, 2.6)
    over_time, spread = figure.subplots(1, 2, sharey=True, width_ratios=(5, 1))
    edges = np.array([*trace.times_s, trace.duration_s]) / per
    rates = np.array(trace.rates_bits, dtype=float) / factor
    highest = float(rates.max()) * 1.08 or 1.0
    _over_time(over_time, edges, rates)
    _spread(spread, rates, np.diff(edges) / edges[-1], highest)
    _percentiles(spread, facts, factor, highest)
    over_time.set(xlabel=f"Time ({unit_of_time})", ylabel=f"Rate ({unit})")
    over_time.set(xlim=(0, edges[-1]), ylim=(0, highest))
    handles, labels = over_time.get_legend_handles_labels()
    named = (handles, labels) if len(labels) > 1 else ([], [])
    heading(figure, f"{title}: {_said(facts, factor, unit)}", *named)
    return figure


def save_trace(trace: RateTrace, path: Path, title: str) -> None:
    """Draw ``trace`` into ``path``, whose ending says of what kind. The same trace gives the same
    bytes."""
    with narrows_style():
        write(draw(trace, title), path)


def _over_time(axes: Axes, edges: Array, rates: Array) -> None:
    colour = look(0)["color"]
    if len(rates) <= _MOST_STEPS:
        axes.stairs(rates, edges, color=colour, alpha=0.15, fill=True)
        axes.stairs(rates, edges, color=colour, linewidth=0.9, baseline=None, label="rate")
    else:
        bounds, mean, least, most = _binned(edges, rates)
        axes.stairs(
            most,
            bounds,
            baseline=least,
            fill=True,
            color=colour,
            alpha=0.25,
            label="lowest to highest",
        )
        axes.stairs(
            mean,
            bounds,
            color=colour,
            linewidth=0.9,
            baseline=None,
            label=f"mean of each 1/{_BINS_IN_TIME} of the time",
        )
    dead = rates == 0
    if dead.any():
        spans = IntervalSet(zip(edges[:-1][dead], edges[1:][dead], strict=True))
        pieces = [(start, stop - start) for start, stop in spans]
        height = 1.0 if len(pieces) <= _MOST_OUTAGES else 0.03
        axes.broken_barh(
            pieces,
            (0, height),
            transform=axes.get_xaxis_transform(),
            color=_OUTAGE,
            alpha=0.35,
            linewidth=0.3,
            zorder=0.5,
            label="outage",
        )


def _binned(edges: Array, rates: Array) -> tuple[Array, Array, Array, Array]:
    """Bounds of equal times, and in each the mean, the lowest and the highest rate."""
    bounds: Array = np.linspace(0.0, edges[-1], _BINS_IN_TIME + 1)
    carried = np.concatenate([[0.0], np.cumsum(rates * np.diff(edges))])
    mean = np.diff(np.interp(bounds, edges, carried)) / np.diff(bounds)
    first = np.searchsorted(edges, bounds[:-1], "right") - 1
    last = np.maximum(np.searchsorted(edges, bounds[1:], "left"), first + 1)
    parts = [rates[start:stop] for start, stop in zip(first, last, strict=True)]
    least, most = np.array([part.min() for part in parts]), np.array([part.max() for part in parts])
    return bounds, np.clip(mean, least, most), least, most


def _spread(axes: Axes, rates: Array, shares: Array, highest: float) -> None:
    """How much of the time the rate lies in each of some equal ranges."""
    share, bounds = np.histogram(rates, bins=_BINS, range=(0.0, highest), weights=shares * 100)
    axes.stairs(
        share, bounds, orientation="horizontal", fill=True, color=look(0)["color"], alpha=0.6
    )
    axes.set(xlabel="Share of time (%)", xlim=(0, min(105.0, max(share) * 1.5)))
    axes.tick_params(axis="y", length=0)


def _percentiles(axes: Axes, facts: TraceSummary, factor: float, highest: float) -> None:
    """Lines at some percentiles; where two would be written over each other the median is."""
    written: list[float] = []
    for percent in _MARKED:
        at = facts.percentiles_bits[percent] / factor
        axes.axhline(at, color="0.15", linewidth=0.6, linestyle="-" if percent == 50 else ":")
        if all(abs(at - other) > 0.08 * highest for other in written):
            axes.annotate(
                f"p{percent}",
                (1, at),
                xycoords=("axes fraction", "data"),
                xytext=(0, 1),
                textcoords="offset points",
                ha="right",
                va="bottom",
                fontsize=6,
                color="0.15",
            )
            written.append(at)


def _said(facts: TraceSummary, factor: float, unit: str) -> str:
    mean = f"mean {facts.mean_bits / factor:.4g} {unit}"
    return f"{mean}, outages {facts.outage_share:.1%} of the time" if facts.outage_share else mean
