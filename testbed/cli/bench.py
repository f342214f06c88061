"""``testbed bench``: how exact and how costly things are, against alternatives in the same run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from testbed.cli import bench_compress, options
from testbed.cli.bench_agreement import agreement
from testbed.cli.bench_coded import coded
from testbed.cli.bench_control import control
from testbed.cli.bench_exchange import exchange
from testbed.cli.bench_overlap import overlap
from testbed.cli.bench_scale import scale

if TYPE_CHECKING:
    from testbed.bench.link import Outcome

app = typer.Typer(
    no_args_is_help=True,
    help="Measure links and compression on this machine, against alternatives.",
)
bench_compress.add(app)
app.command()(agreement)
app.command()(scale)
app.command()(control)
app.command()(exchange)
app.command()(coded)
app.command()(overlap)

Names = Annotated[
    list[str] | None,
    typer.Option("--suite", help="Only this suite; may be repeated.", metavar="NAME"),
]
Repeat = Annotated[
    int, typer.Option("--repeat", help="How often everything is measured.", min=1, max=100)
]
Quick = Annotated[
    bool,
    typer.Option(
        "--quick", help="Once, short and with less of everything: only to see that it works."
    ),
]


@app.callback()
def bench() -> None:
    """Measure links and compression on this machine, against alternatives."""


@app.command()
def link(
    suite: Names = None,
    repeat: Repeat = 5,
    quick: Quick = False,
    out: options.Out = Path(),
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Accuracy and cost of links from 10 Mbit/s to 10 Gbit/s, against tc's htb, tbf and netem."""
    from testbed.bench.link import run
    from testbed.fabric.rootless import become_able

    become_able("netns")

    def say(text: str) -> None:
        if not quiet:
            print(text, file=sys.stderr, flush=True)

    outcome = run(suite or (), out, say, repeat=repeat, quick=quick)
    if as_json:
        json.dump(outcome.to_json(), sys.stdout, indent=2)
        print()
    else:
        _present(outcome)
    say(f"results: {outcome.path}")
    if any(found.failure is not None for found in outcome.suites.values()):
        raise typer.Exit(1)


def _present(outcome: Outcome) -> None:
    from rich.console import Console

    from testbed.cli.suite_table import show

    console = Console(width=options.table_width())
    for name, found in outcome.suites.items():
        show(console, name, found)
