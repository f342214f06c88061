"""``testbed clean``: remove what killed runs left behind, exactly that and nothing else."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated

import typer

from testbed.cli import options
from testbed.errors import MachineError
from testbed.fabric.journal import shown

CLEANERS = ("testbed.fabric.netns_clean", "testbed.fabric.docker.clean")
"""Modules whose ``register`` makes known how a journal's entries are removed."""

All = Annotated[
    bool, typer.Option("--all", help="Also what runs own that are still going, or were kept.")
]


def clean(as_json: options.Json = False, everything: All = False) -> None:
    """Remove what abandoned runs left: those whose own process is dead."""
    from testbed.fabric.journal import journals
    from testbed.fabric.netns_sweep import sweep

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
    _report(removed, [journal.run for journal in journals() if journal.kept], as_json)
    for failure in failures[:-1]:
        print(f"testbed: {failure}", file=sys.stderr)
    if failures:
        raise failures[-1]


def _report(removed: dict[str, list[str]], kept: list[str], as_json: bool) -> None:
    if as_json:
        runs = [{"run": run, "removed": things} for run, things in removed.items()]
        print(json.dumps({"runs": runs}, indent=2))
        return
    for run, things in removed.items():
        print(
            f"run {shown(run)}: removed {shown(', '.join(things)) or 'nothing, it was gone already'}"
        )
    if not removed:
        print("nothing to clean")
    if kept:
        print(f"kept, until `testbed clean --all`: {shown(', '.join(kept))}", file=sys.stderr)
