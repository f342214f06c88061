"""Rates of a radio link, with outages: when each packet leaves, against an exact queue."""

from __future__ import annotations

import time
from typing import Any

from testbed.bench.alternatives import Alternative, Ours
from testbed.bench.departures import Departures, errors_s, filled
from testbed.bench.figures import Step, median, percentile, radio
from testbed.bench.lab import OURS, PLAIN, Lab, lab
from testbed.bench.order import interleaved
from testbed.bench.result import Suite, at_most
from testbed.bench.setup import Setup
from testbed.bench.with_tc import TcHtb, TcTbf
from testbed.scenario.shape import FRAME_BYTES

LEVELS = ((0, 0.12, 0.5, 1, 2, 4), (0, 1, 4, 10, 20), (0, 0.5, 5, 20, 35))
"""Mbit/s."""
MEDIAN_MS = 20.0
_LEAD_S = 1.0


def run(setup: Setup) -> Suite:
    """Ours against what is stepped by ``tc``, which is given 1 kbit/s for an outage."""
    seconds = setup.seconds(30.0, 5.0)
    others: list[Alternative] = [Ours(), TcHtb(), TcHtb("tc-htb-1ms", 1e-3), TcTbf(FRAME_BYTES)]
    found: dict[tuple[float, str], list[dict[str, float | None]]] = {}
    with lab([OURS, PLAIN], setup) as made:
        for levels in LEVELS:
            for repetition, other in interleaved(others, setup.repetitions):
                setup.say(f"departures: up to {levels[-1]} Mbit/s, {other.name}, {repetition + 1}")
                history = radio(levels, seconds, seed=repetition + 1)
                seen = _through(made, other, history, seconds)
                found.setdefault((levels[-1], other.name), []).append(seen)
    rows = [_row(highest, name, seen) for (highest, name), seen in found.items()]
    ours = [row for row in rows if row["alternative"] == "narrows"]
    return Suite(
        "Rates of a radio link, 100 ms steps with outages: departure of each packet against an exact queue",
        rows,
        [
            at_most(f"median up to {row['highest_mbit']} Mbit/s, ms", row["median_ms"], MEDIAN_MS)
            for row in ours
        ],
        {"repeat": setup.repetitions, "seconds": seconds, "levels_mbit": LEVELS},
    )


def _through(
    made: Lab, other: Alternative, history: list[Step], seconds: float
) -> dict[str, float | None]:
    other.install(made, history)
    try:
        with filled(made, other.node, history):
            seen = Departures(made, other.node)
            try:
                t0_ns = time.monotonic_ns() + int(_LEAD_S * 1e9)
                other.start(t0_ns)
                time.sleep(max(0.0, (t0_ns - time.monotonic_ns()) / 1e9 + seconds))
                other.stop()
            finally:
                seen.end()
    finally:
        other.remove()
    left = [each for each in seen.after(t0_ns) if each[0] <= seconds]
    late = errors_s(history, left, seconds)
    size = [abs(each) * 1e3 for each in late]
    return {
        "packets": len(left),
        "missing": len(late) - len(left),
        "median_ms": median(size),
        "p99_ms": percentile(size, 0.99),
        "last_ms": late[min(len(left), len(late) - 1)] * 1e3 if late else None,
    }


def _row(highest: float, name: str, seen: list[dict[str, float | None]]) -> dict[str, Any]:
    """Medians over the repetitions; of the error of the last packet that left, or the first that did not, its size. ``missing``: an exact queue had sent them by the end."""
    return {
        "highest_mbit": highest,
        "alternative": name,
        "packets": median(one["packets"] for one in seen),
        "missing": median(one["missing"] for one in seen),
        "median_ms": median(one["median_ms"] for one in seen),
        "p99_ms": median(one["p99_ms"] for one in seen),
        "last_ms": median(None if one["last_ms"] is None else abs(one["last_ms"]) for one in seen),
    }
