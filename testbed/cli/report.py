"""``testbed report``: table, figures and an HTML page from the records of runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from testbed.cli import options
from testbed.record.readable import readable

Runs = Annotated[
    list[Path],
    typer.Argument(metavar="RUN…", help="Run directories, or comparisons/<…> for all their runs."),
]
Out = Annotated[
    Path | None,
    typer.Option("--out", help="Where to write; a single comparison's own directory by default."),
]


def report(runs: Runs, out: Out = None, as_json: options.Json = False) -> None:
    """Draw every figure and the table of some runs, from their records alone."""
    with readable(runs):
        _report(runs, out, as_json)


def _report(runs: list[Path], out: Path | None, as_json: bool) -> None:
    from analysis.load import load_all
    from analysis.report import sheet_of, write_report
    from testbed.record.directory import to_json

    loaded = load_all(runs)
    files = write_report(runs, out or _default(runs))
    sheet = sheet_of(loaded)
    table = sheet.rows(loaded)
    if as_json:
        print(json.dumps(json.loads(to_json({"runs": table, "files": files})), indent=2))
        return
    from rich.console import Console

    Console(width=options.table_width()).print(sheet.rich_table(table))
    print(f"report: {files[-1]}", file=sys.stderr)


def _default(runs: list[Path]) -> Path:
    from testbed.record.directory import COMPARISON

    alone = len(runs) == 1 and (runs[0] / COMPARISON).exists()
    return runs[0] if alone else Path("report")
