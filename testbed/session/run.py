"""``testbed run``: algorithms × seeds one after the other, each on the same link history from its own t0."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Protocol

from testbed.algorithms import Algorithm
from testbed.errors import InputError, NarrowsError
from testbed.record.directory import (
    COMPARISON,
    RunDirectory,
    comparison_directory,
    to_json,
    write_atomically,
)
from testbed.record.summary import ENTRY
from testbed.session.experiment import Experiment
from testbed.session.interrupt import interruptible, shielded
from testbed.session.lock import machine
from testbed.session.progress import Progress
from testbed.session.stage import Stage

VIRTUAL = "sim"
"""The fabric that is a clock and a model."""

Order = Sequence[tuple[Algorithm, int]]


class Listed(Protocol):
    """Who keeps account of trials."""

    def begin(self, directory: Path, algorithm: Algorithm, seed: int) -> None:
        """A run has begun."""
        ...

    def conclude(self, entry: dict[str, Any]) -> None:
        """It has come to its end."""
        ...


class Unlisted:
    """Of a single trial: its ``entry``, which somebody else lists."""

    entry: dict[str, Any] | None = None

    def begin(self, directory: Path, algorithm: Algorithm, seed: int) -> None:
        """Nothing is known yet."""

    def conclude(self, entry: dict[str, Any]) -> None:
        """This is it."""
        self.entry = entry


class Comparison:
    """The runs of one ``testbed run`` and where their common results go."""

    def __init__(self, directory: Path, experiment: Experiment) -> None:
        self.directory, self._loaded = directory, experiment.loaded
        self.runs: list[dict[str, Any]] = []
        """Entries as ``--json`` prints them, in the order of running."""

    def begin(self, directory: Path, algorithm: Algorithm, seed: int) -> None:
        """A run that has begun is listed, as what it is if nobody lives to conclude it."""
        blank = dict.fromkeys(ENTRY)
        about = {"dir": str(directory), "algorithm": algorithm.name, "seed": seed}
        self.runs.append({**blank, **about, "verdict": "invalid"})
        self._save()

    def conclude(self, entry: dict[str, Any]) -> None:
        """The run that was begun last has come to its end."""
        self.runs[-1] = entry
        self._save()

    def conclude_all(self, entries: list[dict[str, Any]]) -> None:
        """These are the runs that have come to their end, in the order in which they were asked for."""
        self.runs = entries
        self._save()

    def _save(self) -> None:
        about = {"scenario": self._loaded.scenario.name, "hash": self._loaded.hash}
        write_atomically(
            self.directory / COMPARISON, to_json({**about, "runs": self.runs}, indent=2) + "\n"
        )

    @property
    def failed(self) -> bool:
        """Some run is invalid: its links were not what was asked for, or it did not end."""
        return any(entry["verdict"] == "invalid" for entry in self.runs)


def run(
    experiment: Experiment,
    fabric: str,
    out: Path,
    *,
    quiet: bool = False,
    keep_failed: bool = False,
    order: Order | None = None,
    parallel: int = 1,
) -> Comparison:
    """Carry out every trial in ``order`` (default: seeds outer, algorithms inner).

    ``parallel``: how many at a time, in virtual time only. Raises what ended a trial; what was finished before
    it, and its own records, are on disk.
    """
    if fabric != VIRTUAL:
        if parallel > 1:
            raise InputError(
                f"trials on the fabric {fabric!r} share this machine's processors and would disturb each other",
                where="--parallel",
                hint="Only trials in virtual time (--fabric sim) can be carried out side by side",
            )
        from testbed.session.preflight import check

        check(experiment.loaded, fabric)
    _ = experiment.folders
    progress = Progress(quiet, experiment.dilation, watched_link=experiment.specs[0].name)
    order = order or [(name, seed) for seed in experiment.seeds for name in experiment.algorithms]
    loaded = experiment.loaded
    comparison = Comparison(
        comparison_directory(out, loaded.scenario.name, loaded.hash), experiment
    )
    alone = nullcontext() if fabric == VIRTUAL else machine(progress.say)
    with interruptible(), alone, _ended(progress, comparison):
        if parallel > 1:
            _all_at_once(experiment, order, out, parallel, progress, comparison)
            return comparison
        progress.say(f"starting {len(experiment.specs)} nodes on the {fabric} fabric")
        with _stage(
            experiment, fabric, comparison.directory, quiet=quiet, keep_failed=keep_failed
        ) as stage:
            for index, (algorithm, seed) in enumerate(order, 1):
                label = f"{algorithm.name} s{seed}"
                progress.begin(label, experiment.scenario.train.stop.steps, index, len(order))
                one(stage, experiment, algorithm, seed, out, progress, comparison)
                progress.say(_news(comparison.runs[-1]))
    return comparison


def interleaved(algorithms: Sequence[Algorithm], seeds: Sequence[int]) -> Order:
    """All pairs, seed by seed, each time beginning one algorithm later: A B C, B C A, C A B."""
    return [
        (algorithms[(turn + index) % len(algorithms)], seed)
        for turn, seed in enumerate(seeds)
        for index in range(len(algorithms))
    ]


def _stage(
    experiment: Experiment, fabric: str, directory: Path, *, quiet: bool, keep_failed: bool
) -> Stage:
    """Imported when it is wanted: virtual time needs nothing of what real links need."""
    if fabric == VIRTUAL:
        from testbed.session.virtual import VirtualStage

        return VirtualStage(experiment)
    from testbed.session.real import RealStage

    return RealStage(experiment, fabric, directory, quiet=quiet, keep_failed=keep_failed)


def _news(entry: dict[str, Any]) -> str:
    accuracy = "-" if entry["accuracy"] is None else f"{entry['accuracy']:.3f}"
    about = f"{entry['verdict']}, {entry['time_s']:.1f} s, accuracy {accuracy}"
    return f"{entry['algorithm']} s{entry['seed']}: {about}"


def _all_at_once(
    experiment: Experiment,
    order: Order,
    out: Path,
    parallel: int,
    progress: Progress,
    comparison: Comparison,
) -> None:
    from testbed.session.parallel import Task, side_by_side

    source = experiment.loaded.source
    tasks = [Task(source, algorithm.name, seed) for algorithm, seed in order]
    finished: dict[int, dict[str, Any]] = {}
    for place, entry in side_by_side(tasks, out, parallel):
        finished[place] = entry
        comparison.conclude_all([finished[place] for place in sorted(finished)])
        progress.say(_news(entry))


def one(
    stage: Stage,
    experiment: Experiment,
    algorithm: Algorithm,
    seed: int,
    out: Path,
    progress: Progress,
    listed: Listed,
) -> None:
    """One trial with its directory; a trial that fails leaves its finished records and its entry too."""
    loaded = experiment.loaded
    directory = RunDirectory.create(
        out,
        scenario_name=loaded.scenario.name,
        algorithm=algorithm.name,
        seed=seed,
        content_hash=loaded.hash,
    )
    trial = stage.trial(algorithm, seed, directory, progress)
    try:
        trial.shape()
        listed.begin(directory.path, algorithm, seed)
        stage.collect(directory.path)
    except BaseException:
        directory.close()  # without a manifest there is nothing to conclude
        raise
    try:
        trial.run()
    finally:
        with shielded():
            listed.conclude(trial.conclude())
            directory.close()
            stage.collect(directory.path)


@contextmanager
def _ended(progress: Progress, comparison: Comparison) -> Iterator[None]:
    try:
        yield
    except NarrowsError:
        if comparison.runs:
            progress.say(
                f"{len(comparison.runs)} runs were begun; `testbed report {comparison.directory}` "
                "draws what was recorded"
            )
        raise
    finally:
        progress.end()
