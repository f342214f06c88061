"""A rate that jumps at random between 50 and 500 Mbit/s every 100 ms: how far each step is off."""

from __future__ import annotations

from typing import Any

from testbed.bench import alternatives
from testbed.bench.figures import MBIT, bin_errors, mean, median, uniform
from testbed.bench.lab import OURS, PLAIN, lab
from testbed.bench.order import interleaved
from testbed.bench.result import Suite, at_most
from testbed.bench.setup import Setup
from testbed.bench.trial import Measured, measure

EVERY_S, LOWEST, HIGHEST = 0.1, 50 * MBIT, 500 * MBIT
LOOK_S = 0.01
PER_SECOND, PER_STEP = 0.005, 0.03


def run(setup: Setup) -> Suite:
    """Every alternative, another history in every repetition, the same for all."""
    seconds = setup.seconds(20.0, 2.0)
    with lab([OURS, PLAIN], setup) as made:
        kinds = made.agent.capabilities().kinds
        others = alternatives.shapers(kinds)
        found: dict[str, list[Measured]] = {other.name: [] for other in others}
        for repetition, other in interleaved(others, setup.repetitions):
            setup.say(f"replay: {other.name}, {repetition + 1} of {setup.repetitions}")
            history = uniform(LOWEST, HIGHEST, EVERY_S, seconds, seed=repetition + 1)
            measured = measure(made, other, history, seconds, every_s=LOOK_S)
            found[other.name].append(measured)
    rows = [_row(name, measured) for name, measured in found.items()]
    ours = next(row for row in rows if row["alternative"] == "narrows")
    return Suite(
        "Replay, 100 ms steps, 50-500 Mbit/s: error per second and per step",
        rows,
        [
            at_most("mean error per 1 s", ours["second_mean"], PER_SECOND),
            at_most("mean error per step", ours["step_mean"], PER_STEP),
        ],
        {"repeat": setup.repetitions, "seconds": seconds, "seeds": setup.repetitions},
        alternatives.absent(kinds),
    )


def _row(name: str, measured: list[Measured]) -> dict[str, Any]:
    """Medians over the repetitions; the worst of all of them."""
    seconds = [_errors(one, 1.0) for one in measured]
    steps = [_errors(one, EVERY_S) for one in measured]
    return {
        "alternative": name,
        "delivered/asked": median(one.ratio for one in measured),
        "second_mean": median(map(mean, seconds)),
        "second_worst": max(max(errors) for errors in seconds),
        "step_mean": median(map(mean, steps)),
        "step_median": median(map(median, steps)),
        "step_worst": max(max(errors) for errors in steps),
    }


def _errors(one: Measured, width_s: float) -> list[float]:
    edges = [n * width_s for n in range(round(one.seconds / width_s) + 1)]
    return bin_errors(one.history, one.marks, edges)
