"""Links of a fixed rate, 10 Mbit/s to 10 Gbit/s: what they deliver of it, and what that costs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from testbed.bench import alternatives
from testbed.bench.alternatives import Alternative, Unshaped
from testbed.bench.figures import MBIT, median, times
from testbed.bench.lab import OURS, PLAIN, Lab, lab
from testbed.bench.order import interleaved
from testbed.bench.result import Check, Suite, within
from testbed.bench.setup import Setup
from testbed.bench.trial import Measured, measure

RATES_MBIT = (10, 50, 100, 500, 1_000, 2_000, 5_000, 10_000)
QUICK_MBIT = (10, 500)
JUDGED_TO_MBIT = 5_000
LOW, HIGH = 0.995, 1.005


def run(setup: Setup) -> Suite:
    """Every alternative at every rate, and the bare cable once per repetition."""
    rates = QUICK_MBIT if setup.quick else RATES_MBIT
    with lab([OURS, PLAIN], setup) as made:
        kinds = made.agent.capabilities().kinds
        others = alternatives.shapers(kinds)
        found = {
            rate: _repeated(made, others, rate * MBIT, setup, f"{rate} Mbit/s") for rate in rates
        }
        bare = _repeated(made, [Unshaped()], max(rates) * MBIT, setup, "unshaped")["unshaped"]
    rows = [*_rows(found, bare), _row("", "unshaped", bare, None)]
    return Suite(
        f"Fixed rates: delivered/asked and cost, {LOW:g} to {HIGH:g} up to {JUDGED_TO_MBIT} Mbit/s",
        rows,
        list(_checks(rows)),
        {"repeat": setup.repetitions, "seconds": _seconds(setup), "flow": "one TCP flow, cubic"},
        alternatives.absent(kinds),
    )


def _seconds(setup: Setup) -> float:
    return setup.seconds(5.0, 1.0)


def _repeated(
    made: Lab, others: list[Alternative], rate_bits: int, setup: Setup, label: str
) -> dict[str, list[Measured]]:
    found: dict[str, list[Measured]] = {other.name: [] for other in others}
    for repetition, other in interleaved(others, setup.repetitions):
        setup.say(f"static: {label}, {other.name}, {repetition + 1} of {setup.repetitions}")
        found[other.name].append(measure(made, other, [(0.0, rate_bits)], _seconds(setup)))
    return found


def _rows(
    found: dict[int, dict[str, list[Measured]]], bare: list[Measured]
) -> Iterable[dict[str, Any]]:
    cost = median(one.cpu_per_gb for one in bare)
    for rate, by_name in found.items():
        for name, measured in by_name.items():
            yield _row(rate, name, measured, cost)


def _row(
    rate_mbit: int | str, name: str, measured: list[Measured], bare_cost: float | None
) -> dict[str, Any]:
    """``delivered/asked`` at the link's counter; ``payload/asked`` the same by what the receiver got."""
    asked = float(measured[0].history[0][1])
    shaped = name != Unshaped.name
    wire = median(one.wire_bits for one in measured)
    cost = median(one.cpu_per_gb for one in measured)
    return {
        "rate_mbit": rate_mbit,
        "alternative": name,
        "delivered/asked": median(one.ratio for one in measured),
        "payload/asked": times(wire, asked) if shaped else None,
        "gbit_s": None if wire is None else wire / 1e9,
        "cpu_s_per_gb": cost,
        "cost/unshaped": times(cost, bare_cost) if shaped else None,
        "gso_max_segs": measured[0].says.get("gso_max_segs"),
    }


def _checks(rows: Iterable[dict[str, Any]]) -> Iterable[Check]:
    for row in rows:
        if row["alternative"] == "narrows" and row["rate_mbit"] <= JUDGED_TO_MBIT:
            yield within(f"{row['rate_mbit']} Mbit/s", row["delivered/asked"], LOW, HIGH)
