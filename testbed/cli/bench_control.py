"""``testbed bench control``: step responses and regrets of controllers, in virtual time."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from testbed.cli import options
from testbed.cli.bench_compress import present, say_unless
from testbed.errors import InputError

Waveforms = Annotated[
    list[str] | None,
    typer.Option("--waveform", help="Only this one; may be repeated.", metavar="NAME"),
]
Algorithms = Annotated[
    list[str] | None,
    typer.Option("--algo", help="Only this controller; may be repeated.", metavar="NAME"),
]
Steps = Annotated[int, typer.Option("--steps", help="Of every run.", min=20, max=10_000)]
Target = Annotated[
    float | None,
    typer.Option("--target", help="Accuracy that times are taken at.", min=0.01, max=1.0),
]
Again = Annotated[
    Path | None, typer.Option("--again", help="Judge the runs of an earlier call.", metavar="DIR")
]


def control(
    algo: Algorithms = None,
    waveform: Waveforms = None,
    steps: Steps = 240,
    seed: Annotated[int, typer.Option("--seed", help="Of every run.", min=0)] = 1,
    target: Target = None,
    again: Again = None,
    parallel: options.Parallel = 1,
    out: options.Out = Path(),
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """How controllers answer when the server's link changes, against the best density in hindsight."""
    from analysis.control_figures import draw_control
    from testbed.bench.response.run import ALGORITHMS, FIXED, Plan, known, run
    from testbed.bench.response.waveforms import WAVEFORMS

    for name in waveform or ():
        if name not in WAVEFORMS:
            hint = f"Known: {', '.join(WAVEFORMS)}"
            raise InputError(f"unknown waveform {name!r}", where="--waveform", hint=hint)
    chosen = [name for name in algo or known(ALGORITHMS) if name not in FIXED]
    asked = Plan(chosen, waveform or list(WAVEFORMS), FIXED, steps, seed, parallel)
    say = say_unless(quiet)
    directory, found = run(asked, out, say, level=target, again=again)
    draw_control(directory, found.to_json())
    present("control", found.suite.to_json(), found.suite, as_json)
    say(f"results and figures: {directory}")
