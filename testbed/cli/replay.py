"""``testbed replay``: how well links follow a trace or a scenario, measured with bulk traffic;
``testbed replay-controller``: a run's controllers again on what the workers recorded.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from testbed.algorithm import Algorithm
from testbed.algorithms import ROWS
from testbed.cli import options
from testbed.cli.options import rerun
from testbed.compatibility import check, resolve
from testbed.control.base import ReplayedDecisions, controller_seed, controllers, replay_decisions
from testbed.errors import InputError
from testbed.records.run_directory import EVENTS, MANIFEST, read_json, read_jsonl, readable

if TYPE_CHECKING:
    from rich.table import Table

    from testbed.runner.link_replay import ReplayedLinks
    from testbed.scenario.load import Loaded


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
    """Fill every link direction with bulk traffic while it follows TRACE; certify and draw what
    they gave."""
    from testbed.host.user_namespace import become_able
    from testbed.runner.link_replay import replay as replay_links

    if guest:
        rerun(context)
    figures = not no_figures and options.can_draw()
    become_able(fabric, keep=keep)
    loaded = _load(trace, form, column)
    replayed = replay_links(loaded, fabric, out, seconds, quiet=quiet, keep_failed=keep)
    if figures:
        draw(replayed.directory)
    if as_json:
        options.print_json(replayed.to_json())
        for reason in replayed.verdict.reasons:
            print(f"testbed: {reason}", file=sys.stderr)
    else:
        _present(replayed)
    if replayed.verdict.state == "invalid":
        raise typer.Exit(1)


def _load(source: Path, form: str | None, column: str | None) -> Loaded:
    from testbed.runner.link_replay import trace_scenario
    from testbed.scenario.load import load

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


def _present(replayed: ReplayedLinks) -> None:
    from rich.console import Console

    console = Console(width=options.table_width())
    console.print(_table(replayed))
    console.print(f"verdict: {replayed.verdict.state}", highlight=False)
    for reason in replayed.verdict.reasons:
        console.print(f"  {reason}", highlight=False)
    print(f"records: {replayed.directory}", file=sys.stderr)


def _table(replayed: ReplayedLinks) -> Table:
    from rich.table import Table

    table = Table(
        "link",
        "direction",
        "asked",
        "delivered/asked",
        "backlogged",
        "then per 1 s",
        "worst 1 s",
        "late p99",
    )
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


Run = Annotated[Path, typer.Argument(help="Run directory.", show_default=False)]
Controller = Annotated[
    str | None,
    typer.Option(
        "--controller",
        help="Another controller, or an algorithm's, in open loop.",
        metavar="NAME",
    ),
]
Node = Annotated[str | None, typer.Option("--node", help="One worker only.", metavar="NAME")]


def replay_controller(
    run: Run, controller: Controller = None, node: Node = None, as_json: options.Json = False
) -> None:
    """Run the controllers of RUN again, offline, and compare their densities with the recorded
    ones.

    The same controller must give the same densities, to the last bit: otherwise exit 1. Another one
    is shown what the recorded one's densities led to (open loop), and nothing is expected of it. Of
    a controller that decides for every layer, the mean by elements is compared.
    """
    recorded, seed = _manifest(run)
    wanted = recorded if controller is None else _wanted(controller)
    same = (wanted.controller, wanted.options) == (recorded.controller, recorded.options)
    make = controllers.get(wanted.controller)
    with readable([run]):
        replays = [
            (
                name,
                rank,
                replay_decisions(
                    records,
                    partial(
                        make,
                        seed=controller_seed(seed, 0 if recorded.agree else rank),
                        **wanted.options,
                    ),
                ),
            )
            for name, rank, records in _workers(run, node)
        ]
    if as_json:
        options.print_json(_report(run, wanted, same, replays))
    else:
        for name, _, replayed in replays:
            print(f"{name}: {_verdict(replayed, same)}")
    if same and not all(replayed.exact for _, _, replayed in replays):
        raise typer.Exit(1)


def _manifest(run: Path) -> tuple[Algorithm, int]:
    """The algorithm and the seed of a run."""
    where = run / MANIFEST
    manifest = read_json(where)
    try:
        algorithm, seed = Algorithm.from_json(manifest["algorithm"]), int(manifest["seed"])
    except (KeyError, TypeError, ValueError, InputError) as error:
        raise InputError(
            f"no algorithm and seed can be read from it: {error}", where=str(where)
        ) from error
    with readable([where]):
        check(algorithm, str(where))
    return algorithm, seed


def _wanted(name: str) -> Algorithm:
    """A controller with its defaults, or an algorithm's with the algorithm's options."""
    if name in controllers and not any(row.name == name for row in ROWS):
        return Algorithm(name, controller=name)
    return resolve(name, where="--controller")


def _workers(run: Path, node: str | None) -> Iterator[tuple[str, int, list[dict[str, Any]]]]:
    """Name, rank and step records of every worker (or of ``node``), by rank."""
    records_of = {
        int(path.stem.rpartition("-")[2]): [
            record for record in read_jsonl(path) if record.get("kind") == "step"
        ]
        for path in (run / EVENTS).glob("worker-[0-9]*.jsonl")
    }
    names = {
        rank: str(records[0]["node"]) if records else f"worker-{rank}"
        for rank, records in records_of.items()
    }
    if not records_of:
        raise InputError("no worker has recorded anything", where=str(run / EVENTS))
    if node is not None and node not in names.values():
        raise InputError(
            f"no worker is called {node!r}",
            where="--node",
            hint=f"Recorded: {', '.join(names.values())}",
        )
    for rank in sorted(records_of):
        if node in (None, names[rank]):
            yield names[rank], rank, records_of[rank]


def _verdict(replayed: ReplayedDecisions, same: bool) -> str:
    """One worker's line."""
    steps, wrong = len(replayed.steps), replayed.mismatches
    if not steps:
        return "no steps recorded"
    if not same:
        mean = sum(replayed.replayed) / steps
        was = sum(replayed.recorded) / steps
        return f"open loop, {steps} steps, mean density {mean:.4g} (recorded {was:.4g})"
    if wrong:
        return f"NOT exact: {len(wrong)} of {steps} steps differ, the first is step {wrong[0]}"
    return f"exact: {steps} steps compared, 0 mismatches"


def _report(
    run: Path, wanted: Algorithm, same: bool, replays: list[tuple[str, int, ReplayedDecisions]]
) -> dict[str, object]:
    return {
        "run": str(run),
        "controller": wanted.controller,
        "options": wanted.options,
        "open_loop": not same,
        "nodes": [
            {
                "node": name,
                "rank": rank,
                "steps": len(replayed.steps),
                "mismatches": len(replayed.mismatches),
                "exact": replayed.exact if same else None,
                "recorded": replayed.recorded,
                "replayed": replayed.replayed,
            }
            for name, rank, replayed in replays
        ],
    }
