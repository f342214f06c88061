"""The same scenario at dilation 1, 2 and 4: its steps, in model time, must take the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from testbed.bench.figures import median, times
from testbed.bench.order import interleaved
from testbed.bench.result import Check, Suite, within
from testbed.bench.setup import Setup
from testbed.bench.sound import Sound, all_sound
from testbed.bench.training import sized, summary, written

DILATIONS = (1, 2, 4)
SLACK = 0.02


def run(setup: Setup) -> Suite:
    """Mean step time at every dilation over that at 1."""
    dilations = (1, 2) if setup.quick else DILATIONS
    found = {dilation: Sound(setup.attempts) for dilation in dilations}
    for repetition, dilation in interleaved(dilations, setup.repetitions):
        setup.say(f"dilation: {dilation}, {repetition + 1} of {setup.repetitions}")
        content = sized(setup, 60, dilation=dilation)
        path = written(setup, f"dilation-{dilation}-{repetition}", content)
        found[dilation].add(partial(summary, setup, path))
    reference = median(run["step_s"] for run in found[1].runs)
    rows = [_row(dilation, sound.runs, reference) for dilation, sound in found.items()]
    return Suite(
        "Dilation: step time in model time over that at dilation 1",
        rows,
        checks(rows, found),
        {
            "repeat": setup.repetitions,
            "steps": content["train"]["stop"]["steps"],
            "discarded": {str(dilation): sound.discarded for dilation, sound in found.items()},
        },
    )


def checks(rows: Sequence[dict[str, Any]], found: Mapping[int, Sound]) -> list[Check]:
    """The ratios, and whether runs could be made use of. Pure."""
    ratios = [
        within(f"dilation {row['dilation']}", row["ratio"], 1 - SLACK, 1 + SLACK)
        for row in rows
        if row["dilation"] != 1
    ]
    return ratios + [all_sound(f"dilation {dilation}", sound) for dilation, sound in found.items()]


def _row(dilation: int, runs: list[dict[str, Any]], reference: float | None) -> dict[str, Any]:
    step_s = median(run["step_s"] for run in runs)
    return {
        "dilation": dilation,
        "step_s": step_s,
        "ratio": times(step_s, reference),
        "step/expected": median(times(run["step_s"], run["expected_step_s"]) for run in runs),
        "verdicts": " ".join(sorted({run["verdict"] for run in runs})),
    }
