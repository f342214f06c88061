"""Trials in virtual time side by side, each in a process of its own: they have nothing in common but the disk."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import lru_cache, partial
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

from testbed.algorithms import Algorithm
from testbed.errors import ExperimentError, Interrupted, NarrowsError
from testbed.fabric.sim.network import Costs
from testbed.record.directory import to_json
from testbed.session.experiment import Experiment, prepare


class Task(NamedTuple):
    """One trial: a scenario file, an algorithm by name, a seed, and what a message costs a host."""

    source: Path
    algorithm: str
    seed: int
    costs: Costs | None = None
    """Of its hosts, if not what the scenario says."""
    begun: Path | None = None
    """A file to which a line is added as soon as the run has a directory."""


class Finished(NamedTuple):
    """What became of the task at ``place``: its entry, and the seconds of real time that it took."""

    place: int
    entry: dict[str, Any]
    took_s: float


class _Outcome(NamedTuple):
    entry: dict[str, Any] | None
    error: str | None
    """What ended it before its time."""
    took_s: float


class _Unlisted:
    """Keeps account of a single trial, which somebody else lists."""

    def __init__(self, begun: Path | None) -> None:
        self.entry: dict[str, Any] | None = None
        self._begun = begun

    def begin(self, directory: Path, algorithm: Algorithm, seed: int) -> None:
        """One write, so that lines of several processes do not mix."""
        if self._begun is not None:
            said = {"dir": str(directory), "algorithm": algorithm.name, "seed": seed}
            with self._begun.open("ab", buffering=0) as file:
                file.write(to_json(said).encode() + b"\n")

    def conclude(self, entry: dict[str, Any]) -> None:
        """This is it."""
        self.entry = entry


def side_by_side(tasks: Sequence[Task], out: Path, processes: int) -> Iterator[Finished]:
    """Carry out ``tasks``; yields what became of each, as they come to their end.

    Raises ExperimentError for a trial that failed, once those that had begun have ended. An interruption ends
    all at once.
    """
    # a fork would share the threads of libraries, which it does not have
    context = get_context("spawn")
    # a pipe's end needs no lock, which a second signal could leave held
    told, teller = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(processes, context, initializer=_alone, initargs=(told,))
    try:
        places = {pool.submit(_trial, task, out): place for place, task in enumerate(tasks)}
        for future in as_completed(places):
            entry, error, took_s = future.result()
            if entry is not None:
                yield Finished(places[future], entry, took_s)
            if error is not None:
                raise ExperimentError(error)
    except (Interrupted, GeneratorExit):
        teller.close()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        teller.close()
        told.close()


def _alone(told: Connection) -> None:
    """Leave it to the parent what a signal to the whole group means, and end with the parent, or when its pipe ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent, closed = parent_process(), partial(told.poll, None)
    for ended in (closed, parent.join if parent else closed):
        Thread(target=_leave_after, args=(ended,), daemon=True).start()


def _leave_after(ended: Callable[[], object]) -> None:
    ended()
    os._exit(1)


def _trial(task: Task, out: Path) -> _Outcome:
    from testbed.session.progress import Progress
    from testbed.session.run import one
    from testbed.session.virtual import VirtualStage

    began = time.monotonic()
    experiment = _experiment(task.source, task.algorithm)
    listed, stage = _Unlisted(task.begun), VirtualStage(experiment, task.costs)
    (algorithm,) = experiment.algorithms
    failure = None
    try:
        one(stage, experiment, algorithm, task.seed, out, Progress(quiet=True), listed)
    except NarrowsError as error:
        failure = str(error)
    return _Outcome(listed.entry, failure, time.monotonic() - began)


@lru_cache(maxsize=1)
def _experiment(source: Path, algorithm: str) -> Experiment:
    return prepare(source, [algorithm])
