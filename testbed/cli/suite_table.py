"""A suite's rows and checks, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from testbed.bench.result import Suite


def show(console: Console, name: str, found: Suite) -> None:
    """A table, each check with its limit, and what is absent or failed."""
    from rich.table import Table

    from testbed.bench.result import cell, table

    columns, cells = table(found.rows)
    shown = Table(title=f"{name}: {found.title}", title_justify="left")
    for column in columns:
        shown.add_column(column, justify="right")
    for line in cells:
        shown.add_row(*line)
    console.print(shown)
    for check in found.checks:
        verdict = {True: "met", False: "NOT MET", None: "not measured"}[check.met]
        said = f"  {check.name}: {cell(check.measured)}, {check.limit}: {verdict}"
        console.print(said, highlight=False, markup=False)
    for missing in found.absent:
        console.print(f"  absent: {missing}", highlight=False, markup=False)
    if found.failure is not None:
        console.print(f"  failed: {found.failure}", highlight=False, markup=False)
