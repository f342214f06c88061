"""``testbed algorithms``: what can stand under ``algorithms:`` in a scenario, and after
``--algo``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from testbed.algorithms import PATTERNS, SUFFIXES, Algorithm
from testbed.cli import options
from testbed.compatibility import known
from testbed.compress.base import codings, memories, selectors
from testbed.control.base import controllers
from testbed.exchange.base import exchanges

if TYPE_CHECKING:
    from rich.table import Table


def algorithms(as_json: options.Json = False) -> None:
    """List every algorithm by name, the patterns of names, and the parts they are made of."""
    if as_json:
        options.print_json(_listing())
        return
    from rich.console import Console

    console = Console(width=options.table_width())
    console.print(_table())
    for noun, names in _parts().items():
        console.print(f"{noun}: {', '.join(names)}", markup=False, highlight=False)


def _table() -> Table:
    from rich.table import Column, Table

    table = Table(
        Column("name", no_wrap=True),
        "selector",
        "values",
        "memory",
        "controller",
        "down",
        "exchange",
        "about",
        box=None,
    )
    for row in known():
        table.add_row(row.name, *_cells(row, _changed(row.controller, row.options)), row.about)
    for pattern in PATTERNS:
        table.add_row(str(pattern), *_cells(pattern.row, pattern.row.controller), pattern.about)
    for suffix in SUFFIXES:
        table.add_row(suffix.form, *[""] * 6, suffix.about)
    return table


def _cells(row: Algorithm, controller: str) -> list[str]:
    down = row.down if row.down_memory == "none" else f"{row.down} + {row.down_memory}"
    down += f" (density {row.down_density:g})" if row.down_density < 1 else ""
    values = _changed(row.values, row.values_options)
    exchange = _changed(row.exchange, row.exchange_options)
    return [row.selector, values, row.memory, controller, down, exchange]


def _listing() -> dict[str, Any]:
    return {
        "algorithms": [row.to_json() for row in known()],
        "patterns": [
            {
                "pattern": str(pattern),
                "example": pattern.example,
                "about": pattern.about,
                "row": pattern.row.to_json(),
            }
            for pattern in PATTERNS
        ],
        "suffixes": [{"suffix": suffix.form, "about": suffix.about} for suffix in SUFFIXES],
        "parts": _parts(),
    }


def _parts() -> dict[str, list[str]]:
    """All that an algorithm can be made of."""
    return {
        "selectors": selectors.names(),
        "values": codings.names(),
        "memories": memories.names(),
        "controllers": controllers.names(),
        "exchanges": exchanges.names(),
    }


def _changed(name: str, given: dict[str, Any]) -> str:
    """A part with the options that are not its own defaults."""
    changed = ", ".join(f"{option} {value}" for option, value in given.items())
    return f"{name} ({changed})" if changed else name
