"""Common parts of all figures: the style, one look per algorithm, the banner, and how they are
saved."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar

import matplotlib as mpl
from matplotlib import style as mpl_style
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from analysis.load import Run
from analysis.tables import to_csv
from testbed.errors import InputError
from testbed.records.run_directory import write_atomically, write_data_atomically

COLUMN_IN, PAGE_IN = 3.5, 7.16
"""Widths of a paper's column and page in inches."""

T = TypeVar("T")
Rows = list[dict[str, Any]]

_STYLE = Path(__file__).with_name("narrows.mplstyle")
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
_DOUBT = "#D55E00"
_CHARACTERS_PER_INCH = 17
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


def shade(axes: Axes, spans: Iterable[tuple[float, float]]) -> None:
    """Mark times in which the machine could not be relied upon to emulate."""
    for from_s, to_s in spans:
        axes.axvspan(from_s, to_s, color=_DOUBT, alpha=0.16, linewidth=0, zorder=0)


def shade_handle() -> Patch:
    """Return the look of ``shade``, for a legend."""
    return Patch(color=_DOUBT, alpha=0.16, linewidth=0)


def save(
    out: Path, name: str, found: T, data: Callable[[T], Rows], draw: Callable[[T], Figure]
) -> list[Path]:
    """Write ``name``.png, .pdf and .csv (what is plotted) into ``out``; what was ``found`` decides
    every byte.

    ``found``: runs, or the rows of a benchmark.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        if out.is_symlink():
            raise InputError("a symbolic link stands where figures would go", where=str(out))
    except OSError as error:
        raise InputError(f"cannot make {out}: {error.strerror}", where="--out") from None
    paths = [out / f"{name}.{suffix}" for suffix in ("png", "pdf", "csv")]
    with narrows_style():
        figure = draw(found)
        for path in paths[:2]:
            write(figure, path)
    write_atomically(paths[2], to_csv(data(found)))
    return paths


def write(figure: Figure, path: Path) -> None:
    """Into ``path``, whose ending (.png, .pdf, .svg) says of what kind. The same figure gives the
    same bytes."""
    kind = path.suffix.removeprefix(".")
    drawn = BytesIO()
    figure.savefig(drawn, format=kind, metadata=dict(_UNDATED[kind]))
    try:
        write_data_atomically(path, drawn.getvalue())
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", where=str(path)) from None
