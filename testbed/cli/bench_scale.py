"""``testbed bench scale``: from a few workers to ten thousand, in virtual time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from testbed.cli import options
from testbed.cli.bench_compress import present, say_unless

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

    say = say_unless(quiet)
    sizes = [Size(many, count) for many in servers or SERVERS for count in workers or WORKERS]
    directory, found = run(sizes, out, say, steps=steps, algorithm=algo)
    draw_scale(directory, found.rows)
    present("scale", found.to_json(), found, as_json)
    say(f"results and figure: {directory}")
