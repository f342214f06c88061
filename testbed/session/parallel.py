"""Trials in virtual time side by side, each in a process of its own: they have nothing in common but the disk."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from testbed.errors import ExperimentError, NarrowsError
from testbed.fabric.sim.network import Costs
from testbed.session.experiment import Experiment, prepare

Outcome = tuple[dict[str, Any] | None, str | None]
"""A trial's entry, and what ended it before its time."""


class Task(NamedTuple):
    """One trial: a scenario file, an algorithm by name, a seed, and what a message costs a host."""

    source: Path
    algorithm: str
    seed: int
    costs: Costs | None = None
    """Of its hosts, if not what the scenario says."""


def side_by_side(
    tasks: Sequence[Task], out: Path, processes: int
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Carry out ``tasks``; yields each one's place among them and its entry, as they come to their end.

    Raises ExperimentError for a trial that failed, once those that had begun have ended.
    """
    context = get_context(
        "spawn"
    )  # a fork would share the threads of libraries, which it does not have
    pool = ProcessPoolExecutor(processes, mp_context=context, initializer=_alone)
    try:
        places: dict[Future[Outcome], int] = {
            pool.submit(_trial, task, out): place for place, task in enumerate(tasks)
        }
        for future in as_completed(places):
            entry, error = future.result()
            if entry is not None:
                yield places[future], entry
            if error is not None:
                raise ExperimentError(error)
    finally:
        pool.shutdown(cancel_futures=True)


def _alone() -> None:
    """Leave it to the parent what a signal to the whole group means."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _trial(task: Task, out: Path) -> Outcome:
    from testbed.session.progress import Progress
    from testbed.session.run import Unlisted, one
    from testbed.session.virtual import VirtualStage

    experiment = _experiment(task.source, task.algorithm)
    listed, stage = Unlisted(), VirtualStage(experiment, task.costs)
    (algorithm,) = experiment.algorithms
    try:
        one(stage, experiment, algorithm, task.seed, out, Progress(quiet=True), listed)
    except NarrowsError as error:
        return listed.entry, str(error)
    return listed.entry, None


@lru_cache(maxsize=1)
def _experiment(source: Path, algorithm: str) -> Experiment:
    return prepare(source, [algorithm])
