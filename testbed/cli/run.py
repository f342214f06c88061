"""``testbed run``: train every algorithm of a scenario, then the table and the figures; ``testbed
compare``: several seeds, runs interleaved and paired by seed, with intervals; resumable.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from analysis import MARGIN
from testbed.cli import options
from testbed.cli.options import rerun
from testbed.errors import InputError, printable
from testbed.topology import VIRTUAL
from testbed.user_files import PinnedFolder

if TYPE_CHECKING:
    from analysis.comparison import Compared
    from testbed.runner.comparison import Comparison, Recorded


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


def draw(comparison: Comparison, *, figures: bool = True, **how: Any) -> list[dict[str, Any]]:
    """``table.csv`` and, where wanted, figures and ``report.html`` into the comparison's directory;
    returns the table's rows, one per run. ``how``: baseline and margin of the page."""
    from analysis.tables import comparison_rows, to_csv

    comparison.check_runs()
    directories = [Path(entry["dir"]) for entry in comparison.runs]
    if figures:
        from analysis.report import write_report

        write_report(directories, comparison.folder.path, **how)
    table = comparison_rows(directories)
    comparison.folder.write("table.csv", to_csv(table).encode())
    return table


Fabric = Annotated[
    str | None,
    typer.Option(
        "--fabric",
        help="Where nodes run: docker, netns (the default), sim, swarm.",
        metavar="NAME",
    ),
]
Seeds = Annotated[
    str | None,
    typer.Option("--seed", help="Seeds: 3, 1-5 or 1,4; 1-3 by default.", metavar="SEEDS"),
]
ComparisonFolder = Annotated[
    Path | None, typer.Option("--out", help="Where runs/ and comparisons/ go: here.", metavar="DIR")
]
Resume = Annotated[
    Path | None,
    typer.Option("--resume", help="Go on with the comparison in this directory.", metavar="DIR"),
]
Sweep = Annotated[
    bool, typer.Option("--sweep", help="Add top-k of six fixed densities, 0.001 to 0.3.")
]
Baseline = Annotated[
    str | None,
    typer.Option("--baseline", help="Compare with this algorithm, not the first.", metavar="NAME"),
]
Targets = Annotated[
    list[float] | None,
    typer.Option(
        "--target",
        help="Time to this test accuracy; may be repeated.",
        metavar="SHARE",
        parser=options.share("--target", "0.9"),
    ),
]
Margin = Annotated[
    float,
    typer.Option(
        "--margin",
        help="A loss of accuracy that would not matter.",
        metavar="SHARE",
        parser=options.share("--margin", "0.005"),
    ),
]


def compare(
    context: typer.Context,
    scenario: options.Scenario,
    fabric: Fabric = None,
    algo: options.Algorithms = None,
    seed: Seeds = None,
    out: ComparisonFolder = None,
    resume: Resume = None,
    sweep: Sweep = False,
    baseline: Baseline = None,
    target: Targets = None,
    margin: Margin = MARGIN,
    as_json: options.Json = False,
    keep: options.Keep = False,
    quiet: options.Quiet = False,
    no_figures: options.NoFigures = False,
    parallel: options.Parallel = 1,
    guest: options.Guest = False,
) -> None:
    """Run every algorithm with every seed, interleaved, and pair the differences by seed."""
    _check(target or (), margin)
    if resume is None:
        earlier = None
    else:
        from testbed.runner.comparison import recorded

        earlier = recorded(resume, out)
    fabric, out = _destination(earlier, fabric, out)
    if guest:
        context.params.update(fabric=fabric, out=out)
        rerun(context)
    figures = not no_figures and options.can_draw()
    prepare_for(context, fabric, keep=keep)

    from testbed.runner.comparison import interleaved, requested_experiment
    from testbed.runner.run import run as run_all

    experiment = requested_experiment(scenario, algo or (), seed, sweep=sweep, earlier=earlier)
    names = [algorithm.name for algorithm in experiment.algorithms]
    if baseline is not None and baseline not in names:
        hint = f"Give one of {', '.join(names)}"
        raise InputError(f"{baseline!r} is not compared", where="--baseline", hint=hint)

    again = _flags(baseline, target or (), margin, parallel=parallel, as_json=as_json)
    again += ["--no-figures"] if no_figures else []

    def resuming(directory: Path) -> str:
        command = ["testbed", "compare", str(scenario), "--resume", str(directory), *again]
        return shlex.join(command)

    comparison = run_all(
        experiment,
        fabric,
        out,
        quiet=quiet,
        keep_failed=keep,
        order=interleaved(experiment.algorithms, experiment.seeds),
        parallel=parallel,
        earlier=earlier,
        resuming=resuming,
    )
    _present_compared(
        comparison,
        as_json,
        figures=figures,
        scenario=experiment.loaded.scenario.name,
        baseline=baseline,
        asked_targets=target or (),
        margin=margin,
        algorithms=names,
    )
    if comparison.failed:
        raise typer.Exit(1)


def _flags(
    baseline: str | None, targets: Sequence[float], margin: float, *, parallel: int, as_json: bool
) -> list[str]:
    """Return the flags that a comparison does not keep of how it was asked for."""
    flags = [] if baseline is None else ["--baseline", baseline]
    for target in targets:
        flags += ["--target", f"{target}"]
    flags += [] if margin == MARGIN else ["--margin", f"{margin}"]
    flags += [] if parallel == 1 else ["--parallel", str(parallel)]
    return flags + (["--json"] if as_json else [])


def _check(targets: Sequence[float], margin: float) -> None:
    for target in targets:
        if not 0 < target <= 1:
            raise InputError(
                f"{target:g} is no accuracy", where="--target", hint="Write a share such as 0.9"
            )
    if not 0 <= margin < 1:
        raise InputError(
            f"{margin:g} is no margin of accuracy", where="--margin", hint="Write a share: 0.005"
        )


def _destination(
    earlier: Recorded | None, fabric: str | None, out: Path | None
) -> tuple[str, Path]:
    """Fabric and ``--out``, from the flags or the comparison that is gone on with. Raises
    InputError."""
    if earlier is None:
        return fabric or "netns", out or Path()
    if fabric is not None:
        earlier.agree("--fabric", fabric, earlier.fabric)
    if out is not None:
        earlier.agree("--out", out.resolve(), earlier.out.resolve())
    return earlier.fabric, earlier.out


def _present_compared(comparison: Comparison, as_json: bool, *, figures: bool, **how: Any) -> None:
    """Figures, tables and ``compared.json`` into the comparison's directory; table and sentences,
    or JSON, here."""
    from analysis.comparison import compared
    from testbed.records.run_directory import SUMMARY, read_json

    summaries = [
        {**read_json(Path(entry["dir"]) / SUMMARY), "dir": entry["dir"]}
        for entry in comparison.runs
    ]
    result = compared(
        directory=comparison.directory, entries=comparison.runs, summaries=summaries, **how
    )
    draw(comparison, figures=figures, baseline=result.baseline, margin=result.margin)
    text = _written(result, comparison.folder)
    if as_json:
        sys.stdout.write(text)
        return
    from rich.console import Console

    from analysis.tables import algorithm_table as rich_table

    Console(width=options.table_width()).print(rich_table(result))
    for sentence in result.sentences():
        print(sentence)
    if figures:
        name_page(comparison)


def _written(result: Compared, folder: PinnedFolder) -> str:
    from analysis.comparison import COMPARED
    from analysis.tables import algorithm_rows as rows
    from analysis.tables import to_csv
    from testbed.records.run_directory import to_json

    text = to_json(result.to_json(), indent=2) + "\n"
    folder.write(COMPARED, text.encode())
    folder.write("algorithms.csv", to_csv(rows(result)).encode())
    return text
