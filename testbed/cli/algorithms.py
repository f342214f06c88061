"""``testbed algorithms``: what can stand under ``algorithms:`` in a scenario, and after ``--algo``."""

from __future__ import annotations

import json

from testbed.algorithms import PATTERNS, Algorithm, known
from testbed.cli import options


def algorithms(as_json: options.Json = False) -> None:
    """List every algorithm by name, and the patterns of names."""
    if as_json:
        print(json.dumps(_listing(), indent=2))
        return
    from rich.console import Console
    from rich.table import Column, Table

    table = Table(
        Column("name", no_wrap=True), "selector", "memory", "controller", "about", box=None
    )
    for row in known():
        table.add_row(row.name, row.selector, row.memory, _controller(row), row.about)
    for pattern in PATTERNS:
        table.add_row(str(pattern), "", "", "", pattern.about)
    Console(width=options.table_width()).print(table)


def _listing() -> dict[str, object]:
    return {
        "algorithms": [row.to_json() for row in known()],
        "patterns": [{"pattern": str(pattern), "about": pattern.about} for pattern in PATTERNS],
    }


def _controller(row: Algorithm) -> str:
    changed = ", ".join(f"{name} {value}" for name, value in row.options.items())
    return f"{row.controller} ({changed})" if changed else row.controller
