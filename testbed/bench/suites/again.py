"""The same algorithm twice, taking turns: two names for one thing, so all difference is the testbed's."""

from __future__ import annotations

from statistics import fmean, stdev
from typing import Any

from testbed.bench.order import interleaved
from testbed.bench.result import Suite, within
from testbed.bench.setup import Setup
from testbed.bench.training import run_all, scenario, steps, written
from testbed.session.experiment import prepare

NAMES = ("A", "A again")
SLACK = 0.01


def run(setup: Setup) -> Suite:
    """The relative difference of the mean step times."""
    count = 10 if setup.quick else 80
    experiment = prepare(written(setup, "again", scenario(train=steps(count))))
    turns = [name for _, name in interleaved(NAMES, setup.repetitions)]
    setup.say(f"aa: {len(turns)} runs")
    algorithm, seed = experiment.algorithms[0], experiment.seeds[0]
    done = run_all(setup, experiment, [(algorithm, seed)] * len(turns))
    found = {
        name: [s for s, turn in zip(done, turns, strict=True) if turn == name] for name in NAMES
    }
    rows = [_row(name, runs) for name, runs in found.items()]
    first, second = (row["step_s"] for row in rows)
    return Suite(
        "A/A: difference of the mean step times of one algorithm and itself",
        rows,
        [within("relative difference", second / first - 1, -SLACK, SLACK)],
        {"repeat": setup.repetitions, "steps": count},
    )


def _row(name: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    step_s = [float(run["step_s"]) for run in runs]
    return {
        "name": name,
        "step_s": fmean(step_s),
        "deviation_s": stdev(step_s) if len(step_s) > 1 else None,
        "verdicts": " ".join(sorted({run["verdict"] for run in runs})),
    }
