"""Carrying out the runs in virtual time; where they lie is kept on disk."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from testbed.bench.response.waveforms import Waveform, scenario
from testbed.record.directory import write_atomically
from testbed.session.parallel import Task, side_by_side
from testbed.traces.write import write_csv

Say = Callable[[str], None]
Runs = dict[str, dict[str, Path]]
"""Directories by waveform and algorithm."""


def write(folder: Path, waveform: Waveform, steps: int, algorithms: Sequence[Any]) -> Path:
    """The scenario as a file, and its trace beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    if waveform.trace is not None:
        (folder / f"{waveform.name}.csv").write_text(write_csv(waveform.trace), encoding="utf-8")
    path = folder / f"{waveform.name}.yaml"
    # JSON is YAML too.
    content = json.dumps(scenario(waveform, steps, algorithms), indent=2)
    return write_atomically(path, content + "\n")


def simulate(asked: Iterable[Task], out: Path, processes: int, say: Say) -> Runs:
    """Directories by the name of the scenario's file and the algorithm."""
    tasks = list(asked)
    found: Runs = {}
    for number, (place, entry, _) in enumerate(side_by_side(tasks, out, processes), 1):
        task = tasks[place]
        found.setdefault(task.source.stem, {})[task.algorithm] = Path(entry["dir"])
        say(f"simulated {task.source.stem} with {task.algorithm}, {number} of {len(tasks)}")
    return found
