"""``testbed doctor``: what this machine has, what it lacks, and what to do about it."""

from __future__ import annotations

import json
import logging
import os
from typing import TYPE_CHECKING, Annotated

import typer

from testbed.cli import options
from testbed.cli.guest import look

if TYPE_CHECKING:
    from testbed.setup.check import Result

Fix = Annotated[bool, typer.Option("--fix", help="Install, start and build what can be.")]


def doctor(fix: Fix = False, as_json: options.Json = False, guest: options.Guest = False) -> None:
    """Check everything a run needs. Exit code 3 when something required is missing."""
    if guest:
        look("doctor", *(["--json"] if as_json else []), fix=fix)
    from testbed.guest.order import INSIDE
    from testbed.setup.check import judge, mended
    from testbed.setup.checks import CHECKS
    from testbed.setup.network_checks import NETWORK

    if fix:
        logging.getLogger("testbed.setup").setLevel(logging.INFO)
    checks = NETWORK if INSIDE in os.environ else CHECKS
    results = [(mended if fix else judge)(check) for check in checks]
    if as_json:
        print(json.dumps({"checks": [result.to_json() for result in results]}, indent=2))
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
