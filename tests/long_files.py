"""Files of tests that take long, most of them about a minute each; and how long a test may take.

Workers that share a lane begin with the files: begun last, one of them would hold up the end alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import pytest
from verdict_rig import BESIDE

BESIDE_TIMES = 3
"""Limits of time are for what hangs: beside other tests, which may even go first, everything takes several times as long."""


def limit_s(seconds: float) -> float:
    """Return a limit of so many seconds on a machine that has nothing else to do, as it is here."""
    return seconds * (BESIDE_TIMES if os.environ.get(BESIDE) else 1)


def lengthen(items: Iterable[pytest.Item], usual_s: float) -> None:
    """Give each test its limit as it is here. ``usual_s``: of those that have none of their own."""
    for item in items:
        own = item.get_closest_marker("timeout")
        given_s = usual_s if own is None else own.args[0]
        item.add_marker(pytest.mark.timeout(limit_s(given_s)), append=False)


LONG = frozenset(
    f"test_{name}.py"
    for name in (
        "run_failures",
        "isolation",
        "exchange_failures",
        "hostile_list",
        "killed_anywhere",
        "bench_link_quick",
        "wheel_on_links",
    )
)
