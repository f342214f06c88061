"""``testbed bench``: one function per verb; what is measured is in the modules beside this one."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Annotated

import typer

from testbed.bench.compress import cli
from testbed.bench.compress.cli import present, say_unless
from testbed.cli import options
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
Repeat = Annotated[
    int, typer.Option("--repeat", help="How often everything is measured.", min=1, max=100)
]
Quick = Annotated[bool, typer.Option("--quick", help="Once and short: only to see that it works.")]
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
    from testbed.bench.figures import draw
    from testbed.bench.sim_agreement import ALGORITHMS, CONDITION_NAMES, cells, run

    _check_known("condition", condition, CONDITION_NAMES)
    if again is None:
        from testbed.host.user_namespace import become_able

        become_able("netns")

    say = say_unless(quiet)
    directory, suite = run(
        list(cells(condition or (), workers or (), rate or ())),
        out,
        say,
        steps=steps,
        algorithms=algo or ALGORITHMS,
        again=again,
        calibrate=calibrate,
        processes=parallel,
    )
    draw(directory, "agreement", suite.rows)
    present(suite.to_json(), {"agreement": suite}, as_json)
    say(f"results: {directory}")
    if suite.met is False:
        raise typer.Exit(1)


def _check_known(option: str, names: list[str] | None, known: Collection[str]) -> None:
    """Raises InputError for a name that is not known."""
    for name in names or ():
        if name not in known:
            hint = f"Known: {', '.join(known)}"
            raise InputError(f"unknown {option} {name!r}", where=f"--{option}", hint=hint)


Share = Annotated[
    float,
    typer.Option(
        "--share", help="c: computation's share of a step of SSGD by multicast.", min=0.001, max=0.9
    ),
]
Accuracy = Annotated[
    float, typer.Option("--accuracy", help="Test accuracy to be reached.", min=0.01, max=1.0)
]
CodedStepCount = Annotated[
    int, typer.Option("--steps", help="Of every timed run.", min=2, max=10_000)
]
Most = Annotated[int, typer.Option("--most", help="Steps to reach the accuracy in.", min=5)]
Schemes = Annotated[
    list[str] | None,
    typer.Option("--algo", help="Only these schemes; may be repeated.", metavar="NAME"),
]


CodedLinkRates = Annotated[
    list[float] | None,
    typer.Option("--rate", help="Only these learning rates; may be repeated.", min=1e-9),
]


def coded(
    scenario: Annotated[Path, typer.Argument(help="A scenario with peers and one server.")],
    accuracy: Accuracy = 0.82,
    share: Share = 0.05,
    steps: CodedStepCount = 30,
    most: Most = 400,
    algo: Schemes = None,
    rate: CodedLinkRates = None,
    fabric: options.FabricName = "netns",
    parallel: options.Parallel = 1,
    out: options.Out = Path(),
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Time to an accuracy of coded, replicated and plain synchronous SGD among peers, and of
    ASGD."""
    from testbed.bench.coded import BASE, SCHEMES
    from testbed.bench.coded import CodedBench as Bench
    from testbed.bench.coded import CodedPlan as Plan
    from testbed.host.user_namespace import become_able

    chosen = tuple(dict.fromkeys((BASE, *(algo or SCHEMES))))
    requested = Plan(accuracy, share, schemes=chosen, steps=steps, most=most)
    if rate:
        requested = replace(requested, rates=tuple(rate))
    become_able(fabric)
    say = say_unless(quiet)
    bench = Bench(scenario, requested, out, say, parallel)
    present(bench.known, {"coded": bench.run(fabric)}, as_json)
    say(f"results: {bench.directory}")


Waveforms = Annotated[
    list[str] | None,
    typer.Option("--waveform", help="Only this one; may be repeated.", metavar="NAME"),
]
Algorithms = Annotated[
    list[str] | None,
    typer.Option("--algo", help="Only this controller; may be repeated.", metavar="NAME"),
]
ControlStepCount = Annotated[int, typer.Option("--steps", help="Of every run.", min=20, max=10_000)]
Target = Annotated[
    float | None,
    typer.Option("--target", help="Accuracy that times are taken at.", min=0.01, max=1.0),
]
ControlAfresh = Annotated[
    Path | None, typer.Option("--again", help="Judge the runs of an earlier call.", metavar="DIR")
]


def control(
    algo: Algorithms = None,
    waveform: Waveforms = None,
    steps: ControlStepCount = 240,
    seed: Annotated[int, typer.Option("--seed", help="Of every run.", min=0)] = 1,
    target: Target = None,
    again: ControlAfresh = None,
    parallel: options.Parallel = 1,
    out: options.Out = Path(),
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """How controllers answer when the server's link changes, against the best density in
    hindsight."""
    from testbed.bench.controllers import ALGORITHMS, FIXED, known, run
    from testbed.bench.controllers import ResponsePlan as Plan
    from testbed.bench.figures import draw_control
    from testbed.bench.waveforms import WAVEFORMS

    _check_known("waveform", waveform, WAVEFORMS)
    chosen = [name for name in algo or known(ALGORITHMS) if name not in FIXED]
    requested = Plan(chosen, waveform or list(WAVEFORMS), FIXED, steps, seed, parallel)
    say = say_unless(quiet)
    directory, result = run(requested, out, say, level=target, again=again)
    draw_control(directory, result.to_json())
    present(result.suite.to_json(), {"control": result.suite}, as_json)
    say(f"results and figures: {directory}")


Exchanges = Annotated[
    list[str] | None,
    typer.Option("--exchange", help="Only this one; may be repeated.", metavar="NAME"),
]
Nodes = Annotated[
    list[int] | None,
    typer.Option("--nodes", help="So many with gradients; may be repeated.", min=1, max=200),
]
Bytes = Annotated[
    list[int] | None, typer.Option("--bytes", help="Of a gradient; may be repeated.", min=4)
]
Links = Annotated[
    list[str] | None,
    typer.Option("--link", help="Rate of all links, or unshaped; may be repeated.", metavar="RATE"),
]
Longest = Annotated[
    float,
    typer.Option("--longest", help="Leave out rounds that take more seconds than these.", min=0.01),
]


def exchange(
    exchange: Exchanges = None,
    nodes: Nodes = None,
    size: Bytes = None,
    link: Links = None,
    repeat: Repeat = 5,
    longest: Longest = 30.0,
    quick: Quick = False,
    out: options.Out = Path(),
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Rounds per second of every exchange, against gloo, torch RPC and iperf3 on the same links."""
    from testbed.bench.exchange.cases import (
        BYTES,
        EXCHANGES,
        LINKS,
        NODES,
        BenchLink,
        check_bytes,
        entry,
    )
    from testbed.bench.exchange.run import ExchangePlan as Plan
    from testbed.bench.exchange.run import run
    from testbed.bench.figures import draw
    from testbed.host.user_namespace import become_able

    names = [entry(name).name for name in exchange or EXCHANGES]
    links = [BenchLink.parse(text) for text in link or LINKS]
    sizes = check_bytes(size or list(BYTES))
    become_able("netns")
    say = say_unless(quiet)
    plan = Plan(names, links, nodes or NODES, sizes, longest, repeat, quick)
    directory, result = run(plan, out, say)
    measured = [row for row in result.rows if row["rounds_per_s"] is not None]
    if measured:
        draw(directory, "exchange", measured)
    present(result.to_json(), {"exchange": result.suite()}, as_json)
    say(f"results{' and figure' if measured else ''}: {directory}")
    if any(row["failures"] for row in result.rows):
        raise typer.Exit(1)


Loads = Annotated[
    list[float] | None,
    typer.Option(
        "--load",
        help="Time of all buckets on a link over that of the backward pass; may be repeated.",
        min=0.01,
        max=100.0,
    ),
]
OverlapWorkerCount = Annotated[int, typer.Option("--workers", help="So many.", min=1, max=64)]
Pace = Annotated[
    float, typer.Option("--pace", help="Of a step's computation, ms.", min=1.0, max=60_000.0)
]
OverlapStepCount = Annotated[int, typer.Option("--steps", help="Of every run.", min=2, max=10_000)]
Skip = Annotated[int, typer.Option("--skip", help="Steps that are not counted.", min=0)]


def overlap(
    load: Loads = None,
    workers: OverlapWorkerCount = 3,
    pace: Pace = 240.0,
    steps: OverlapStepCount = 24,
    skip: Skip = 4,
    repeat: Repeat = 5,
    quick: Quick = False,
    fabric: options.FabricName = "netns",
    out: options.Out = Path(),
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Steps with and without overlap at three bandwidths, against the bound of computation and
    links."""
    from testbed.bench.overlap import LOADS
    from testbed.bench.overlap import OverlapBench as Bench
    from testbed.bench.overlap import OverlapPlan as Plan
    from testbed.host.user_namespace import become_able

    if quick:
        steps, skip, repeat = 8, 3, 1
    if skip >= steps - 1:
        raise InputError(f"of {steps} steps {skip} and the last are not counted", where="--skip")
    become_able(fabric)
    plan = Plan(fabric, load or LOADS, workers, pace / 1e3, steps, skip, repeat)
    say = say_unless(quiet)
    bench = Bench(plan, out, say)
    suite = bench.run()
    present(bench.known, {"overlap": suite}, as_json)
    say(f"results: {bench.directory}")


ScaleWorkerCounts = Annotated[
    list[int] | None,
    typer.Option("--workers", help="So many; may be repeated.", min=1, max=10_000),
]
Servers = Annotated[
    list[int] | None, typer.Option("--servers", help="So many; may be repeated.", min=1, max=1_000)
]
ScaleStepCount = Annotated[int, typer.Option("--steps", help="Of every run.", min=2, max=10_000)]


def scale(
    workers: ScaleWorkerCounts = None,
    servers: Servers = None,
    algo: Annotated[str, typer.Option("--algo", help="Of a fixed density.")] = "none",
    steps: ScaleStepCount = 5,
    out: options.Out = Path(),
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Step time, memory and time to simulate it, by the number of workers and servers."""
    from testbed.bench.figures import draw
    from testbed.bench.sim_scale import SERVERS, WORKERS, ScaleSize, run

    say = say_unless(quiet)
    sizes = [ScaleSize(*size) for size in product(servers or SERVERS, workers or WORKERS)]
    directory, suite = run(sizes, out, say, steps=steps, algorithm=algo)
    draw(directory, "scale", suite.rows)
    present(suite.to_json(), {"scale": suite}, as_json)
    say(f"results and figure: {directory}")


Epochs = Annotated[
    int | None, typer.Option("--epochs", help="Of every run, instead of the paper's.", min=1)
]


def replicate(
    folder: Annotated[Path, typer.Argument(help="A paper's: scenarios/papers/<…>.")],
    size: Annotated[
        str, typer.Option("--size", help="small, full, or another that the plan has.")
    ] = "small",
    data: Annotated[
        Path | None, typer.Option("--data", help="Directory of the data sets.", metavar="DIR")
    ] = None,
    algo: options.Algorithms = None,
    seed: options.Seeds = None,
    epochs: Epochs = None,
    fabric: options.FabricName = "sim",
    plan: Annotated[
        bool, typer.Option("--plan", help="Check and list all runs, run none.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", help="Where runs are kept.", metavar="DIR")
    ] = None,
    parallel: options.Parallel = 1,
    quiet: options.Quiet = False,
) -> None:
    """Run what a paper's page is made of, going on where an earlier call was, and write the page.

    With --algo, --seed or --epochs only runs, and no page."""
    from testbed.bench.replicate import Replication, write_page
    from testbed.runner.experiment import parse_seeds
    from testbed.topology import VIRTUAL

    if fabric != VIRTUAL and not plan:
        from testbed.host.user_namespace import become_able

        become_able(fabric)
    say = say_unless(quiet)
    directory = out or Path("measurements") / "replicate" / f"{folder.name}-{size}"
    asked = Replication(
        folder,
        size,
        directory,
        fabric=fabric,
        data=data,
        algorithms=algo or (),
        epochs=epochs,
        seeds=parse_seeds(seed),
    )
    if plan:
        for part, task in asked.tasks():
            typer.echo(f"{part.name} {task.algorithm} {task.seed}")
        return
    results = asked.run(say, parallel)
    if asked.whole:
        for path in write_page(folder, size, results):
            say(f"written: {path}")


app = typer.Typer(
    no_args_is_help=True,
    help="Measure links and compression on this machine, against alternatives.",
)
cli.add(app)
app.command()(agreement)
app.command()(scale)
app.command()(control)
app.command()(exchange)
app.command()(coded)
app.command()(overlap)
app.command()(replicate)

Names = Annotated[
    list[str] | None,
    typer.Option("--suite", help="Only this suite; may be repeated.", metavar="NAME"),
]
LinkQuick = Annotated[
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
    quick: LinkQuick = False,
    out: options.Out = Path(),
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Accuracy and cost of links from 10 Mbit/s to 10 Gbit/s, against tc's htb, tbf and netem."""
    from testbed.bench.results import run
    from testbed.host.user_namespace import become_able

    become_able("netns")
    say = say_unless(quiet)
    outcome = run(suite or (), out, say, repeat=repeat, quick=quick)
    present(outcome.to_json(), outcome.suites, as_json)
    say(f"results: {outcome.path}")
    if any(suite.failure is not None for suite in outcome.suites.values()):
        raise typer.Exit(1)
