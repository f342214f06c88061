"""``testbed bench overlap``: steps that send while they compute, against the least that computation and links allow."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from testbed.cli import options
from testbed.cli.bench_compress import present, say_unless

Loads = Annotated[
    list[float] | None,
    typer.Option(
        "--load",
        help="Time of all buckets on a link over that of the backward pass; may be repeated.",
        min=0.01, max=100.0,
    ),
]  # fmt: skip
Workers = Annotated[int, typer.Option("--workers", help="So many.", min=1, max=64)]
Pace = Annotated[
    float, typer.Option("--pace", help="Of a step's computation, ms.", min=1.0, max=60_000.0)
]
Steps = Annotated[int, typer.Option("--steps", help="Of every run.", min=2, max=10_000)]
Skip = Annotated[int, typer.Option("--skip", help="Steps that are not counted.", min=0)]
Repeat = Annotated[
    int, typer.Option("--repeat", help="How often everything is measured.", min=1, max=100)
]


def overlap(
    load: Loads = None,
    workers: Workers = 3,
    pace: Pace = 240.0,
    steps: Steps = 24,
    skip: Skip = 4,
    repeat: Repeat = 5,
    quick: Annotated[
        bool, typer.Option("--quick", help="Once and short: only to see that it works.")
    ] = False,
    fabric: options.FabricName = "netns",
    out: options.Out = Path(),
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Steps with and without overlap at three bandwidths, against the bound of computation and links."""
    from testbed.bench.overlap.plan import LOADS, Plan
    from testbed.bench.overlap.run import Bench
    from testbed.errors import InputError
    from testbed.fabric.rootless import become_able

    if quick:
        steps, skip, repeat = 8, 3, 1
    if skip >= steps - 1:
        raise InputError(f"of {steps} steps {skip} and the last are not counted", where="--skip")
    become_able(fabric)
    plan = Plan(fabric, load or LOADS, workers, pace / 1e3, steps, skip, repeat)
    say = say_unless(quiet)
    bench = Bench(plan, out, say)
    found = bench.run()
    present("overlap", bench.known, found, as_json)
    say(f"results: {bench.directory}")
