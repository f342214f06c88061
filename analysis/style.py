"""Common parts of all figures: the style, one look per algorithm, the banner, and how they are
saved."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import matplotlib as mpl
import numpy as np
from matplotlib import style as mpl_style
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from analysis.load import Run
from analysis.tables import to_csv
from testbed.errors import InputError
from testbed.records.intervals import IntervalSet
from testbed.records.run_directory import write_atomically, write_data_atomically

COLUMN_IN, PAGE_IN = 3.5, 7.16
"""Widths of a paper's column and page in inches."""

T = TypeVar("T")
Rows = list[dict[str, Any]]


class RunFigure(NamedTuple):
    """A figure that shares its module with others: like the modules of one
    (``analysis.figures``)."""

    NAME: str
    data: Callable[[Sequence[Run]], Rows]
    draw: Callable[[Sequence[Run]], Figure]


_STYLE = Path(str(files("analysis"))) / "narrows.mplstyle"
_LINES: tuple[Any, ...] = (
    "-",
    (0, (5, 1.5)),
    (0, (1, 1)),
    (0, (5, 1, 1, 1)),
    (0, (8, 2)),
    (0, (3, 1, 1, 1, 1, 1)),
)
_MARKERS = "osD^vPX*"
_WARNING = "#B00020"
_DOUBT = "0.4"
_HEADROOM = 1.08
_STRIP = 0.03
"""Height of the strip that marks doubtful times, as a share of the plot's."""
_STRIPS = 0.06
"""Most of the plot's height for the strips of all algorithms."""
_CHARACTERS_PER_INCH = 17
UNRELIABLE = "strip: machine not to be relied upon"
_UNDATED: dict[str, dict[str, None]] = {
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Producer": None, "Creator": None},
    "svg": {"Date": None, "Creator": None},
}
"""Metadata that is left out of files, so that the same figure is the same bytes."""


@contextmanager
def narrows_style() -> Iterator[None]:
    """Draw in the project's style, whatever the user's own settings are."""
    with mpl.rc_context(), mpl_style.context(["default", str(_STYLE)]):
        yield


def look(index: int) -> dict[str, Any]:
    """Colour, line and marker of the ``index``-th algorithm: told apart also in black and white."""
    colours = mpl.rcParams["axes.prop_cycle"].by_key()["color"]
    return {
        "color": colours[index % len(colours)],
        "linestyle": _LINES[index % len(_LINES)],
        "marker": _MARKERS[(index + index // len(colours)) % len(_MARKERS)],
    }


def new_figure(width_in: float, height_in: float) -> Figure:
    """An empty figure."""
    figure = Figure(figsize=(width_in, height_in))
    FigureCanvasAgg(figure)
    return figure


def heading(
    figure: Figure, title: str, handles: Sequence[Any] = (), labels: Sequence[str] = ()
) -> None:
    """The title, and under it one legend for the whole figure in as many columns as its width
    takes."""
    if not labels:
        figure.suptitle(title)
        return
    longest = max(len(label) for label in labels) + 7
    columns = max(1, min(len(labels), int(figure.get_figwidth() * _CHARACTERS_PER_INCH) // longest))
    rows = -(-len(labels) // columns)
    figure.legend(
        list(handles),
        list(labels),
        title=title,
        title_fontsize="large",
        loc="outside upper center",
        ncols=-(-len(labels) // rows),
    )


def finished(
    figure: Figure,
    title: str,
    handles: Sequence[Any] = (),
    labels: Sequence[str] = (),
    *,
    runs: Sequence[Run],
) -> Figure:
    """Give a figure of ``runs`` its heading and banner; returns it."""
    heading(figure, title, handles, labels)
    banner(figure, runs)
    return figure


def banner(figure: Figure, runs: Sequence[Run]) -> None:
    """Say on the figure which of its runs are not valid; nothing if all are."""
    said = []
    for state in ("invalid", "degraded"):
        if names := [f"{run.algorithm} s{run.seed}" for run in runs if run.verdict == state]:
            said.append(f"{state.upper()}: {', '.join(names)}")
    if said:
        text = textwrap.fill(
            " · ".join(said),
            int(figure.get_figwidth() * _CHARACTERS_PER_INCH),
            break_on_hyphens=False,
        )
        figure.supxlabel(text, color=_WARNING, fontsize=7, fontweight="bold")


def shade(
    axes: Axes,
    spans: Iterable[tuple[float, float]],
    colour: str = _DOUBT,
    row: int = 0,
    height: float = _STRIP,
) -> None:
    """Mark times in which the machine could not be relied upon to emulate: a thin strip at the
    axis, so that what is drawn stays clear."""
    bottom, top = row * height, (row + 1) * height
    for from_s, to_s in spans:
        axes.axvspan(from_s, to_s, bottom, top, color=colour, linewidth=0.4, zorder=5)


def shade_handle() -> Patch:
    """Return the look of ``shade``, for a legend."""
    return Patch(color=_DOUBT, linewidth=0)


def rows_of_bars(axes: Axes, names: Sequence[str]) -> None:
    """Name the rows of an axis of horizontal bars, the first one at the top."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)


def write_beside(axes: Axes, text: str, x: float, row: float) -> None:
    """Write ``text`` to the right of a bar's end."""
    axes.annotate(text, (x, row), (3, 0), textcoords="offset points", va="center", fontsize=7)


@dataclass(frozen=True, slots=True)
class BarPart:
    """A part of stacked bars: its length in each row."""

    label: str
    lengths: Sequence[float]
    color: str
    hatch: str


def stacked_bars(
    names: Sequence[str], parts: Sequence[BarPart], title: str, runs: Sequence[Run]
) -> Figure:
    """A figure with a bar of times for each name, its parts stacked, the whole written at its
    end."""
    figure = new_figure(PAGE_IN, 1.25 + 0.34 * len(names))
    axes = figure.add_subplot()
    left, handles = np.zeros(len(names)), []
    for part in parts:
        bars = axes.barh(
            range(len(names)),
            part.lengths,
            left=left,
            height=0.62,
            color=part.color,
            hatch=part.hatch,
            edgecolor="white",
            linewidth=0.3,
        )
        handles.append(bars)
        left += part.lengths
    for row, total in enumerate(left):
        write_beside(axes, f"{total:.3g} s", total, row)
    axes.set(xlabel="Model time per step (s)", xlim=(0, 1.1 * max(float(left.max()), 1e-9)))
    rows_of_bars(axes, names)
    return finished(figure, title, handles, [part.label for part in parts], runs=runs)


def grouped_bars(
    axes: Axes, groups: Sequence[str], series: Sequence[Mapping[str, float]], full: float = 1.0
) -> list[Any]:
    """Draw a bar for each series beside each other at every group; returns a handle for each
    series. ``full``: the share of its place that a bar takes."""
    width, handles = 0.8 / len(series), []
    for index, lengths in enumerate(series):
        places = [
            position + (index - (len(series) - 1) / 2) * width
            for position, group in enumerate(groups)
            if group in lengths
        ]
        heights = [lengths[group] for group in groups if group in lengths]
        handles.append(axes.bar(places, heights, full * width, color=look(index)["color"]))
    axes.grid(axis="x", visible=False)
    return handles


def shade_unreliable(
    panels: Iterable[Axes],
    runs: Sequence[Run],
    names: Sequence[str],
    handles: list[Any],
    labels: list[str],
) -> None:
    """Mark the times in which a machine could not be relied upon, each of ``names`` (of the runs)
    in a row and colour of its own, and say so in the legend."""
    spans: dict[int, IntervalSet] = {}
    order = list(dict.fromkeys(names))
    for run, name in zip(runs, names, strict=True):
        for span in run.disturbed():
            spans.setdefault(order.index(name), IntervalSet()).add(*span)
    if not spans:
        return
    height = min(_STRIP, _STRIPS / len(spans))
    for axes in panels:
        if axes.get_yscale() == "log":  # what is drawn is above the strips
            low, high = axes.get_ylim()
            axes.set_ylim(low * (low / high) ** (height * len(spans)), high)
        for row, index in enumerate(sorted(spans)):
            shade(axes, spans[index], look(index)["color"], row, height)
    handles.append(shade_handle())
    labels.append(UNRELIABLE)


def scale(axes: Axes, values: Iterable[float], span: float) -> None:
    """Choose a logarithmic axis for values that span more than the factor ``span``, or else one
    from 0 on."""
    known = [value for value in values if value > 0]
    if known and max(known) > span * min(known):
        axes.set_yscale("log")
    else:
        axes.set_ylim(0, _HEADROOM * max(known) if known else None)


def save(
    out: Path, name: str, source: T, data: Callable[[T], Rows], draw: Callable[[T], Figure]
) -> list[Path]:
    """Write ``name``.png, .pdf and .csv (what is plotted) into ``out``; what was ``source`` decides
    every byte.

    ``source``: runs, or the rows of a benchmark.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        if out.is_symlink():
            raise InputError("a symbolic link stands where figures would go", where=str(out))
    except OSError as error:
        raise InputError(f"cannot make {out}: {error.strerror}", where="--out") from None
    paths = [out / f"{name}.{suffix}" for suffix in ("png", "pdf", "csv")]
    with narrows_style():
        figure = draw(source)
        for path in paths[:2]:
            write(figure, path)
    write_atomically(paths[2], to_csv(data(source)))
    return paths


def lay_out(figure: Figure) -> None:
    """Place what is in a figure, once for all its files: that takes as long as drawing it."""
    engine = figure.get_layout_engine()
    if engine is not None:
        figure.set_dpi(mpl.rcParams["savefig.dpi"])
        engine.execute(figure)
        with mpl.rc_context({"figure.constrained_layout.use": False, "figure.autolayout": False}):
            figure.set_layout_engine(None)  # "none" would have every file drawn twice


def write(figure: Figure, path: Path) -> None:
    """Into ``path``, whose ending (.png, .pdf, .svg) says of what kind. The same figure gives the
    same bytes."""
    kind = path.suffix.removeprefix(".")
    drawn = BytesIO()
    lay_out(figure)
    figure.savefig(drawn, format=kind, metadata=dict(_UNDATED[kind]))
    try:
        write_data_atomically(path, drawn.getvalue())
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", where=str(path)) from None
