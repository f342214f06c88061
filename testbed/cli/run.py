"""``testbed run``: train every algorithm of a scenario, then the table and the figures."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from testbed.cli import options
from testbed.cli.options import rerun
from testbed.errors import printable
from testbed.topology import VIRTUAL

if TYPE_CHECKING:
    from testbed.runner.comparison import Comparison


def run(
    context: typer.Context,
    scenario: options.Scenario,
    fabric: options.FabricName = "netns",
    algo: options.Algorithms = None,
    seed: options.Seeds = None,
    out: options.Out = Path(),
    as_json: options.Json = False,
    keep: options.Keep = False,
    quiet: options.Quiet = False,
    no_figures: options.NoFigures = False,
    parallel: options.Parallel = 1,
    guest: options.Guest = False,
    observe: options.Observe = False,
) -> None:
    """Train every algorithm of SCENARIO with every seed over the same link history."""
    if guest:
        rerun(context)
    figures = not no_figures and options.can_draw()
    prepare_for(context, fabric, keep=keep)

    from testbed.runner.experiment import parse_seeds, prepare
    from testbed.runner.run import run as run_all

    experiment = prepare(scenario, algo or (), parse_seeds(seed))
    comparison = run_all(
        experiment, fabric, out, quiet=quiet, keep_failed=keep, parallel=parallel, observe=observe
    )
    present(comparison, as_json, figures=figures)
    if comparison.failed:
        raise typer.Exit(1)


def prepare_for(context: typer.Context, fabric: str, *, keep: bool) -> None:
    """Have the privileges that training on ``fabric`` needs; begin to start its nodes if nobody is
    measuring now.

    To be called before the command's own imports, which take as long as theirs. Raises what
    ``become_able`` raises.
    """
    if fabric == VIRTUAL:
        return
    from testbed.host.user_namespace import FABRIC, become_able

    become_able(fabric, keep=keep)
    if fabric == FABRIC:
        from testbed.fabric.forker import ahead
        from testbed.runner.signals import is_free

        context.with_resource(ahead(is_free()))


def present(comparison: Comparison, as_json: bool, *, figures: bool = True) -> None:
    """Figures and page into the comparison's directory, the table (or JSON) and a sentence for each
    algorithm on standard output."""
    from rich.console import Console

    from analysis.tables import rich_table

    table = draw(comparison, figures=figures)
    if as_json:
        options.print_json({"runs": comparison.runs})
        return
    Console(width=options.table_width()).print(rich_table(table))
    if figures:
        from analysis.report import sentences

        for sentence in sentences([Path(entry["dir"]) for entry in comparison.runs]):
            print(printable(sentence))
        name_page(comparison)


def name_page(comparison: Comparison) -> None:
    """Print the address of the comparison's page, on standard error."""
    page = comparison.directory / "report.html"
    print(f"report: {page.resolve().as_uri()}", file=sys.stderr)


def draw(comparison: Comparison, *, figures: bool = True) -> list[dict[str, Any]]:
    """``table.csv`` and, where wanted, figures and ``report.html`` into the comparison's directory;
    returns the table's rows, one per run."""
    from analysis.tables import comparison_rows, to_csv

    directories = [Path(entry["dir"]) for entry in comparison.runs]
    if figures:
        from analysis.report import write_report

        write_report(directories, comparison.directory)
    table = comparison_rows(directories)
    (comparison.directory / "table.csv").write_text(to_csv(table), encoding="utf-8")
    return table
