"""A square wave between 20 and 100 Mbit/s, 10 and 100 changes a second: what is delivered of it."""

from __future__ import annotations

from typing import Any

from testbed.bench.alternatives import Alternative, Ours
from testbed.bench.figures import MBIT, bin_errors, mean, median, square
from testbed.bench.lab import OURS, PLAIN, lab
from testbed.bench.order import interleaved
from testbed.bench.result import Suite, within
from testbed.bench.setup import Setup
from testbed.bench.trial import Measured, measure
from testbed.bench.with_tc import TcHtb, TcTbf

LOW, HIGH = 20 * MBIT, 100 * MBIT
LIMITS = {10: (0.99, 1.01), 100: (0.97, 1.03)}
"""By changes a second."""


def run(setup: Setup) -> Suite:
    """Ours against HTB and tbf stepped by ``tc``."""
    seconds = setup.seconds(10.0, 2.0)
    others: list[Alternative] = [Ours(), TcHtb(), TcTbf()]
    found: dict[tuple[int, str], list[Measured]] = {}
    with lab([OURS, PLAIN], setup) as made:
        for changes in LIMITS:
            history = square(LOW, HIGH, changes, seconds)
            for repetition, other in interleaved(others, setup.repetitions):
                setup.say(f"swing: {changes}/s, {other.name}, {repetition + 1}")
                measured = measure(made, other, history, seconds)
                found.setdefault((changes, other.name), []).append(measured)
    rows = [_row(changes, name, measured) for (changes, name), measured in found.items()]
    ours = {row["changes_per_s"]: row for row in rows if row["alternative"] == "narrows"}
    return Suite(
        "Square wave 20-100 Mbit/s: delivered/asked",
        rows,
        [within(f"{n} changes/s", ours[n]["delivered/asked"], *LIMITS[n]) for n in LIMITS],
        {"repeat": setup.repetitions, "seconds": seconds},
    )


def _row(changes: int, name: str, measured: list[Measured]) -> dict[str, Any]:
    ratios = [one.ratio for one in measured if one.ratio is not None]
    seconds = [
        mean(bin_errors(one.history, one.marks, [float(n) for n in range(int(one.seconds) + 1)]))
        for one in measured
    ]
    return {
        "changes_per_s": changes,
        "alternative": name,
        "delivered/asked": median(ratios),
        "lowest": min(ratios),
        "highest": max(ratios),
        "second_mean": median(seconds),
    }
