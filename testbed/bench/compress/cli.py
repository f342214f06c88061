"""``testbed bench select``, ``threshold``, …: what compression costs, and how well it hits its
mark.

One function for each, listed in ``COMMANDS``. Data go to standard output, progress to standard
error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from testbed.cli import options

if TYPE_CHECKING:
    from testbed.bench.results import Suite


Elements = Annotated[
    int, typer.Option("--elements", help="Length of the vectors.", min=2, max=1_000_000_000)
]
Density = Annotated[float, typer.Option("--density", help="Share of elements to send.")]
Densities = Annotated[
    list[float] | None,
    typer.Option("--density", help="Share of elements to send; may be repeated."),
]
Threads = Annotated[
    int, typer.Option("--threads", help="Threads to compute with.", min=1, max=1024)
]
Source = Annotated[
    str,
    typer.Option(
        "--source",
        help=(
            "laplace: drawn from that distribution. recorded: gradients of a training in this "
            "process."
        ),
        metavar="NAME",
    ),
]
Repeat = Annotated[
    int, typer.Option("--repeat", help="How often everything is measured.", min=1, max=1000)
]
Steps = Annotated[
    int, typer.Option("--steps", help="Steps that count, of each training.", min=1, max=100_000)
]


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

    result = run(elements, density, threads, source, repeat, say_unless(quiet))
    present(result.to_json(), {"select": result.suite()}, as_json)


def threshold(
    steps: Steps = 150,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Count and passes of the Laplacian threshold in three real trainings, at three densities."""
    from testbed.bench.compress.select import measure_thresholds as run

    suite = run(say_unless(quiet), steps)
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

    result = run(elements, density or DENSITIES, threads, repeat, say_unless(quiet))
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

    result = run(elements, threads, source, repeat, say_unless(quiet))
    present(result.to_json(), {"quantize": result.suite()}, as_json)


COMMANDS: tuple[Callable[..., None], ...] = (select, threshold, wire, quantize)


def add(app: typer.Typer) -> None:
    """Make every one of them a verb of ``app``."""
    for command in COMMANDS:
        app.command()(command)


def say_unless(quiet: bool) -> Callable[[str], None]:
    """Prints progress, or does nothing."""

    def say(text: str) -> None:
        if not quiet:
            print(text, file=sys.stderr, flush=True)

    return say


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
