"""Trials in this process, one after the other, where a benchmark would have processes for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from testbed.runner.experiment import prepare
from testbed.runner.run import Finished, ParallelTask, run


def one_by_one(tasks: Sequence[ParallelTask], out: Path, _: int) -> Iterator[Finished]:
    """Stands for ``side_by_side``, whose processes have their own tests."""
    for place, task in enumerate(tasks):
        experiment = prepare(task.source, [task.algorithm], [task.seed])
        (entry,) = run(experiment, "sim", out, quiet=True).runs
        yield Finished(place, entry, 0.0)
