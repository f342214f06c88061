"""``testbed bench agreement``: virtual time held against real links."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from testbed.cli import options
from testbed.cli.bench_compress import present, say_unless
from testbed.errors import InputError

Workers = Annotated[
    list[int] | None, typer.Option("--workers", help="So many; may be repeated.", min=1, max=64)
]
Rates = Annotated[
    list[int] | None,
    typer.Option("--rate", help="Mbit/s; may be repeated.", min=1, max=10_000, metavar="RATE"),
]
Conditions = Annotated[
    list[str] | None, typer.Option("--condition", help="May be repeated.", metavar="NAME")
]
Steps = Annotated[int, typer.Option("--steps", help="Of every run.", min=3, max=10_000)]
Again = Annotated[
    Path | None,
    typer.Option("--again", help="Take the measurements of an earlier call.", metavar="DIR"),
]
Calibrate = Annotated[
    bool, typer.Option("--calibrate", help="Find the model's constants on one half of the runs.")
]


def agreement(
    workers: Workers = None,
    rate: Rates = None,
    condition: Conditions = None,
    algo: options.Algorithms = None,
    steps: Steps = 20,
    again: Again = None,
    calibrate: Calibrate = False,
    out: options.Out = Path(),
    parallel: options.Parallel = 1,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Step times in virtual time against those on real links, over a matrix of scenarios."""
    from analysis.benches import draw_agreement
    from testbed.bench.agreement.matrix import ALGORITHMS, CONDITION_NAMES, cells
    from testbed.bench.agreement.run import run

    for name in condition or ():
        if name not in CONDITION_NAMES:
            known = ", ".join(CONDITION_NAMES)
            raise InputError(
                f"unknown condition {name!r}", where="--condition", hint=f"Known: {known}"
            )
    if again is None:
        from testbed.fabric.rootless import become_able

        become_able("netns")

    say = say_unless(quiet)
    directory, found = run(
        list(cells(condition or (), workers or (), rate or ())),
        out,
        say,
        steps=steps,
        algorithms=algo or ALGORITHMS,
        again=again,
        calibrate=calibrate,
        processes=parallel,
    )
    draw_agreement(directory, found.rows)
    present("agreement", found.to_json(), found, as_json)
    say(f"results: {directory}")
    if found.met is False:
        raise typer.Exit(1)
