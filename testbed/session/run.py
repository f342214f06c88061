"""``testbed run``: algorithms × seeds one after the other, each on the same link history from its own t0."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from testbed.algorithms import Algorithm
from testbed.errors import NarrowsError
from testbed.record.directory import (
    COMPARISON,
    RunDirectory,
    comparison_directory,
    to_json,
    write_atomically,
)
from testbed.record.summary import ENTRY
from testbed.scenario.expand import racks
from testbed.session.experiment import Experiment
from testbed.session.interrupt import interruptible, shielded
from testbed.session.judgement import conclude
from testbed.session.lock import machine
from testbed.session.preflight import check
from testbed.session.progress import Progress
from testbed.session.session import Session
from testbed.session.trial import Trial

Order = Sequence[tuple[Algorithm, int]]


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
) -> Comparison:
    """Carry out every trial in ``order`` (default: seeds outer, algorithms inner).

    Raises what ended a trial; what was finished before it, and its own records, are on disk.
    """
    check(experiment.loaded, fabric)
    _ = experiment.folders
    progress = Progress(quiet, experiment.dilation)
    order = order or [(name, seed) for seed in experiment.seeds for name in experiment.algorithms]
    loaded = experiment.loaded
    comparison = Comparison(
        comparison_directory(out, loaded.scenario.name, loaded.hash), experiment
    )
    with interruptible(), machine(progress.say), _ended(progress, comparison):
        progress.say(f"starting {len(experiment.specs)} nodes on the {fabric} fabric")
        with Session(
            experiment.specs,
            fabric,
            comparison.directory,
            quiet=quiet,
            keep_failed=keep_failed,
            folders=experiment.folders,
            racks=racks(experiment.scenario),
        ) as session:
            for index, (algorithm, seed) in enumerate(order, 1):
                label = f"{algorithm.name} s{seed}"
                progress.begin(label, experiment.scenario.train.stop.steps, index, len(order))
                entry = _one(session, experiment, algorithm, seed, out, progress, comparison)
                accuracy = "-" if entry["accuracy"] is None else f"{entry['accuracy']:.3f}"
                progress.say(
                    f"{label}: {entry['verdict']}, {entry['time_s']:.1f} s, accuracy {accuracy}"
                )
    return comparison


def interleaved(algorithms: Sequence[Algorithm], seeds: Sequence[int]) -> Order:
    """All pairs, seed by seed, each time beginning one algorithm later: A B C, B C A, C A B."""
    return [
        (algorithms[(turn + index) % len(algorithms)], seed)
        for turn, seed in enumerate(seeds)
        for index in range(len(algorithms))
    ]


def _one(
    session: Session,
    experiment: Experiment,
    algorithm: Algorithm,
    seed: int,
    out: Path,
    progress: Progress,
    comparison: Comparison,
) -> dict[str, Any]:
    """One trial with its directory; a trial that fails leaves its finished records and its entry too."""
    loaded = experiment.loaded
    directory = RunDirectory.create(
        out,
        scenario_name=loaded.scenario.name,
        algorithm=algorithm.name,
        seed=seed,
        content_hash=loaded.hash,
    )
    trial = Trial(session, experiment, algorithm, seed, directory, progress)
    try:
        trial.shape()
        comparison.begin(directory.path, algorithm, seed)
        _collect(session.directory, directory.path)
    except BaseException:
        directory.close()  # without a manifest there is nothing to conclude
        raise
    try:
        trial.run()
    finally:
        with shielded():
            entry = conclude(trial)
            comparison.conclude(entry)
            directory.close()
            session.fabric.save_logs()
            _collect(session.directory, directory.path)
    return entry


def _collect(session: Path, run: Path) -> None:
    """Copy what belongs to the whole session into the run: each run directory stands alone."""
    for name in ("compose.yaml", "log"):
        source = session / name
        if source.is_dir():
            shutil.copytree(source, run / name, dirs_exist_ok=True)
        elif source.exists():
            shutil.copy(source, run / name)


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
