"""``testbed bench``: one function per verb; what is measured is in the modules beside this one.

Data go to standard output, progress to standard error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from testbed.cli import options
from testbed.errors import InputError

if TYPE_CHECKING:
    from testbed.bench.results import BenchOutcome, Suite


def _several(flag: str, text: str, **limits: Any) -> Any:
    """An option that may be repeated."""
    return typer.Option(flag, help=f"{text}; may be repeated.", **limits)


def _steps(fewest: int, text: str = "Of every run.", most: int = 10_000) -> Any:
    return typer.Option("--steps", help=text, min=fewest, max=most)


Workers = Annotated[list[int] | None, _several("--workers", "So many", min=1, max=64)]
Rates = Annotated[list[int] | None, _several("--rate", "Mbit/s", min=1, max=10_000, metavar="RATE")]
Conditions = Annotated[
    list[str] | None, typer.Option("--condition", help="May be repeated.", metavar="NAME")
]
Repeat = Annotated[
    int, typer.Option("--repeat", help="How often everything is measured.", min=1, max=1000)
]
_QUICK = "Once, short and with less of everything: only to see that it works."
Quick = Annotated[bool, typer.Option("--quick", help=_QUICK)]
Suites = Annotated[list[str] | None, _several("--suite", "Only this suite", metavar="NAME")]
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
    steps: Annotated[int, _steps(3)] = 20,
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
        _become_able("netns")
    say = options.say_unless(quiet)
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


def _become_able(fabric: str) -> None:
    from testbed.host.user_namespace import become_able

    become_able(fabric)


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
Most = Annotated[int, typer.Option("--most", help="Steps to reach the accuracy in.", min=5)]
Schemes = Annotated[list[str] | None, _several("--algo", "Only these schemes", metavar="NAME")]
LearningRates = Annotated[
    list[float] | None, _several("--rate", "Only these learning rates", min=1e-9)
]


def coded(
    scenario: Annotated[Path, typer.Argument(help="A scenario with peers and one server.")],
    accuracy: Accuracy = 0.82,
    share: Share = 0.05,
    steps: Annotated[int, _steps(2, "Of every timed run.")] = 30,
    most: Most = 400,
    algo: Schemes = None,
    rate: LearningRates = None,
    fabric: options.FabricName = "netns",
    parallel: options.Parallel = 1,
    out: options.Out = Path(),
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Time to an accuracy of coded, replicated and plain synchronous SGD among peers, and of
    ASGD."""
    from testbed.bench.coded import BASE, SCHEMES, CodedBench, CodedPlan

    chosen = tuple(dict.fromkeys((BASE, *(algo or SCHEMES))))
    requested = CodedPlan(accuracy, share, schemes=chosen, steps=steps, most=most)
    if rate:
        requested = replace(requested, rates=tuple(rate))
    _become_able(fabric)
    say = options.say_unless(quiet)
    bench = CodedBench(scenario, requested, out, say, parallel)
    present(bench.known, {"coded": bench.run(fabric)}, as_json)
    say(f"results: {bench.directory}")


Waveforms = Annotated[list[str] | None, _several("--waveform", "Only this one", metavar="NAME")]
Controllers = Annotated[
    list[str] | None, _several("--algo", "Only this controller", metavar="NAME")
]
Target = Annotated[
    float | None,
    typer.Option("--target", help="Accuracy that times are taken at.", min=0.01, max=1.0),
]
ControlAfresh = Annotated[
    Path | None, typer.Option("--again", help="Judge the runs of an earlier call.", metavar="DIR")
]


def control(
    algo: Controllers = None,
    waveform: Waveforms = None,
    steps: Annotated[int, _steps(20)] = 240,
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
    from testbed.bench.controllers import ALGORITHMS, FIXED, ResponsePlan, known, run
    from testbed.bench.figures import draw_control
    from testbed.bench.waveforms import WAVEFORMS

    _check_known("waveform", waveform, WAVEFORMS)
    chosen = [name for name in algo or known(ALGORITHMS) if name not in FIXED]
    requested = ResponsePlan(chosen, waveform or list(WAVEFORMS), FIXED, steps, seed, parallel)
    say = options.say_unless(quiet)
    directory, result = run(requested, out, say, level=target, again=again)
    draw_control(directory, result.to_json())
    present(result.suite.to_json(), {"control": result.suite}, as_json)
    say(f"results and figures: {directory}")


Exchanges = Annotated[list[str] | None, _several("--exchange", "Only this one", metavar="NAME")]
Nodes = Annotated[list[int] | None, _several("--nodes", "So many with gradients", min=1, max=200)]
Bytes = Annotated[list[int] | None, _several("--bytes", "Of a gradient", min=4)]
Links = Annotated[
    list[str] | None, _several("--link", "Rate of all links, or unshaped", metavar="RATE")
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
    from testbed.bench.exchange import cases
    from testbed.bench.exchange.run import ExchangePlan, run
    from testbed.bench.figures import draw

    names = [cases.entry(name).name for name in exchange or cases.EXCHANGES]
    links = [cases.BenchLink.parse(text) for text in link or cases.LINKS]
    sizes = cases.check_bytes(size or list(cases.BYTES))
    _become_able("netns")
    say = options.say_unless(quiet)
    plan = ExchangePlan(names, links, nodes or cases.NODES, sizes, longest, repeat, quick)
    directory, result = run(plan, out, say)
    measured = [row for row in result.rows if row["rounds_per_s"] is not None]
    if measured:
        draw(directory, "exchange", measured)
    present(result.to_json(), {"exchange": result.suite()}, as_json)
    say(f"results{' and figure' if measured else ''}: {directory}")
    if any(row["failures"] for row in result.rows):
        raise typer.Exit(1)


_LOAD = "Time of all buckets on a link over that of the backward pass"
Loads = Annotated[list[float] | None, _several("--load", _LOAD, min=0.01, max=100.0)]
WorkerCount = Annotated[int, typer.Option("--workers", help="So many.", min=1, max=64)]
Pace = Annotated[
    float, typer.Option("--pace", help="Of a step's computation, ms.", min=1.0, max=60_000.0)
]
Skip = Annotated[int, typer.Option("--skip", help="Steps that are not counted.", min=0)]


def overlap(
    load: Loads = None,
    workers: WorkerCount = 3,
    pace: Pace = 240.0,
    steps: Annotated[int, _steps(2)] = 24,
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
    from testbed.bench.overlap import LOADS, OverlapBench, OverlapPlan

    if quick:
        steps, skip, repeat = 8, 3, 1
    if skip >= steps - 1:
        raise InputError(f"of {steps} steps {skip} and the last are not counted", where="--skip")
    _become_able(fabric)
    plan = OverlapPlan(fabric, load or LOADS, workers, pace / 1e3, steps, skip, repeat)
    say = options.say_unless(quiet)
    bench = OverlapBench(plan, out, say)
    suite = bench.run()
    present(bench.known, {"overlap": suite}, as_json)
    say(f"results: {bench.directory}")


ManyWorkers = Annotated[list[int] | None, _several("--workers", "So many", min=1, max=10_000)]
Servers = Annotated[list[int] | None, _several("--servers", "So many", min=1, max=1_000)]


def scale(
    workers: ManyWorkers = None,
    servers: Servers = None,
    algo: Annotated[str, typer.Option("--algo", help="Of a fixed density.")] = "none",
    steps: Annotated[int, _steps(2)] = 5,
    out: options.Out = Path(),
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Step time, memory and time to simulate it, by the number of workers and servers."""
    from testbed.bench.figures import draw
    from testbed.bench.sim_scale import SERVERS, WORKERS, ScaleSize, run

    say = options.say_unless(quiet)
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
        _become_able(fabric)
    say = options.say_unless(quiet)
    directory = out or Path("measurements") / "replicate" / f"{folder.name}-{size}"
    replication = Replication(
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
        for part, task in replication.tasks():
            typer.echo(f"{part.name} {task.algorithm} {task.seed}")
        return
    results = replication.run(say, parallel)
    if replication.whole:
        for path in write_page(folder, size, results):
            say(f"written: {path}")


Elements = Annotated[
    int, typer.Option("--elements", help="Length of the vectors.", min=2, max=1_000_000_000)
]
Density = Annotated[float, typer.Option("--density", help="Share of elements to send.")]
Densities = Annotated[list[float] | None, _several("--density", "Share of elements to send")]
Threads = Annotated[
    int, typer.Option("--threads", help="Threads to compute with.", min=1, max=1024)
]
_SOURCE = (
    "laplace: drawn from that distribution. recorded: gradients of a training in this process."
)
Source = Annotated[str, typer.Option("--source", help=_SOURCE, metavar="NAME")]


def select(
    elements: Elements = 25_000_000,
    density: Density = 0.01,
    threads: Threads = 1,
    source: Source = "laplace",
    repeat: Repeat = 5,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Time of every selector against torch.topk, np.partition and reading the memory once."""
    from testbed.bench.compress.select import run

    result = run(elements, density, threads, source, repeat, options.say_unless(quiet))
    present(result.to_json(), {"select": result.suite()}, as_json)


def threshold(
    steps: Annotated[int, _steps(1, "Steps that count, of each training.", 100_000)] = 150,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Count and passes of the Laplacian threshold in three real trainings, at three densities."""
    from testbed.bench.compress.select import measure_thresholds as run

    suite = run(options.say_unless(quiet), steps)
    present(suite.to_json(), {"threshold": suite}, as_json)


def wire(
    elements: Elements = 25_000_000,
    density: Densities = None,
    threads: Threads = 1,
    repeat: Repeat = 5,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Time and size of every index coding against plain numpy, plain PyTorch and the entropy."""
    from testbed.bench.compress.payload import DENSITIES, run

    result = run(elements, density or DENSITIES, threads, repeat, options.say_unless(quiet))
    present(result.to_json(), {"wire": result.suite()}, as_json)


def quantize(
    elements: Elements = 25_000_000,
    threads: Threads = 1,
    source: Source = "laplace",
    repeat: Repeat = 5,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Time and size of every value coding against PyTorch alone and reading the memory once."""
    from testbed.bench.compress.payload import measure_value_codings as run

    result = run(elements, threads, source, repeat, options.say_unless(quiet))
    present(result.to_json(), {"quantize": result.suite()}, as_json)


Lengths = Annotated[list[int] | None, _several("--elements", "Length of vectors", min=1000)]
Device = Annotated[str, typer.Option("--device", help="What to measure: cuda, cpu.")]


def gpu(
    suite: Suites = None,
    elements: Lengths = None,
    density: Densities = None,
    device: Device = "cuda",
    repeat: Repeat = 11,
    quick: Quick = False,
    out: options.Out = Path(),
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Selection on an accelerator in readings of its memory, and a worker's steps without links."""
    from testbed.bench.compress.device import DeviceBench

    bench = DeviceBench(device, elements or (), density or (), quick=quick)
    say = options.say_unless(quiet)
    _end(bench.run(out, say, repeat, suite or ()), as_json, say)


def link(
    suite: Suites = None,
    repeat: Repeat = 5,
    quick: Quick = False,
    out: options.Out = Path(),
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Accuracy and cost of links from 10 Mbit/s to 10 Gbit/s, against tc's htb, tbf and netem."""
    from testbed.bench.results import run

    _become_able("netns")
    say = options.say_unless(quiet)
    _end(run(suite or (), out, say, repeat=repeat, quick=quick), as_json, say)


def _end(outcome: BenchOutcome, as_json: bool, say: Callable[[str], None]) -> None:
    """Show suites, and exit with 1 where one failed."""
    present(outcome.to_json(), outcome.suites, as_json)
    say(f"results: {outcome.path}")
    if any(suite.failure is not None for suite in outcome.suites.values()):
        raise typer.Exit(1)


def present(data: dict[str, Any], suites: Mapping[str, Suite], as_json: bool) -> None:
    """``data`` as JSON, or the suites as tables, by name."""
    if as_json:
        json.dump(data, sys.stdout, indent=2, allow_nan=False)
        print()
        return
    from rich.console import Console

    from testbed.bench.results import show

    console = Console(width=options.table_width())
    for name, suite in suites.items():
        show(console, name, suite)


app = typer.Typer(
    no_args_is_help=True,
    help="Measure links and compression on this machine, against alternatives.",
)
for verb in (
    *(select, threshold, wire, quantize, gpu),
    *(agreement, scale, control, exchange, coded, overlap, replicate, link),
):
    app.command()(verb)
