"""The table of jobs: one row per run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.load import Row, Run
from analysis.series import lengths, phases_s
from analysis.tables import megabytes, or_dash, terminal_table

if TYPE_CHECKING:
    from rich.table import Table


HEADINGS = (
    "Label",
    "Time",
    "Steps",
    "Known by",
    "Step, mean",
    "Median (5–95 %)",
    "Speed-up",
    "Busy",
    "Up",
    "Down",
    "Last values",
    "Verdict",
)
EXPLAINED = (
    "Known by: marks of the job's own, or inferred from the links' traffic, with its confidence "
    "from 0 to 1. "
    "Speed-up: the mean step of the first row over that of this one. "
    "Busy: share of the steps' time in which the busiest link was busy. "
    "Up, Down: mean of all nodes' links over the whole run, Ethernet headers counted."
)


def rows(runs: Sequence[Run]) -> list[Row]:
    """A row per run; times in s of model time. ``speedup``: the first run's mean step over its
    own."""
    sparse = [_row(run) for run in runs]
    keys = list(dict.fromkeys(key for row in sparse for key in row))
    table = [{key: row.get(key) for key in keys} for row in sparse]
    first = table[0]["step_s"] if table else None
    for row in table:
        row["speedup"] = first / row["step_s"] if first and row["step_s"] else None
    return table


def cells_of(row: Mapping[str, Any]) -> list[str]:
    """A row as people read it: a cell per heading."""
    values = ", ".join(
        f"{key.removeprefix('last_')} {value:.4g}"
        for key, value in row.items()
        if key.startswith("last_") and value is not None
    )
    return [
        row["algorithm"],
        f"{row['time_s']:.1f} s",
        str(row["steps"]) if row["steps_by"] else "–",
        _known_by(row),
        or_dash(row["step_s"], "{:.3g} s"),
        _spread(row),
        or_dash(row["speedup"], "{:.2f}×"),
        or_dash(row["communication_share"], "{:.0%}"),
        megabytes(row["up_bytes"]),
        megabytes(row["down_bytes"]),
        values or "–",
        row["verdict"],
    ]


def rich_table(table: Sequence[Mapping[str, Any]]) -> Table:
    """The rows for a terminal."""
    return terminal_table(HEADINGS, map(cells_of, table))


def _row(run: Run) -> Row:
    known, own, steps = run.known, run.summary, lengths(run)
    percentiles = np.percentile(steps, [5, 50, 95]) if len(steps) else [None] * 3
    nodes = list(own["nodes"].values())
    return {
        "algorithm": run.algorithm,
        "verdict": run.verdict,
        "time_s": own["time_s"],
        "steps": len(known.steps),
        "steps_by": known.by,
        "confidence": known.confidence,
        "step_s": float(steps.mean()) if len(steps) else None,
        **dict(zip(("step_p5_s", "step_median_s", "step_p95_s"), percentiles, strict=True)),
        "speedup": None,
        "communication_share": own["communication_share"],
        **{
            key: round(float(np.mean([node[key] for node in nodes])))
            for key in ("up_bytes", "down_bytes")
        },
        **{f"last_{name}": value for name, value in own["values"].items()},
        **{f"phase_{name}_s": seconds for name, seconds in phases_s(run).items()},
    }


def _known_by(row: Mapping[str, Any]) -> str:
    if row["steps_by"] == "traffic":
        return f"inferred ({row['confidence']:.2f})"
    return "marks" if row["steps_by"] else "not known"


def _spread(row: Mapping[str, Any]) -> str:
    if row["step_median_s"] is None:
        return "–"
    return f"{row['step_median_s']:.3g} s ({row['step_p5_s']:.3g}–{row['step_p95_s']:.3g})"
