"""``testbed bench exchange``: rounds of gradients through each exchange, against other libraries and the bare link."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from testbed.cli import options
from testbed.cli.bench_compress import present, say_unless

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
Repeat = Annotated[
    int, typer.Option("--repeat", help="How often everything is measured.", min=1, max=100)
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
    quick: Annotated[
        bool, typer.Option("--quick", help="Once and short: only to see that it works.")
    ] = False,
    out: options.Out = Path(),
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Rounds per second of every exchange, against gloo, torch RPC and iperf3 on the same links."""
    from analysis.benches import draw_exchange
    from testbed.bench.exchange.cell import BYTES, LINKS, NODES, Link, check_bytes
    from testbed.bench.exchange.run import Plan, run
    from testbed.bench.exchange.table import EXCHANGES, entry
    from testbed.fabric.rootless import become_able

    names = [entry(name).name for name in exchange or EXCHANGES]
    links = [Link.parse(text) for text in link or LINKS]
    sizes = check_bytes(size or list(BYTES))
    become_able("netns")
    say = say_unless(quiet)
    plan = Plan(names, links, nodes or NODES, sizes, longest, repeat, quick)
    directory, found = run(plan, out, say)
    measured = [row for row in found.rows if row["rounds_per_s"] is not None]
    if measured:
        draw_exchange(directory, measured)
    present("exchange", found.to_json(), found.suite(), as_json)
    say(f"results{' and figure' if measured else ''}: {directory}")
    if any(row["failures"] for row in found.rows):
        raise typer.Exit(1)
