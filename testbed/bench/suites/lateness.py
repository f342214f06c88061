"""How late changes take effect: on an idle host, and with four processes that only compute."""

from __future__ import annotations

from typing import Any

from testbed.bench.alternatives import Alternative, Ours
from testbed.bench.figures import MBIT, median, percentile, square
from testbed.bench.lab import OURS, PLAIN, Lab, lab
from testbed.bench.order import interleaved
from testbed.bench.result import Check, Suite, at_most
from testbed.bench.setup import Setup
from testbed.bench.trial import measure
from testbed.bench.with_pyroute2 import IPRouteHtb
from testbed.bench.with_tc import TcHtb
from testbed.bench.witness import lateness_s, witness

LOOPS = {0: 1.0, 4: 5.0}
"""Busy processes, and how late the 99th percentile may be, ms."""
CHANGES_PER_S, QUICK_CHANGES_PER_S = (10, 100), (100,)
LOW, HIGH = 20 * MBIT, 100 * MBIT
Late = dict[str, float | None]


def run(setup: Setup) -> Suite:
    """Ours against changes made by ``tc`` and by pyroute2's ``IPRoute.tc``; the later of the kernel's notices and the agent's own word."""
    others: list[Alternative] = [Ours(), TcHtb(), IPRouteHtb()]
    found: dict[tuple[int, int, str], list[Late]] = {}
    with lab([OURS, PLAIN], setup) as made:
        for loops in LOOPS:
            for changes in QUICK_CHANGES_PER_S if setup.quick else CHANGES_PER_S:
                for repetition, other in interleaved(others, setup.repetitions):
                    setup.say(
                        f"lateness: {loops} loops, {changes}/s, {other.name}, {repetition + 1}"
                    )
                    late = _late(made, other, changes, loops, setup.seconds(10.0, 1.0))
                    found.setdefault((loops, changes, other.name), []).append(late)
    rows = [_row(*key, late) for key, late in found.items()]
    ours = [row for row in rows if row["alternative"] == "narrows"]
    return Suite(
        "Lateness of changes, ms",
        rows,
        [check for row in ours for check in checks(row)],
        {"repeat": setup.repetitions, "seconds": setup.seconds(10.0, 1.0)},
    )


def checks(row: dict[str, Any]) -> list[Check]:
    """How late changes were, and whether the kernel announced every one of them. Pure."""
    which = f"{row['loops']} loops, {row['changes_per_s']}/s"
    return [
        at_most(f"p99, {which}", row["p99_ms"], LOOPS[row["loops"]]),
        at_most(f"changes never announced, {which}", row["not_seen"], 0),
    ]


def _late(made: Lab, other: Alternative, changes: int, loops: int, seconds: float) -> Late:
    history = square(LOW, HIGH, changes, seconds)
    nic = made.places[other.node].nic
    with witness(made.netns(other.node), nic.index, of_class=True) as seen:
        measured = measure(made, other, history, seconds, loops=loops)
    notices = [(at - measured.t0_ns) / 1e9 for at in seen.times_ns]
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
    seen, own = (median(one[key] for one in late) for key in ("p99", "own_p99"))
    worst = None if seen is None else max(seen, own or 0.0)
    return {
        "loops": loops,
        "changes_per_s": changes,
        "alternative": name,
        "p50_ms": median(one["p50"] for one in late),
        "p99_ms": worst,
        "max_ms": max((one["max"] for one in late if one["max"] is not None), default=None),
        "own_p99_ms": own,
        "not_seen": sum(int(one["missing"] or 0) for one in late),
    }
