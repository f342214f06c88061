"""``testbed setup``: install, start and build what runs need; ``testbed doctor``: what this machine
has and lacks, and what to do about it; ``testbed clean``: remove what killed runs left behind,
exactly that and nothing else.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

import typer

from testbed.cli import options
from testbed.cli.options import look
from testbed.errors import MachineError
from testbed.journal import shown

if TYPE_CHECKING:
    from testbed.host.checks import Result


PARTS = ("all", "environment", "engine", "images", "guest", "observe", "stop")
Part = Annotated[
    str,
    typer.Argument(
        help="all, environment, engine, images, guest (the disk of --guest), observe (Prometheus), "
        "or stop: what setup has started.",
        autocompletion=options.beginning(lambda: [*PARTS]),
    ),
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


def setup(part: Part = "all", yes: Yes = False) -> None:
    """Install, start and build PART of what runs need; says before what it changes, and asks."""
    from testbed.host.__main__ import main

    raise typer.Exit(main([part, *(["--yes"] if yes else [])]))


Fix = Annotated[bool, typer.Option("--fix", help="Install, start and build what can be.")]


def doctor(fix: Fix = False, as_json: options.Json = False, guest: options.Guest = False) -> None:
    """Check everything a run needs. Exit code 3 when something required is missing."""
    if guest:
        look("doctor", *(["--json"] if as_json else []), fix=fix)
    from testbed.host.checks import CHECKS, NETWORK, judge, mended
    from testbed.host.packages import announce
    from testbed.host.uml.inside import INSIDE

    if fix:
        announce()
    checks = NETWORK if INSIDE in os.environ else CHECKS
    results = [(mended if fix else judge)(check) for check in checks]
    if as_json:
        options.print_json({"checks": [result.to_json() for result in results]})
    else:
        _table(results)
    if any(result.failed for result in results):
        raise typer.Exit(3)


def _table(results: list[Result]) -> None:
    for result in results:
        shown = result.to_json()
        mark = "ok  " if result.finding.ok else ("FAIL" if result.failed else "note")
        print(f"{mark}  {result.check.name:22}  {shown['detail']}")
        if shown["fix"]:
            print(f"{'':28}→ {shown['fix']}")


CLEANERS = (
    "testbed.fabric.cleanup",
    "testbed.fabric.docker.engine",
    "testbed.fabric.swarm.engine",
)
"""Modules whose ``register`` makes known how a journal's entries are removed."""

All = Annotated[
    bool, typer.Option("--all", help="Also what runs own that are still going, or were kept.")
]


Where = Annotated[
    str | None,
    typer.Option(
        "--fabric",
        help="swarm: also runs of this host in its swarm that have no journal any more.",
        metavar="NAME",
    ),
]


def clean(as_json: options.Json = False, everything: All = False, fabric: Where = None) -> None:
    """Remove what abandoned runs left: those whose own process is dead."""
    from testbed.fabric.cleanup import sweep
    from testbed.journal import journals

    for module in CLEANERS:
        if find_spec(module):
            import_module(module).register()
    removed: dict[str, list[str]] = {}
    failures: list[MachineError] = []
    for journal in journals():
        if everything or (journal.abandoned() and not journal.kept):
            try:
                removed[journal.run] = sweep(journal)
            except MachineError as error:
                failures.append(error)
    if fabric == "swarm":
        removed |= import_module("testbed.fabric.swarm.engine").clean_unlisted()
    _report(removed, [journal.run for journal in journals() if journal.kept], as_json)
    for failure in failures[:-1]:
        print(f"testbed: {failure}", file=sys.stderr)
    if failures:
        raise failures[-1]


def _report(removed: dict[str, list[str]], kept: list[str], as_json: bool) -> None:
    if as_json:
        runs = [{"run": run, "removed": things} for run, things in removed.items()]
        options.print_json({"runs": runs})
        return
    for run, things in removed.items():
        print(
            f"run {shown(run)}: removed "
            f"{shown(', '.join(things)) or 'nothing, it was gone already'}"
        )
    if not removed:
        print("nothing to clean")
    if kept:
        print(f"kept, until `testbed clean --all`: {shown(', '.join(kept))}", file=sys.stderr)
