"""``testbed algorithms``: what can stand under ``algorithms:`` in a scenario, and after ``--algo``;
and ``testbed data``: the files of tasks that need any.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from testbed.algorithms import PATTERNS, SUFFIXES
from testbed.cli import options
from testbed.compatibility import known
from testbed.compress.base import codings, memories, selectors
from testbed.control.base import controllers
from testbed.errors import InputError
from testbed.exchange.base import exchanges
from testbed.training.tasks.base import DataFiles, tasks

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
        table.add_row(row.name, *row.parts(), row.about)
    for pattern in PATTERNS:
        table.add_row(str(pattern), *pattern.row.parts(pattern.row.controller), pattern.about)
    for suffix in SUFFIXES:
        table.add_row(suffix.form, *[""] * 6, suffix.about)
    return table


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


data_app = typer.Typer(
    no_args_is_help=True,
    help="Fetch the standard files of data sets, and check those that are there.",
)
Data = Annotated[Path, typer.Option("--data", help="Directory of data sets.", metavar="DIR")]


@data_app.command("list")
def list_data(data: Data = Path("data"), as_json: options.Json = False) -> None:
    """List the tasks that need files, and whether these are there, by their sha256."""
    rows: list[dict[str, Any]] = [
        {
            "task": name,
            "downloads": [each.name for each in files.downloads],
            "bytes": sum(each.size for each in files.downloads),
            "state": _state(files, data),
        }
        for name, files in _with_files().items()
    ]
    if as_json:
        options.print_json(rows)
        return
    for row in rows:
        print(f"{row['task']:9} {row['bytes'] / 1e6:6.1f} MB  {row['state']}")


def _with_files() -> dict[str, DataFiles]:
    of = {name: getattr(tasks.get(name), "files", None) for name in tasks.names()}
    return {name: files for name, files in of.items() if files is not None}


def _state(files: DataFiles, data: Path) -> str:
    try:
        missing = files.missing(data)
    except InputError as error:
        return str(error)
    return f"missing: {', '.join(missing)}" if missing else "complete"


@data_app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="The task: mnist, cifar10 or cifar100.")],
    data: Data = Path("data"),
    server: Annotated[
        list[str] | None,
        typer.Option("--from", help="URL of a folder with the downloads; may be repeated."),
    ] = None,
) -> None:
    """Fetch what is missing of a task's files, and check all of them.

    A download that lies in DIR is unpacked without a network."""
    known = _with_files()
    if name not in known:
        raise InputError(f"no task with files {name!r}", hint=f"There are: {', '.join(known)}")
    known[name].fetch(data, [url.rstrip("/") + "/" for url in server or ()])
    print(f"{name}: all files in {data} are as they should be")
