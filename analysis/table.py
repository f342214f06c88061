"""The comparison table: one row per run."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.load import Run
from testbed.errors import printable
from testbed.record.directory import SUMMARY, read_json
from testbed.record.summary import SELECTION, STALENESS

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

Row = dict[str, Any]
COLUMNS = (
    "algorithm", "seed", "verdict", "steps", "time_s", "speedup", "accuracy", "bytes_up", "bytes_down", "mean_k",
    *SELECTION, *STALENESS,
)  # fmt: skip


def rows(runs: Sequence[Run]) -> list[Row]:
    """A row per run from its summary; see ``rows_of``."""
    return rows_of([run.summary for run in runs])


def rows_of(entries: Sequence[Mapping[str, Any]]) -> list[Row]:
    """A row per entry of a run. ``speedup``: time of ``none`` with the same seed over its own; or None.

    Only runs of equally many steps are set against each other.
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
    from rich.table import Table
    from rich.text import Text

    headings = [
        "algorithm",
        "seed",
        "time",
        "speed-up",
        "test accuracy",
        "up",
        "down",
        "mean k",
        "sent",
        "passes",
        "verdict",
    ]
    shown = Table(*headings)
    colours = {"valid": "green", "degraded": "yellow", "invalid": "red"}
    for column in shown.columns[1:-1]:
        column.justify = "right"
    for row in table:
        *cells, verdict = cells_of(row)
        shown.add_row(*map(plain, cells), Text(printable(verdict), colours.get(verdict, "red")))
    return shown


def plain(cell: str) -> Text:
    """A cell that shows what it holds: no markup of rich's, and nothing that a terminal obeys."""
    from rich.text import Text

    return Text(printable(cell))


def cells_of(row: Mapping[str, Any]) -> list[str]:
    """A row as people read it: eleven cells."""
    return [
        row["algorithm"],
        str(row["seed"]),
        f"{row['time_s']:.1f} s",
        _or_dash(row["speedup"], "{:.2f}×"),
        _or_dash(row["accuracy"], "{:.3f}"),
        megabytes(row["bytes_up"]),
        megabytes(row["bytes_down"]),
        _or_dash(row["mean_k"], "{:.3g}"),
        _or_dash(row["mean_achieved_k"], "{:.3g}"),
        _or_dash(row["mean_passes"], "{:.2f}"),
        row["verdict"],
    ]


def megabytes(amount: int) -> str:
    """Bytes as MB with three digits that mean something."""
    return f"{amount / 1e6:,.0f} MB" if amount >= 1e8 else f"{amount / 1e6:.3g} MB"


def _speedup(dense: Mapping[str, Any] | None, entry: Mapping[str, Any]) -> float | None:
    if dense is None or not entry["time_s"] or dense["steps"] != entry["steps"]:
        return None
    return float(dense["time_s"] / entry["time_s"])


def _cell(entry: Mapping[str, Any], key: str) -> Any:
    """Runs of before selections were recorded have none."""
    return entry.get(key) if key in (*SELECTION, *STALENESS) else entry[key]


def _or_dash(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)
