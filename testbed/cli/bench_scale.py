"""``testbed bench scale``: from a few workers to ten thousand, in virtual time."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from testbed.cli import options

Workers = Annotated[
    list[int] | None,
    typer.Option("--workers", help="So many; may be repeated.", min=1, max=10_000),
]
Servers = Annotated[
    list[int] | None, typer.Option("--servers", help="So many; may be repeated.", min=1, max=1_000)
]
Steps = Annotated[int, typer.Option("--steps", help="Of every run.", min=2, max=10_000)]


def scale(
    workers: Workers = None,
    servers: Servers = None,
    algo: Annotated[str, typer.Option("--algo", help="Of a fixed density.")] = "none",
    steps: Steps = 5,
    out: options.Out = Path(),
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Step time, memory and time to simulate it, by the number of workers and servers."""
    from analysis.benches import draw_scale
    from testbed.bench.scale.growth import SERVERS, WORKERS, Size
    from testbed.bench.scale.run import run

    def say(text: str) -> None:
        if not quiet:
            print(text, file=sys.stderr, flush=True)

    sizes = [Size(many, count) for many in servers or SERVERS for count in workers or WORKERS]
    directory, found = run(sizes, out, say, steps=steps, algorithm=algo)
    draw_scale(directory, found.rows)
    if as_json:
        json.dump(found.to_json(), sys.stdout, indent=2)
        print()
    else:
        from rich.console import Console

        from testbed.cli.suite_table import show

        show(Console(width=options.table_width()), "scale", found)
    say(f"results and figure: {directory}")
