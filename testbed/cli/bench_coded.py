"""``testbed bench coded``: redundant computation against bytes, as in the experiments on coded synchronous SGD."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from testbed.cli import options
from testbed.cli.bench_compress import present, say_unless

Share = Annotated[
    float,
    typer.Option(
        "--share", help="c: computation's share of a step of SSGD by multicast.", min=0.001, max=0.9
    ),
]
Accuracy = Annotated[
    float, typer.Option("--accuracy", help="Test accuracy to be reached.", min=0.01, max=1.0)
]
Steps = Annotated[int, typer.Option("--steps", help="Of every timed run.", min=2, max=10_000)]
Most = Annotated[int, typer.Option("--most", help="Steps to reach the accuracy in.", min=5)]
Schemes = Annotated[
    list[str] | None,
    typer.Option("--algo", help="Only these schemes; may be repeated.", metavar="NAME"),
]


Rates = Annotated[
    list[float] | None,
    typer.Option("--rate", help="Only these learning rates; may be repeated.", min=1e-9),
]


def coded(
    scenario: Annotated[Path, typer.Argument(help="A scenario with peers and one server.")],
    accuracy: Accuracy = 0.82,
    share: Share = 0.05,
    steps: Steps = 30,
    most: Most = 400,
    algo: Schemes = None,
    rate: Rates = None,
    fabric: options.FabricName = "netns",
    parallel: options.Parallel = 1,
    out: options.Out = Path(),
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Time to an accuracy of coded, replicated and plain synchronous SGD among peers, and of ASGD."""
    from testbed.bench.coded.plan import BASE, SCHEMES, Plan
    from testbed.bench.coded.run import Bench
    from testbed.fabric.rootless import become_able

    chosen = tuple(dict.fromkeys((BASE, *(algo or SCHEMES))))
    asked = Plan(accuracy, share, schemes=chosen, steps=steps, most=most)
    if rate:
        asked = replace(asked, rates=tuple(rate))
    become_able(fabric)
    say = say_unless(quiet)
    bench = Bench(scenario, asked, out, say, parallel)
    found = bench.run(fabric)
    present("coded", bench.known, found, as_json)
    say(f"results: {bench.directory}")
