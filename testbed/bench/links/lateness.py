"""Suites about lateness: of changes on an idle and on a busy host, against links changed by
pyroute2's own calls, and how many nodes this host carries with a valid certificate."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

from testbed.bench.links.alternatives import IPRouteHtb, LinkMethod, Ours, TcHtb
from testbed.bench.links.certificate import session
from testbed.bench.links.lab import OURS, PLAIN, Lab, lab
from testbed.bench.links.rates import Witness, lateness_s, measure
from testbed.bench.results import (
    MBIT,
    ResultCheck,
    Setup,
    Suite,
    at_least,
    at_most,
    median,
    percentile,
    square,
    uniform,
)
from testbed.scenario.expand import DIRECTIONS
from testbed.scenario.link_state import LinkDirection

LOOPS = {0: 0.5, 4: 1.0}
"""Busy processes, and how late the 99th percentile may be, ms."""
CHANGES_PER_S, QUICK_CHANGES_PER_S = (10, 100), (100,)
LOW, HIGH = 20 * MBIT, 100 * MBIT
Late = dict[str, float | None]


def run(setup: Setup) -> Suite:
    """Ours against changes made by ``tc`` and by pyroute2's ``IPRoute.tc``; the later of the
    kernel's notices and the agent's own word."""
    methods: list[LinkMethod] = [Ours(), TcHtb(), IPRouteHtb()]
    seconds = setup.seconds(10.0, 1.0)
    cases = product(LOOPS, QUICK_CHANGES_PER_S if setup.quick else CHANGES_PER_S)
    rows = []
    with lab([OURS, PLAIN], setup) as links:
        for loops, changes in cases:
            title = f"lateness: {loops} loops, {changes}/s, "
            by_method = setup.in_turns(
                title, methods, partial(_late, links, changes, loops, seconds)
            )
            rows += [_row(loops, changes, method.name, late) for method, late in by_method.items()]
    ours = [row for row in rows if row["alternative"] == "narrows"]
    return Suite(
        "Lateness of changes, ms",
        rows,
        [check for row in ours for check in checks(row)],
        {"repeat": setup.repetitions, "seconds": seconds},
    )


def checks(row: dict[str, Any]) -> list[ResultCheck]:
    """How late changes were, and whether the kernel announced every one of them. Pure."""
    which = f"{row['loops']} loops, {row['changes_per_s']}/s"
    return [
        at_most(f"p99, {which}", row["p99_ms"], LOOPS[row["loops"]]),
        at_most(f"changes never announced, {which}", row["not_seen"], 0),
    ]


def _late(links: Lab, changes: int, loops: int, seconds: float, method: LinkMethod, _: int) -> Late:
    history = square(LOW, HIGH, changes, seconds)
    nic = links.places[method.node].nic
    with Witness(links.netns(method.node), nic.index, of_class=True) as witness:
        measured = measure(links, method, history, seconds, loops=loops)
    notices = [(at - measured.t0_ns) / 1e9 for at in witness.times_ns]
    late, missing = lateness_s([at for at, _ in history[1:]], notices)
    own = measured.says.get("lateness_ms") or {}
    return {
        **{name: _ms(percentile(late, share)) for name, share in _SHARES.items()},
        "own_p99": own.get("p99"),
        "own_max": own.get("max"),
        "missing": float(missing),
    }


_SHARES = {"p50": 0.5, "p99": 0.99, "max": 1.0}


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


def _row(loops: int, changes: int, name: str, late: list[Late]) -> dict[str, Any]:
    """``p99_ms`` is judged: the later of what the kernel announced and what the agent says."""
    announced, own = (median(run[key] for run in late) for key in ("p99", "own_p99"))
    worst = None if announced is None else max(announced, own or 0.0)
    return {
        "loops": loops,
        "changes_per_s": changes,
        "alternative": name,
        "p50_ms": median(run["p50"] for run in late),
        "p99_ms": worst,
        "max_ms": max((run["max"] for run in late if run["max"] is not None), default=None),
        "own_p99_ms": own,
        "not_seen": sum(int(run["missing"] or 0) for run in late),
    }


EVERY_S, LOWEST, HIGHEST = 0.1, 15 * MBIT, 25 * MBIT
FIRST, MOST, LEAST = 4, 128, 5
"""Tried first, tried at most, and what the demonstration needs."""


def run_nodes(setup: Setup) -> Suite:
    """The largest number that is valid, found by doubling and then halving the difference."""
    most = 4 if setup.quick else MOST
    rows: list[dict[str, Any]] = []
    verdicts: list[dict[str, Any]] = []
    counts = [
        largest_valid(lambda nodes: _valid(setup, nodes, rows, verdicts), FIRST, most)
        for _ in range(setup.repetitions)
    ]
    largest = median(counts)
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
            "found": counts,
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
        LinkDirection(name, direction): uniform(
            LOWEST, HIGHEST, EVERY_S, seconds, seed=2 * n + (direction == "up")
        )
        for n, name in enumerate(names)
        for direction in DIRECTIONS
    }
    with lab(names, setup) as links:
        judged = session(links, histories, seconds)
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
