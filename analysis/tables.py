"""Tables for a terminal, a page and CSV: a row per run, a row per algorithm and layer, and a row
per algorithm of a comparison.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.comparison import Compared, ComparedOutcome
from analysis.load import Row, Run, by_algorithm
from analysis.series import LayerShares, layer_phase_shares
from analysis.statistics import Interval, times
from testbed.errors import printable
from testbed.fidelity.summary import SELECTION, STALENESS
from testbed.records.run_directory import SUMMARY, read_json

if TYPE_CHECKING:
    from rich.table import Table


COLUMNS = (
    "algorithm",
    "seed",
    "verdict",
    "steps",
    "time_s",
    "speedup",
    "accuracy",
    "bytes_up",
    "bytes_down",
    "mean_k",
    *SELECTION,
    *STALENESS,
)

HEADINGS = (
    "Algorithm",
    "Seed",
    "Time",
    "Speed-up",
    "Test accuracy",
    "Up",
    "Down",
    "Mean k",
    "Sent",
    "Passes",
    "Verdict",
)
EXPLAINED = (
    "Up, Down: bytes of messages that all workers sent and received over the whole run. "
    "Speed-up: against none with the same seed; of invalid runs none. "
    "Mean k: the share of the gradient that was to be sent; Sent: the share that was. "
    "Passes: how often a selector went over all elements, a step."
)
"""A remark on the headings."""
_COLOURS = {"valid": "green", "degraded": "yellow", "invalid": "red"}


def rows(runs: Sequence[Run]) -> list[Row]:
    """A row per run from its summary; see ``rows_of``."""
    return rows_of([run.summary for run in runs])


def rows_of(entries: Sequence[Mapping[str, Any]]) -> list[Row]:
    """A row per entry of a run. ``speedup``: time of ``none`` with the same seed over its own; or
    None.

    Only runs that count, of equally many steps, are set against each other.
    """
    dense = {entry["seed"]: entry for entry in entries if entry["algorithm"] == "none"}
    return [
        {
            key: _speedup(dense.get(entry["seed"]), entry)
            if key == "speedup"
            else _cell(entry, key)
            for key in COLUMNS
        }
        for entry in entries
    ]


def comparison_rows(directories: Sequence[Path]) -> list[Row]:
    """A row per run directory, from their summaries alone."""
    return rows_of([read_json(path / SUMMARY) for path in directories])


def to_csv(table: Sequence[Mapping[str, Any]]) -> str:
    """Rows as CSV with a header; numbers in full, None as an empty field."""
    if not table:
        return ""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(table[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    return text.getvalue()


def rich_table(table: Sequence[Mapping[str, Any]]) -> Table:
    """The rows for a terminal."""
    return terminal_table(HEADINGS, map(cells_of, table))


def terminal_table(headings: Iterable[str], rows: Iterable[Sequence[str]]) -> Table:
    """Cells for a terminal, the last one a verdict; no markup of rich's, and nothing that a
    terminal obeys."""
    from rich.text import Text

    shown = _right_aligned(heading.lower() for heading in headings)
    for *cells, verdict in rows:
        texts = [Text(printable(cell)) for cell in cells]
        shown.add_row(*texts, Text(printable(verdict), _COLOURS.get(verdict, "red")))
    return shown


def _right_aligned(headings: Iterable[str]) -> Table:
    """An empty table, all columns but the first and the last aligned to the right."""
    from rich.table import Table

    shown = Table(*headings)
    for column in shown.columns[1:-1]:
        column.justify = "right"
    return shown


def cells_of(row: Mapping[str, Any]) -> list[str]:
    """A row as people read it, under ``HEADINGS``."""
    return [
        row["algorithm"],
        str(row["seed"]),
        f"{row['time_s']:.1f} s",
        or_dash(row["speedup"], "{:.2f}×"),
        or_dash(row["accuracy"], "{:.3f}"),
        megabytes(row["bytes_up"]),
        megabytes(row["bytes_down"]),
        or_dash(row["mean_k"], "{:.3g}"),
        or_dash(row["mean_achieved_k"], "{:.3g}"),
        or_dash(row["mean_passes"], "{:.2f}"),
        row["verdict"],
    ]


def megabytes(amount: int) -> str:
    """Bytes as MB with three digits that mean something."""
    return f"{amount / 1e6:,.0f} MB" if amount >= 1e8 else f"{amount / 1e6:.3g} MB"


def _speedup(dense: Mapping[str, Any] | None, entry: Mapping[str, Any]) -> float | None:
    if dense is None or not entry["time_s"] or dense["steps"] != entry["steps"]:
        return None
    if "invalid" in (dense["verdict"], entry["verdict"]):
        return None
    return float(dense["time_s"] / entry["time_s"])


def _cell(entry: Mapping[str, Any], key: str) -> Any:
    """Runs of before selections were recorded have none."""
    return entry.get(key) if key in (*SELECTION, *STALENESS) else entry[key]


def or_dash(value: float | None, form: str) -> str:
    """``value`` in ``form``, or a dash where there is none."""
    return "–" if value is None else form.format(value)


LAYER_HEADINGS = (
    "Algorithm",
    "Layer",
    "Bucket",
    "Elements",
    "Up per step",
    "Share",
    "Asked k",
    "Achieved k",
    "Lowest",
    "Highest",
)


def layer_rows(runs: Sequence[Run]) -> list[Row]:
    """Means over workers, steps and seeds, ``lowest`` and ``highest`` density of a step; of the
    runs with records of buckets. ``bytes_up``: per worker and step; ``share``: of the algorithm's
    bytes."""
    table: list[Row] = []
    for algorithm, same in by_algorithm(runs).items():
        known = [own for run in same if (own := layer_phase_shares(run)) is not None]
        if known:
            table += _rows(algorithm, known)
    return table


def _rows(algorithm: str, known: Sequence[LayerShares]) -> list[Row]:
    layers = known[0].layers
    length = np.mean([np.nanmean(own.bytes_up, axis=1) for own in known], axis=0)
    requested = np.mean([np.nanmean(own.density_asked, axis=1) for own in known], axis=0)
    density = np.concatenate([own.density for own in known], axis=1)
    return [
        {
            "algorithm": algorithm,
            "layer": layer,
            "bucket": known[0].buckets[index],
            "elements": known[0].elements[index],
            "bytes_up": float(length[index]),
            "share": float(length[index] / max(length.sum(), 1e-9)),
            "asked": float(requested[index]),
            "achieved": float(np.nanmean(density[index])),
            "lowest": float(np.nanmin(density[index])),
            "highest": float(np.nanmax(density[index])),
            "seeds": len(known),
        }
        for index, layer in enumerate(layers)
    ]


def layer_cells(row: Row) -> list[str]:
    """A row as people read it, under ``LAYER_HEADINGS``."""
    return [
        row["algorithm"],
        row["layer"],
        str(row["bucket"]),
        f"{row['elements']:,}",
        f"{row['bytes_up']:,.0f} B",
        f"{row['share']:.1%}",
        *(f"{row[key]:.3g}" for key in ("asked", "achieved", "lowest", "highest")),
    ]


_DASH = "–"


def algorithm_rows(comparison: Compared) -> list[dict[str, Any]]:
    """A row per algorithm, numbers in full; times in model seconds, intervals as ``_low`` and
    ``_high``."""
    return [_row(outcome, comparison.target) for outcome in comparison.algorithms]


def algorithm_table(comparison: Compared) -> Table:
    """The same for a terminal."""
    target = "no common target" if comparison.target is None else f"to {comparison.target:g}"
    headings = [
        "algorithm",
        "time",
        "speed-up",
        target,
        "test accuracy",
        "up",
        "down",
        "mean k",
        "verdicts",
    ]
    shown = _right_aligned(headings)
    for outcome in comparison.algorithms:
        shown.add_row(*_cells(outcome, comparison))
    return shown


def _row(outcome: ComparedOutcome, target: float | None) -> dict[str, Any]:
    said = outcome.to_json()
    row: dict[str, Any] = {"algorithm": outcome.algorithm}
    for key in ("time_s", "speedup", "accuracy"):
        row |= {key if end == "mean" else f"{key}_{end}": value for end, value in said[key].items()}
    reached = next((each for each in outcome.targets if each.target == target), None)
    return row | {
        "inferiority": outcome.inferiority,
        "target": target,
        "time_to_target_s": reached and reached.time_s.mean,
        "seeds_reached": reached and reached.reached,
        **{key: said[key] for key in ("bytes_up", "bytes_down", "mean_k")},
        **{verdict: outcome.verdicts.get(verdict, 0) for verdict in _COLOURS},
    }


def _cells(outcome: ComparedOutcome, comparison: Compared) -> list[str]:
    accuracy = interval(outcome.accuracy, "{:.3f}")
    if outcome.inferiority is not None:
        accuracy += f"\n{outcome.inferiority}"
    verdicts = [f"[{_COLOURS[name]}]{count} {name}[/]" for name, count in outcome.verdicts.items()]
    return [
        outcome.algorithm + (" (baseline)" if outcome.algorithm == comparison.baseline else ""),
        interval(outcome.time_s, "{:.1f}", " s"),
        "1" if outcome.algorithm == comparison.baseline else times(outcome.speedup),
        time_to_target(outcome, comparison.target),
        accuracy,
        *size_cells(outcome),
        ", ".join(verdicts) or _DASH,
    ]


def size_cells(outcome: ComparedOutcome) -> list[str]:
    """Bytes up and down, and the mean k."""
    sizes = outcome.bytes_up, outcome.bytes_down
    cells = [_DASH if size is None else megabytes(round(size)) for size in sizes]
    return [*cells, or_dash(outcome.mean_k, "{:.3g}")]


def time_to_target(outcome: ComparedOutcome, target: float | None) -> str:
    """Mean time to an accuracy, and how many seeds reached it where not all did."""
    reached = next((each for each in outcome.targets if each.target == target), None)
    if reached is None or reached.time_s.mean is None:
        return _DASH
    of = "" if reached.reached == reached.seeds else f" ({reached.reached} of {reached.seeds})"
    return f"{reached.time_s.mean:.1f} s{of}"


def interval(estimate: Interval, form: str, unit: str = "") -> str:
    """The mean, and half the interval's length where it is known."""
    if estimate.mean is None:
        return _DASH
    if estimate.high is None:
        return form.format(estimate.mean) + unit
    return f"{form.format(estimate.mean)} ± {form.format(estimate.high - estimate.mean)}{unit}"
