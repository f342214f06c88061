"""``testbed replay``: how well links follow a trace or a scenario, measured with bulk traffic."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from testbed.cli import options
from testbed.cli.guest import rerun
from testbed.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

    from testbed.scenario.load import Loaded
    from testbed.session.replay import Replayed

Source = Annotated[
    Path,
    typer.Argument(metavar="TRACE", help="A trace, or a scenario (.yaml).", show_default=False),
]


def replay(
    context: typer.Context,
    trace: Source,
    fabric: options.FabricName = "netns",
    form: options.TraceFormat = None,
    column: options.TraceColumn = None,
    seconds: options.Seconds = 60.0,
    out: options.Out = Path(),
    as_json: options.Json = False,
    keep: options.Keep = False,
    quiet: options.Quiet = False,
    no_figures: options.NoFigures = False,
    guest: options.Guest = False,
) -> None:
    """Fill every link direction with bulk traffic while it follows TRACE; certify and draw what they gave."""
    from testbed.fabric.rootless import become_able
    from testbed.session.replay import replay as replay_links

    if guest:
        rerun(context)
    become_able(fabric, keep=keep)
    loaded = _load(trace, form, column)
    replayed = replay_links(loaded, fabric, out, seconds, quiet=quiet, keep_failed=keep)
    if not no_figures:
        draw(replayed.directory)
    if as_json:
        json.dump(replayed.to_json(), sys.stdout, indent=2)
        print()
        for reason in replayed.verdict.reasons:
            print(f"testbed: {reason}", file=sys.stderr)
    else:
        _present(replayed)
    if replayed.verdict.state == "invalid":
        raise typer.Exit(1)


def _load(source: Path, form: str | None, column: str | None) -> Loaded:
    from testbed.scenario.load import load
    from testbed.session.replay import trace_scenario

    if source.suffix not in {".yaml", ".yml"}:
        return trace_scenario(source, form, column)
    for flag, given in (("--format", form), ("--column", column)):
        if given is not None:
            raise InputError(
                f"{source} is a scenario, not a trace",
                where=flag,
                hint="Leave it out; its events say `column`",
            )
    return load(source)


def draw(directory: Path) -> None:
    """Leave ``fidelity.png`` beside the records."""
    from analysis.figures import fidelity
    from analysis.load import load
    from analysis.style import save

    runs = [load(directory, replayed=True)]
    save(directory, fidelity.NAME, runs, fidelity.data, fidelity.draw)


def _present(replayed: Replayed) -> None:
    from rich.console import Console

    console = Console(width=options.table_width())
    console.print(_table(replayed))
    console.print(f"verdict: {replayed.verdict.state}", highlight=False)
    for reason in replayed.verdict.reasons:
        console.print(f"  {reason}", highlight=False)
    print(f"records: {replayed.directory}", file=sys.stderr)


def _table(replayed: Replayed) -> Table:
    from rich.table import Table

    table = Table(
        "link", "direction", "asked", "delivered/asked", "backlogged", "then per 1 s", "worst 1 s", "late p99"
    )  # fmt: skip
    for column in table.columns[2:]:
        column.justify = "right"
    for link in replayed.report.links:
        late = link.lateness_ms
        table.add_row(
            link.link,
            link.direction,
            f"{link.asked_bits / 1e6:.1f} Mbit",
            "–" if link.ratio is None else f"{link.ratio:.4f}",
            f"{link.busy_share:.0%}",
            "–" if link.busy_mape_1s is None else f"{link.busy_mape_1s:.2%}",
            "–" if link.busy_worst_1s is None else f"{link.busy_worst_1s:.2%}",
            "–" if late is None else f"{late['p99']:.1f} ms",
        )
    return table
