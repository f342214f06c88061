"""Carrying out the scenarios, on real links and in virtual time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from testbed.bench.agreement.matrix import TRACE, Cell, scenario
from testbed.errors import ExperimentError
from testbed.fabric.sim.network import Costs
from testbed.record.directory import read_events
from testbed.session.experiment import prepare
from testbed.session.parallel import Task, side_by_side
from testbed.session.run import run
from testbed.traces.generate import random_walk
from testbed.traces.write import write_csv

Lengths = dict[str, list[float]]


def write(
    folder: Path, cells: Iterable[Cell], steps: int, algorithms: Sequence[str]
) -> dict[Cell, Path]:
    """The scenarios as files, with the traces that they name."""
    folder.mkdir(parents=True, exist_ok=True)
    paths: dict[Cell, Path] = {}
    for cell in cells:
        trace = random_walk(
            low=cell.rate / 2,
            high=cell.rate,
            deviation=cell.rate / 10,
            seconds=60,
            every_s=0.5,
            seed=1,
        )
        (folder / TRACE.format(rate=cell.rate)).write_text(write_csv(trace), encoding="utf-8")
        content = {**scenario(cell, steps), "algorithms": list(algorithms)}
        paths[cell] = folder / f"{cell.name}.yaml"
        # JSON is YAML too.
        paths[cell].write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return paths


def measured(path: Path, out: Path) -> tuple[Lengths, dict[str, str]]:
    """Step times on real links, and verdicts, by algorithm."""
    done = run(prepare(path), "netns", out, quiet=True)
    lengths = {entry["algorithm"]: step_lengths(Path(entry["dir"])) for entry in done.runs}
    return lengths, {entry["algorithm"]: entry["verdict"] for entry in done.runs}


def simulated(
    paths: Mapping[Cell, Path], out: Path, costs: Costs, processes: int, say: Callable[[str], None]
) -> dict[Cell, Lengths]:
    """Step times in virtual time with those ``costs``."""
    asked = [
        (cell, Task(path, algorithm.name, seed, costs))
        for cell, path in paths.items()
        for experiment in [prepare(path)]
        for algorithm in experiment.algorithms
        for seed in experiment.seeds
    ]
    found: dict[Cell, Lengths] = {}
    for done in side_by_side([task for _, task in asked], out, processes):
        lengths = step_lengths(Path(done.entry["dir"]))
        found.setdefault(asked[done.place][0], {})[done.entry["algorithm"]] = lengths
        say(f"simulated {sum(map(len, found.values()))} of {len(asked)}")
    return found


def step_lengths(directory: Path) -> list[float]:
    """Seconds of every step but the first, each as the mean over workers. Raises ExperimentError if there are none."""
    by_step: dict[int, list[float]] = {}
    for step in read_events(directory).get("step", []):
        by_step.setdefault(int(step["step"]), []).append(
            float(step["end_s"]) - float(step["start_s"])
        )
    lengths = [sum(each) / len(each) for step, each in sorted(by_step.items()) if step > 1]
    if not lengths:
        raise ExperimentError(f"{directory} has no steps")
    return lengths


def to_json(found: Mapping[Cell, Mapping[str, Sequence[float]]]) -> list[dict[str, Any]]:
    """Lengths as plain objects."""
    return [
        {**cell.to_json(), "algorithm": algorithm, "step_s": list(lengths)}
        for cell, by_algorithm in found.items()
        for algorithm, lengths in by_algorithm.items()
    ]


def from_json(rows: Iterable[Mapping[str, Any]]) -> dict[Cell, Lengths]:
    """Read what ``to_json`` wrote."""
    found: dict[Cell, Lengths] = {}
    for row in rows:
        cell = Cell(row["condition"], row["workers"], row["rate"])
        found.setdefault(cell, {})[row["algorithm"]] = list(row["step_s"])
    return found
