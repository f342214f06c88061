"""Suites that train: message completion against the service curve, the same scenario at several
dilations, and the same algorithm twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import stdev
from typing import Any

from testbed.algorithm import Algorithm
from testbed.bench.results import (
    ResultCheck,
    Setup,
    Sound,
    Suite,
    all_sound,
    at_least,
    at_most,
    link,
    mean,
    median,
    star,
    times,
    within,
    write_scenario,
)
from testbed.records.run_directory import SUMMARY, read_json
from testbed.runner.experiment import Experiment, prepare
from testbed.runner.run import run as run_experiment
from testbed.traces.generate import random_walk, write_csv

TRACE = "walk.csv"
_FABRIC = "netns"
QUICK_STEPS = 6


def scenario(**changes: Any) -> dict[str, Any]:
    """Four workers on links of 100 Mbit/s, the server's following a trace; ``changes`` replace
    keys."""
    train = {
        "task": "digits",
        "model": "cnn",
        "batch": 32,
        "optimizer": {"name": "sgd", "lr": 0.1},
        "pace": "250 ms",
        "stop": {"steps": 100},
        "evaluate_every": 100,
    }
    events = [{"kind": "trace", "links": ["server"], "file": TRACE, "at_end": "loop"}]
    content = star("bench", 4, train, links={"default": link("100 Mbit/s")}, events=events)
    return {**content, "algorithms": ["none"], **changes}


def sized(setup: Setup, usual: int, **changes: Any) -> dict[str, Any]:
    """``scenario`` with ``usual`` steps; where it need only work, with two workers and few
    steps."""
    count = QUICK_STEPS if setup.quick else usual
    train = {**scenario()["train"], "stop": {"steps": count}, "evaluate_every": count}
    content = scenario(train=train, **changes)
    if setup.quick:
        content["nodes"] = {"server": {"role": "server"}, "worker": {"role": "worker", "count": 2}}
    return content


def written(setup: Setup, name: str, content: Mapping[str, Any]) -> Path:
    """The scenario as a file beside its trace: 60 s between 50 and 100 Mbit/s, a step every 500
    ms."""
    trace = random_walk(low=50, high=100, deviation=10, seconds=60, every_s=0.5, seed=1)
    (setup.directory / TRACE).write_text(write_csv(trace), encoding="utf-8")
    return write_scenario(setup.directory, name, {**content, "name": name})


def summary(setup: Setup, path: Path) -> dict[str, Any]:
    """Run a scenario of one algorithm and one seed; its ``summary.json``.

    Raises NarrowsError for what ended the run before its time.
    """
    return run_all(setup, prepare(path))[0]


def run_all(
    setup: Setup, experiment: Experiment, order: Sequence[tuple[Algorithm, int]] | None = None
) -> list[dict[str, Any]]:
    """The ``summary.json`` of every run in the order of running, for an experiment that is in
    memory already."""
    done = run_experiment(experiment, _FABRIC, setup.directory, quiet=True, order=order)
    return [read_json(Path(entry["dir"]) / SUMMARY) for entry in done.runs]


PLACEMENTS = ("nic", "network")
USED = 1.0
"""Error over its tolerance of 1 % and two packet times."""
JUDGED = 0.5
"""So large a share of the messages has to be judged: a figure for a few says nothing of the
others."""


def run(setup: Setup) -> Suite:
    """Four workers whose traffic goes on and off, 100 Mbit/s, the server's link following a trace.

    Every run counts, invalid ones too: what made them so may be the very figure that is judged.
    """
    content = sized(setup, 200)
    end = content["links"]["default"]["up"]

    def completed(at: str, repetition: int) -> dict[str, Any]:
        links = {"default": {"up": {**end, "at": at}, "down": end}}
        name = f"completion-{at}-{repetition}"
        return summary(setup, written(setup, name, {**content, "links": links}))

    rows = [
        _row(at, runs)
        for at, runs in setup.in_turns("completion: at ", PLACEMENTS, completed).items()
    ]
    return Suite(
        "Message completion in training: error over the tolerance of 1 % and two packet times",
        rows,
        checks(rows),
        {
            "repeat": setup.repetitions,
            "steps": content["train"]["stop"]["steps"],
            "workers": content["nodes"]["worker"]["count"],
        },
    )


def checks(rows: Sequence[dict[str, Any]]) -> list[ResultCheck]:
    """The error, and how much of all it was judged for. Pure."""
    return [
        check
        for row in rows
        for check in (
            at_most(f"p99, at {row['at']}", row["used_p99"], USED),
            at_least(f"share judged, at {row['at']}", times(row["judged"], row["groups"]), JUDGED),
        )
    ]


_COMPLETION = (
    ("used_p99", "used", "p99"),
    ("used_p99_at_least", "used", "p99_at_least"),
    ("used_p50", "used", "p50"),
    ("error_p99", "error", "p99"),
    ("error_p99_ms", "error_ms", "p99"),
)
"""Columns, and where their values are in a summary's measure."""


def _row(at: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    measures = [_completion(run) for run in runs]
    return {
        "at": at,
        **{
            column: median((measure.get(kind) or {}).get(key) for measure in measures)
            for column, kind, key in _COMPLETION
        },
        "judged": sum(int(measure.get("judged") or 0) for measure in measures),
        "groups": sum(int(measure.get("groups") or 0) for measure in measures),
        "verdicts": _verdicts(runs),
    }


def _completion(run: dict[str, Any]) -> dict[str, Any]:
    measure = run["measures"].get("completion")
    return measure if isinstance(measure, dict) else {}


def _verdicts(runs: Iterable[dict[str, Any]]) -> str:
    return " ".join(sorted({run["verdict"] for run in runs}))


DILATIONS = (1, 2, 4)
SLACK = 0.02


def run_dilation(setup: Setup) -> Suite:
    """Mean step time at every dilation over that at 1."""
    dilations = (1, 2) if setup.quick else DILATIONS
    results = {dilation: Sound(setup.attempts) for dilation in dilations}
    content = sized(setup, 60)

    def dilated(dilation: int, repetition: int) -> None:
        name = f"dilation-{dilation}-{repetition}"
        path = written(setup, name, {**content, "dilation": dilation})
        results[dilation].add(partial(summary, setup, path))

    setup.in_turns("dilation: ", dilations, dilated)
    reference = median(run["step_s"] for run in results[1].runs)
    rows = [_dilation_row(dilation, sound.runs, reference) for dilation, sound in results.items()]
    return Suite(
        "Dilation: step time in model time over that at dilation 1",
        rows,
        dilation_checks(rows, results),
        {
            "repeat": setup.repetitions,
            "steps": content["train"]["stop"]["steps"],
            "discarded": {str(dilation): sound.discarded for dilation, sound in results.items()},
        },
    )


def dilation_checks(
    rows: Sequence[dict[str, Any]], results: Mapping[int, Sound]
) -> list[ResultCheck]:
    """The ratios, and whether runs could be made use of. Pure."""
    ratios = [
        within(f"dilation {row['dilation']}", row["ratio"], 1 - SLACK, 1 + SLACK)
        for row in rows
        if row["dilation"] != 1
    ]
    return ratios + [
        all_sound(f"dilation {dilation}", sound) for dilation, sound in results.items()
    ]


def _dilation_row(
    dilation: int, runs: list[dict[str, Any]], reference: float | None
) -> dict[str, Any]:
    step_s = median(run["step_s"] for run in runs)
    return {
        "dilation": dilation,
        "step_s": step_s,
        "ratio": times(step_s, reference),
        "step/expected": median(times(run["step_s"], run["expected_step_s"]) for run in runs),
        "verdicts": _verdicts(runs),
    }


NAMES = ("A", "A again")
SAME_TWICE_SLACK = 0.01


def run_again(setup: Setup) -> Suite:
    """The relative difference of the mean step times."""
    content = sized(setup, 80)
    experiment = prepare(written(setup, "again", content))
    order = [(experiment.algorithms[0], experiment.seeds[0])]
    results = {name: Sound(setup.attempts) for name in NAMES}
    setup.in_turns(
        "aa: ",
        NAMES,
        lambda name, _: results[name].add(lambda: run_all(setup, experiment, order)[0]),
    )
    rows = [_same_twice_row(name, sound.runs) for name, sound in results.items()]
    return Suite(
        "A/A: difference of the mean step times of one algorithm and itself",
        rows,
        same_twice_checks(rows, results),
        {
            "repeat": setup.repetitions,
            "steps": content["train"]["stop"]["steps"],
            "discarded": {name: sound.discarded for name, sound in results.items()},
        },
    )


def same_twice_checks(
    rows: list[dict[str, Any]], results: Mapping[str, Sound]
) -> list[ResultCheck]:
    """The difference, and whether runs could be made use of. Pure."""
    first, second = (row["step_s"] for row in rows)
    ratio = times(second, first)
    difference = None if ratio is None else ratio - 1
    return [
        within("relative difference", difference, -SAME_TWICE_SLACK, SAME_TWICE_SLACK),
        *(all_sound(name, sound) for name, sound in results.items()),
    ]


def _same_twice_row(name: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    step_s = [float(run["step_s"]) for run in runs]
    return {
        "name": name,
        "step_s": mean(step_s),
        "deviation_s": stdev(step_s) if len(step_s) > 1 else None,
        "verdicts": _verdicts(runs),
    }
