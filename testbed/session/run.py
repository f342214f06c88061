"""``testbed run``: algorithms × seeds one after the other, each on the same link history from its own t0."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from testbed.algorithms import Algorithm
from testbed.errors import InputError, NarrowsError
from testbed.fabric.base import VIRTUAL
from testbed.record.directory import RunDirectory, comparison_directory
from testbed.session.comparison import Comparison, Listed, Order
from testbed.session.experiment import Experiment
from testbed.session.interrupt import interruptible, shielded
from testbed.session.lock import machine, only_one
from testbed.session.progress import Progress
from testbed.session.resume import BEGUN, Recorded
from testbed.session.stage import Stage

__all__ = ["Comparison", "one", "run"]


def run(
    experiment: Experiment,
    fabric: str,
    out: Path,
    *,
    quiet: bool = False,
    keep_failed: bool = False,
    order: Order | None = None,
    parallel: int = 1,
    earlier: Recorded | None = None,
    resuming: Callable[[Path], str] | None = None,
) -> Comparison:
    """Carry out every trial in ``order`` (default: seeds outer, algorithms inner).

    ``parallel``: how many at a time, in virtual time only. ``earlier``: go on with this comparison, whose order
    it is then. ``resuming``: the command that goes on with the comparison in a directory, told when this is cut
    short. Raises what ended a trial; what was finished before it, and its own records, are on disk.
    """
    least = _check(experiment, fabric, parallel)
    progress = Progress(quiet, experiment.dilation, watched_link=experiment.specs[0].name)
    order = order or [(row, seed) for seed in experiment.seeds for row in experiment.algorithms]
    with _opened(experiment, fabric, out, order, parallel, earlier) as comparison:
        if next(comparison.left(), None) is None:
            return comparison
        alone = nullcontext() if fabric == VIRTUAL else machine(progress.say)
        with interruptible(), alone, _ended(progress, comparison, resuming):
            progress.whole = comparison.remaining
            if parallel > 1:
                _all_at_once(experiment, out, parallel, progress, comparison)
                return comparison
            progress.say(f"starting {len(experiment.specs)} nodes on the {fabric} fabric")
            kept = comparison.directory
            with _stage(
                experiment, fabric, kept, least, quiet=quiet, keep_failed=keep_failed
            ) as stage:
                _in_turn(stage, experiment, out, progress, comparison)
    return comparison


@contextmanager
def _opened(
    experiment: Experiment, fabric: str, out: Path, order: Order, parallel: int, earlier: Recorded | None
) -> Iterator[Comparison]:  # fmt: skip
    """A new comparison, or the earlier one with its finished runs, held as long as this lasts."""
    loaded = experiment.loaded
    if earlier is not None:
        with only_one(earlier.directory):
            yield earlier.again().resumed(experiment, parallel)
        return
    directory = comparison_directory(out, loaded.scenario.name, loaded.hash)
    with only_one(directory):
        yield Comparison(directory, experiment, fabric, order, processes=parallel)


def _check(experiment: Experiment, fabric: str, parallel: int) -> int:
    """As ``preflight.check``. Raises InputError or MachineError for what cannot be carried out."""
    least = 1
    if fabric != VIRTUAL:
        if parallel > 1:
            raise InputError(
                f"trials on the fabric {fabric!r} share this machine's processors and would disturb each other",
                where="--parallel",
                hint="Only trials in virtual time (--fabric sim) can be carried out side by side",
            )
        from testbed.session.preflight import check

        least = check(experiment.loaded, fabric)
    else:
        _check_virtual(experiment)
    _ = experiment.folders
    return least


def _check_virtual(experiment: Experiment) -> None:
    """In virtual time a computation that is measured is one instant, and then the time that it took."""
    row = next((row for row in experiment.algorithms if row.overlap), None)
    if row is not None and experiment.scenario.train.pace is None:
        raise InputError(
            f"algorithm {row.name!r} overlaps communication with layers, whose times nobody knows in virtual time",
            where=f"{experiment.loaded.source}: train",
            hint="Give `pace`, or a `profile` from a file; or take --fabric netns or docker",
        )


def _in_turn(
    stage: Stage, experiment: Experiment, out: Path, progress: Progress, comparison: Comparison
) -> None:
    steps, count = experiment.scenario.train.stop.steps, len(comparison.order)
    for place, algorithm, seed in list(comparison.left()):
        progress.begin(f"{algorithm.name} s{seed}", steps, place + 1, count)
        one(stage, experiment, algorithm, seed, out, progress, comparison)
        progress.say(_news(comparison.entry(place), comparison))


def _stage(
    experiment: Experiment,
    fabric: str,
    directory: Path,
    least: int,
    *,
    quiet: bool,
    keep_failed: bool,
) -> Stage:
    """Imported when it is wanted: virtual time needs nothing of what real links need."""
    if fabric == VIRTUAL:
        from testbed.session.virtual import VirtualStage

        return VirtualStage(experiment)
    from testbed.session.real import RealStage

    return RealStage(
        experiment, fabric, directory, quiet=quiet, keep_failed=keep_failed, least=least
    )


def _news(entry: dict[str, Any], comparison: Comparison) -> str:
    accuracy = "-" if entry["accuracy"] is None else f"{entry['accuracy']:.3f}"
    about = f"{entry['verdict']}, {entry['time_s']:.1f} s, accuracy {accuracy}"
    whole = comparison.remaining.words(time.monotonic())
    return f"{entry['algorithm']} s{entry['seed']}: {about} ({whole})"


def _all_at_once(
    experiment: Experiment, out: Path, parallel: int, progress: Progress, comparison: Comparison
) -> None:
    from testbed.session.parallel import Task, side_by_side

    source, begun = experiment.loaded.source, comparison.directory / BEGUN
    tasks = [Task(source, row.name, seed, begun=begun) for _, row, seed in comparison.left()]
    progress.say(f"{len(tasks)} runs, {parallel} at a time")
    for done in side_by_side(tasks, out, parallel):
        comparison.conclude(done.entry, done.took_s)
        progress.say(_news(done.entry, comparison))


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
        stage.collect(directory)
    except BaseException:
        directory.close()  # without a manifest there is nothing to conclude
        raise
    try:
        trial.run()
    finally:
        with shielded():
            listed.conclude(trial.conclude())
            directory.close()
            stage.collect(directory)


@contextmanager
def _ended(
    progress: Progress, comparison: Comparison, resuming: Callable[[Path], str] | None
) -> Iterator[None]:
    try:
        yield
    except NarrowsError:
        if resuming is not None:
            whole = comparison.remaining.words(time.monotonic())
            progress.insist(f"{whole}. To go on: {resuming(comparison.directory)}")
        elif comparison.runs:
            progress.say(
                f"{len(comparison.runs)} runs were begun; `testbed report {comparison.directory}` "
                "draws what was recorded"
            )
        raise
    finally:
        progress.end()
