"""How many nodes with replayed links this host carries before the certificate stops being valid."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from testbed.bench.figures import MBIT, median, uniform
from testbed.bench.judged import session
from testbed.bench.lab import lab
from testbed.bench.result import Suite, at_least
from testbed.bench.setup import Setup
from testbed.scenario.expand import DIRECTIONS
from testbed.scenario.shape import End

EVERY_S, LOWEST, HIGHEST = 0.1, 15 * MBIT, 25 * MBIT
FIRST, MOST, LEAST = 4, 128, 5
"""Tried first, tried at most, and what the demonstration needs."""


def run(setup: Setup) -> Suite:
    """The largest number that is valid, found by doubling and then halving the difference."""
    most = 4 if setup.quick else MOST
    rows: list[dict[str, Any]] = []
    verdicts: list[dict[str, Any]] = []
    found = [
        largest_valid(lambda nodes: _valid(setup, nodes, rows, verdicts), FIRST, most)
        for _ in range(setup.repetitions)
    ]
    largest = median(found)
    cores = os.cpu_count() or 1
    return Suite(
        "Nodes with both directions at 20 Mbit/s, a change every 100 ms",
        rows,
        [at_least("nodes", largest, min(LEAST, most))],
        {
            "repeat": setup.repetitions,
            "nodes": largest,
            "nodes_per_core": None if largest is None else largest / cores,
            "tried_at_most": most,
            "found": found,
            "judged": verdicts,
        },
    )


def largest_valid(valid: Callable[[int], bool], first: int, most: int) -> int:
    """The largest number up to ``most`` that is valid, if what is above an invalid one is invalid.

    Known to an eighth. Pure as far as ``valid`` is.
    """
    good, tried = 0, first
    while valid(tried):
        good = tried
        if good == most:
            return good
        tried = min(most, 2 * tried)
    bad = tried
    while bad - good > max(1, good // 8):
        middle = (good + bad) // 2
        good, bad = (middle, bad) if valid(middle) else (good, middle)
    return good


def _valid(
    setup: Setup, nodes: int, rows: list[dict[str, Any]], verdicts: list[dict[str, Any]]
) -> bool:
    setup.say(f"nodes: {nodes}")
    seconds, names = setup.seconds(10.0, 2.0), [f"node{n}" for n in range(nodes)]
    histories = {
        End(name, way): uniform(LOWEST, HIGHEST, EVERY_S, seconds, seed=2 * n + (way == "up"))
        for n, name in enumerate(names)
        for way in DIRECTIONS
    }
    with lab(names, setup) as made:
        judged = session(made, histories, seconds)
    late = [(link.lateness_ms or {}).get("p99") for link in judged.report.links]
    ratios = [link.ratio for link in judged.report.links if link.ratio is not None]
    rows.append(
        {
            "nodes": nodes,
            "valid": judged.valid,
            "lowest_ratio": min(ratios, default=None),
            "highest_ratio": max(ratios, default=None),
            "late_p99_ms": max((at for at in late if at is not None), default=None),
            "first_reason": judged.alarms[0].measure if judged.alarms else "",
        }
    )
    if judged.verdict is not None:
        verdicts.append({"nodes": nodes, **judged.verdict.to_json()})
    return judged.valid
