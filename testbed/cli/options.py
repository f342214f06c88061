"""Flags that mean the same on every verb."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

Scenario = Annotated[Path, typer.Argument(help="Scenario file (YAML).", show_default=False)]
FabricName = Annotated[
    str, typer.Option("--fabric", help="Where nodes run: docker, netns, sim.", metavar="NAME")
]
Algorithms = Annotated[
    list[str] | None,
    typer.Option(
        "--algo", help="Run this algorithm instead of the file's; may be repeated.", metavar="NAME"
    ),
]
Seeds = Annotated[
    str | None,
    typer.Option("--seed", help="Seeds instead of the file's: 3, 1-5 or 1,4.", metavar="SEEDS"),
]
ForExec = Annotated[
    bool,
    typer.Option(
        "--exec", help="SCENARIO is for `testbed exec`: algorithms and training do not matter."
    ),
]
Out = Annotated[Path, typer.Option("--out", help="Where runs/ and comparisons/ go.", metavar="DIR")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]
Keep = Annotated[bool, typer.Option("--keep", help="Leave a failed run standing for inspection.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress on standard error.")]
NoFigures = Annotated[
    bool,
    typer.Option("--no-figures", help="Draw nothing; `testbed report` can do so at any time."),
]
Parallel = Annotated[
    int,
    typer.Option("--parallel", help="Runs at a time (--fabric sim only).", min=1, metavar="N"),
]
Guest = Annotated[
    bool,
    typer.Option("--guest", help="In a kernel of its own, which has netem (docs/guest.md)."),
]
TraceFormat = Annotated[
    str | None,
    typer.Option("--format", help="Its format, if it is not told rightly.", metavar="NAME"),
]
TraceColumn = Annotated[
    str | None,
    typer.Option("--column", help="The column of the rate: NAME or NAME:UNIT.", metavar="NAME"),
]
Seconds = Annotated[
    float, typer.Option("--seconds", help="How long.", min=1.0, max=86_400.0, metavar="N")
]


def table_width() -> int | None:
    """Off a terminal, tables are as wide as they need: nothing is cut off in a file or a pipe."""
    return None if sys.stdout.isatty() else 160
