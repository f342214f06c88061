"""The same algorithm twice, taking turns: two names for one thing, so all difference is the testbed's."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import stdev
from typing import Any

from testbed.bench.figures import mean, times
from testbed.bench.order import interleaved
from testbed.bench.result import Check, Suite, within
from testbed.bench.setup import Setup
from testbed.bench.sound import Sound, all_sound
from testbed.bench.training import run_all, sized, written
from testbed.session.experiment import prepare

NAMES = ("A", "A again")
SLACK = 0.01


def run(setup: Setup) -> Suite:
    """The relative difference of the mean step times."""
    content = sized(setup, 80)
    experiment = prepare(written(setup, "again", content))
    order = [(experiment.algorithms[0], experiment.seeds[0])]
    found = {name: Sound(setup.attempts) for name in NAMES}
    for repetition, name in interleaved(NAMES, setup.repetitions):
        setup.say(f"aa: {name}, {repetition + 1} of {setup.repetitions}")
        found[name].add(lambda: run_all(setup, experiment, order)[0])
    rows = [_row(name, sound.runs) for name, sound in found.items()]
    return Suite(
        "A/A: difference of the mean step times of one algorithm and itself",
        rows,
        checks(rows, found),
        {
            "repeat": setup.repetitions,
            "steps": content["train"]["stop"]["steps"],
            "discarded": {name: sound.discarded for name, sound in found.items()},
        },
    )


def checks(rows: list[dict[str, Any]], found: Mapping[str, Sound]) -> list[Check]:
    """The difference, and whether runs could be made use of. Pure."""
    first, second = (row["step_s"] for row in rows)
    ratio = times(second, first)
    difference = None if ratio is None else ratio - 1
    return [
        within("relative difference", difference, -SLACK, SLACK),
        *(all_sound(name, sound) for name, sound in found.items()),
    ]


def _row(name: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    step_s = [float(run["step_s"]) for run in runs]
    return {
        "name": name,
        "step_s": mean(step_s),
        "deviation_s": stdev(step_s) if len(step_s) > 1 else None,
        "verdicts": " ".join(sorted({run["verdict"] for run in runs})),
    }
