"""Training runs for suites: a scenario as a file, run as ``testbed run`` runs it, and what it came to."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from testbed.algorithms import Algorithm
from testbed.bench.setup import Setup
from testbed.record.directory import SUMMARY, read_json
from testbed.session.experiment import Experiment, prepare
from testbed.session.run import run
from testbed.traces.generate import random_walk
from testbed.traces.write import write_csv

TRACE = "walk.csv"
_FABRIC = "netns"
QUICK_STEPS = 6


def scenario(**changes: Any) -> dict[str, Any]:
    """Four workers on links of 100 Mbit/s, the server's following a trace; ``changes`` replace keys."""
    end = {"rate": "100 Mbit/s", "queue": "50 ms"}
    return {
        "name": "bench",
        "nodes": {"server": {"role": "server"}, "worker": {"role": "worker", "count": 4}},
        "links": {"default": {"up": end, "down": end}},
        "events": [{"kind": "trace", "links": ["server"], "file": TRACE, "at_end": "loop"}],
        "train": {
            "task": "digits",
            "model": "cnn",
            "batch": 32,
            "optimizer": {"name": "sgd", "lr": 0.1},
            "pace": "250 ms",
            "stop": {"steps": 100},
            "evaluate_every": 100,
        },
        "algorithms": ["none"],
        "seeds": [1],
        "congestion": "cubic",
        **changes,
    }


def sized(setup: Setup, usual: int, **changes: Any) -> dict[str, Any]:
    """``scenario`` with ``usual`` steps; where it need only work, with two workers and few steps."""
    count = QUICK_STEPS if setup.quick else usual
    train = {**scenario()["train"], "stop": {"steps": count}, "evaluate_every": count}
    found = scenario(train=train, **changes)
    if setup.quick:
        found["nodes"] = {"server": {"role": "server"}, "worker": {"role": "worker", "count": 2}}
    return found


def written(setup: Setup, name: str, content: Mapping[str, Any]) -> Path:
    """The scenario as a file beside its trace: 60 s between 50 and 100 Mbit/s, a step every 500 ms."""
    trace = random_walk(low=50, high=100, deviation=10, seconds=60, every_s=0.5, seed=1)
    (setup.directory / TRACE).write_text(write_csv(trace), encoding="utf-8")
    path = setup.directory / f"{name}.yaml"
    # JSON is YAML too.
    path.write_text(json.dumps({**content, "name": name}, indent=2) + "\n", encoding="utf-8")
    return path


def summary(setup: Setup, path: Path) -> dict[str, Any]:
    """Run a scenario of one algorithm and one seed; its ``summary.json``.

    Raises NarrowsError for what ended the run before its time.
    """
    return run_all(setup, prepare(path))[0]


def run_all(
    setup: Setup, experiment: Experiment, order: Sequence[tuple[Algorithm, int]] | None = None
) -> list[dict[str, Any]]:
    """The ``summary.json`` of every run in the order of running, for an experiment that is in memory already."""
    done = run(experiment, _FABRIC, setup.directory, quiet=True, order=order)
    return [read_json(Path(entry["dir"]) / SUMMARY) for entry in done.runs]
