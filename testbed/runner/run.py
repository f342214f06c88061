"""``testbed run``: algorithms × seeds, one after the other, each on the same link history from its
own t0, on real nodes or in virtual time, there also side by side. ``testbed messages replay``: one
trace of messages, with a run directory like every run's.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import lru_cache, partial
from importlib.util import find_spec
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, NamedTuple

from testbed.algorithm import Algorithm
from testbed.compress.base import codings, memories, selectors
from testbed.control.base import controllers
from testbed.errors import ExperimentError, InputError, Interrupted, NarrowsError
from testbed.exchange.base import exchanges
from testbed.fabric.sim.network import Costs
from testbed.fidelity.summary import finished
from testbed.records.run_directory import SUMMARY, comparison_directory, read_json, to_json
from testbed.registry import Registry
from testbed.runner.comparison import BEGUN, Comparison, Order, Recorded
from testbed.runner.experiment import Experiment, prepare
from testbed.runner.progress import Progress
from testbed.runner.signals import blocked, interruptible, machine, only_one
from testbed.runner.sim_trial import SimTraining
from testbed.runner.trial import LinkTrial, TrialPlan
from testbed.topology import VIRTUAL
from testbed.training.membership import multicasts
from testbed.training.models.base import models
from testbed.training.tasks.base import tasks

if TYPE_CHECKING:
    from testbed.runner.comm_replay import CommReplay
    from testbed.runner.real_links import Observed

MakeTrial = Callable[[TrialPlan], LinkTrial]
MOST_REASONS = 4
"""Most reasons of a verdict that are printed when its run is over; its summary has all."""
_OWN_LIBRARIES = ("docker", "swarm")
"""Fabrics whose nodes have libraries of their own; elsewhere they have this installation's."""
MESSAGES = "messages.jsonl"
"""The trace that was replayed, in the run directory."""


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
    observe: bool = False,
    over: Callable[[dict[str, Any]], object] = lambda _: None,
) -> Comparison:
    """Carry out every trial in ``order`` (default: seeds outer, algorithms inner).

    ``parallel``: how many at a time, in virtual time only. ``earlier``: go on with this comparison,
    whose order it is then. ``resuming``: the command that goes on with the comparison in a
    directory, told when this is cut short. ``observe``: start Prometheus beside the nodes.
    ``over``: called with the entry of each trial that was carried out here, at its end.
    Raises what ended a trial; what was finished before it,
    and its own records, are on disk.
    """
    least = _check(experiment, fabric, parallel)
    observed = _observing(fabric) if observe else None
    progress = Progress(quiet, experiment.dilation, watched_link=experiment.specs[0].name)
    order = order or [(row, seed) for seed in experiment.seeds for row in experiment.algorithms]
    with _opened(experiment, fabric, out, order, parallel, earlier) as comparison:
        if next(comparison.left(), None) is None:
            return comparison
        alone = nullcontext() if fabric == VIRTUAL else machine(progress.say)
        with interruptible(), alone, _ended(progress, comparison, resuming):
            progress.whole = comparison.remaining
            if parallel > 1:
                _all_at_once(experiment, out, parallel, progress, comparison, over)
                return comparison
            progress.say(f"starting {len(experiment.specs)} nodes on the {fabric} fabric")
            trials = _trials(
                experiment,
                fabric,
                comparison,
                least,
                quiet=quiet,
                keep=keep_failed,
                observed=observed and observed(comparison, progress),
            )
            with trials as make:
                _in_turn(make, experiment, out, progress, comparison, over)
    return comparison


@contextmanager
def _opened(
    experiment: Experiment,
    fabric: str,
    out: Path,
    order: Order,
    parallel: int,
    earlier: Recorded | None,
) -> Iterator[Comparison]:
    """A new comparison, or the earlier one with its finished runs, held as long as this lasts."""
    loaded = experiment.loaded
    if earlier is not None:
        with only_one(earlier.directory):
            yield earlier.again().resumed(experiment, parallel)
        return
    directory, folder = comparison_directory(out, loaded.scenario.name, loaded.hash)
    with only_one(folder.path):
        yield Comparison(directory, experiment, fabric, order, processes=parallel, folder=folder)


def _check(experiment: Experiment, fabric: str, parallel: int) -> int:
    """As ``preflight.check``. Raises InputError or MachineError for what cannot be carried out,
    ModuleNotFoundError where nodes would lack a library."""
    least = 1
    if fabric in _OWN_LIBRARIES:
        _check_packages(experiment)
    for library in () if fabric in _OWN_LIBRARIES else ("torch", "numba"):
        if find_spec(library) is None:
            raise ModuleNotFoundError(name=library)
    if fabric != VIRTUAL:
        if parallel > 1:
            raise InputError(
                f"trials on the fabric {fabric!r} share this machine's processors and would "
                "disturb each other",
                where="--parallel",
                hint="Only trials in virtual time (--fabric sim) can be carried out side by side",
            )
        from testbed.runner.preflight import check

        multicast = multicasts(experiment.algorithms)
        least = check(experiment.loaded, fabric, multicast=multicast)
    else:
        _check_virtual(experiment)
    _ = experiment.folders
    return least


def _check_packages(experiment: Experiment) -> None:
    """Raises InputError for what only packages of this installation have."""
    train = experiment.scenario.train
    used: list[tuple[Registry[Any], str]] = [(tasks, train.task), (models, train.model)]
    for row in experiment.algorithms:
        used += [(selectors, row.selector), (codings, row.values), (memories, row.memory)]
        used += [(codings, row.down), (memories, row.down_memory)]
        used += [(controllers, row.controller), (exchanges, row.exchange)]
    for registry, name in used:
        if package := registry.package_of(name):
            raise InputError(
                f"{registry.noun} {name!r} is from {package}, which the containers of nodes lack",
                where="--fabric",
                hint="Take --fabric netns or sim",
            )


def _check_virtual(experiment: Experiment) -> None:
    """In virtual time a measured computation is one instant, and then the time it took."""
    row = next((row for row in experiment.algorithms if row.overlap), None)
    if row is not None and experiment.scenario.train.pace is None:
        raise InputError(
            f"algorithm {row.name!r} overlaps communication with layers, whose times nobody knows "
            "in virtual time",
            where=f"{experiment.loaded.source}: train",
            hint="Give `pace`, or a `profile` from a file; or take --fabric netns or docker",
        )


def _in_turn(
    make: MakeTrial,
    experiment: Experiment,
    out: Path,
    progress: Progress,
    comparison: Comparison,
    over: Callable[[dict[str, Any]], object],
) -> None:
    steps, count = experiment.scenario.train.stop.steps, len(comparison.order)
    for index, algorithm, seed in list(comparison.left()):
        progress.begin(f"{algorithm.name} s{seed}", steps, index + 1, count)
        plan = TrialPlan.create(experiment, algorithm, seed, out, progress)
        begin = partial(comparison.begin, plan.directory.path, algorithm, seed)
        make(plan.for_seed()).carry_out(begin, comparison.conclude)
        _tell(progress, comparison.entry(index), comparison)
        over(comparison.entry(index))


def _observing(fabric: str) -> Callable[[Comparison, Progress], Observed]:
    """Return what observes a session, from its comparison and its progress.

    Raises InputError or MachineError where that cannot be.
    """
    from testbed.runner import observe  # of which other runs need nothing

    observe.require(fabric)

    def observed(comparison: Comparison, progress: Progress) -> Observed:
        path, folder = comparison.directory / observe.FOLDER, comparison.folder
        link, say = progress.watched_link, progress.say
        return partial(observe.observed, folder=folder, path=path, link=link, say=say)

    return observed


def _trials(
    experiment: Experiment,
    fabric: str,
    comparison: Comparison,
    least: int,
    *,
    quiet: bool,
    keep: bool,
    observed: Observed | None,
) -> AbstractContextManager[MakeTrial]:
    if fabric == VIRTUAL:
        return nullcontext(SimTraining)
    from testbed.runner.real_links import training_trials  # of which virtual time needs nothing

    return training_trials(
        experiment,
        fabric,
        comparison.directory,
        comparison.folder,
        quiet=quiet,
        keep_failed=keep,
        least=least,
        observed=observed,
    )


def _tell(progress: Progress, entry: dict[str, Any], comparison: Comparison) -> None:
    progress.say(_news(entry, comparison))
    for line in reasons_against(entry):
        progress.say(f"  {line}")


def reasons_against(entry: dict[str, Any]) -> Iterator[str]:
    """Yield why a run that has ended is not valid, the first reasons alone where there are many."""
    if entry["verdict"] != "valid":
        reasons = (finished(Path(entry["dir"])) or {}).get("reasons", [])
        yield from reasons[:MOST_REASONS]
        if more := len(reasons[MOST_REASONS:]):
            yield f"and {more} more: {entry['dir']}/{SUMMARY}"


def _news(entry: dict[str, Any], comparison: Comparison) -> str:
    accuracy = "-" if entry["accuracy"] is None else f"{entry['accuracy']:.3f}"
    about = f"{entry['verdict']}, {entry['time_s']:.1f} s, accuracy {accuracy}"
    whole = comparison.remaining.words(time.monotonic())
    return f"{entry['algorithm']} s{entry['seed']}: {about} ({whole})"


def _all_at_once(
    experiment: Experiment,
    out: Path,
    parallel: int,
    progress: Progress,
    comparison: Comparison,
    over: Callable[[dict[str, Any]], object],
) -> None:
    source, begun = experiment.loaded.source, comparison.folder.path / BEGUN
    tasks = [
        ParallelTask(source, row.name, seed, begun=begun) for _, row, seed in comparison.left()
    ]
    progress.say(f"{len(tasks)} runs, {parallel} at a time")
    for done in side_by_side(tasks, out, parallel):
        comparison.conclude(done.entry, done.took_s)
        _tell(progress, done.entry, comparison)
        over(done.entry)


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
        elif any(entry["steps"] for entry in comparison.runs):
            were = "1 run was" if len(comparison.runs) == 1 else f"{len(comparison.runs)} runs were"
            progress.say(
                f"{were} begun; `testbed report {comparison.directory}` draws what was recorded"
            )
        raise
    finally:
        progress.end()


class ParallelTask(NamedTuple):
    """One trial: a scenario file, an algorithm by name, a seed, and what a message costs a host."""

    source: Path
    algorithm: str
    seed: int
    costs: Costs | None = None
    """Costs of a message to its hosts, if not what the scenario says."""
    begun: Path | None = None
    """A file to which a line is added as soon as the run has a directory."""


class Finished(NamedTuple):
    """The result of the task at ``position``: its entry, and the seconds of real time it took."""

    position: int
    entry: dict[str, Any]
    took_s: float


class _Outcome(NamedTuple):
    entry: dict[str, Any] | None
    error: str | None
    """The error that ended it before its time."""
    took_s: float


def side_by_side(tasks: Sequence[ParallelTask], out: Path, processes: int) -> Iterator[Finished]:
    """Carry out ``tasks``; yields what became of each, as they come to their end.

    Raises ExperimentError for a trial that failed, once those that had begun have ended.
    """
    with process_pool(processes) as pool:
        with blocked():
            places = {pool.submit(_trial, task, out): index for index, task in enumerate(tasks)}
        for future in as_completed(places):
            entry, error, took_s = future.result()
            if entry is not None:
                yield Finished(places[future], entry, took_s)
            if error is not None:
                raise ExperimentError(error)


@contextmanager
def process_pool(processes: int) -> Iterator[ProcessPoolExecutor]:
    """New processes, which an interruption ends at once. Signals are to be blocked while work is
    submitted: that starts them, and each lets them come when it ignores them."""
    # a fork would share the threads of libraries, which it does not have
    context = get_context("spawn")
    # a pipe's end needs no lock, which a second signal could leave held
    receiver, sender = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(processes, context, initializer=_alone, initargs=(receiver,))
    try:
        yield pool
    except (Interrupted, GeneratorExit):
        sender.close()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        sender.close()
        receiver.close()


def _alone(receiver: Connection) -> None:
    """Leave signals to the parent, and end with it, or when its pipe ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    parent, closed = parent_process(), partial(receiver.poll, None)
    for ended in (closed, parent.join if parent else closed):
        Thread(target=_leave_after, args=(ended,), daemon=True).start()


def _leave_after(ended: Callable[[], object]) -> None:
    ended()
    os._exit(1)


def _trial(task: ParallelTask, out: Path) -> _Outcome:
    began, experiment = time.monotonic(), _experiment(task.source, task.algorithm)
    (algorithm,) = experiment.algorithms
    plan = TrialPlan.create(experiment, algorithm, task.seed, out, Progress(quiet=True))
    about = {"dir": str(plan.directory.path), "algorithm": algorithm.name, "seed": task.seed}

    def begin() -> None:
        """One write, so that lines of several processes do not mix."""
        if task.begun is not None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(task.begun, flags, 0o644), "ab", buffering=0) as file:
                file.write(to_json(about).encode() + b"\n")

    entries: list[dict[str, Any]] = []
    failure = None
    try:
        SimTraining(plan.for_seed(), task.costs).carry_out(begin, entries.append)
    except NarrowsError as error:
        failure = str(error)
    entry = entries[0] if entries else None
    return _Outcome(entry, failure, time.monotonic() - began)


@lru_cache(maxsize=1)
def _experiment(source: Path, algorithm: str) -> Experiment:
    return prepare(source, [algorithm])


def replay_messages(
    replay: CommReplay, fabric: str, out: Path, *, quiet: bool = False, keep_failed: bool = False
) -> dict[str, Any]:
    """Play a trace; returns the run's summary. Raises what ended it early; records are kept."""
    from testbed.comm_trace.trace import write  # neither is needed by other runs
    from testbed.runner.comm_replay import SimCommReplay

    experiment, label, least = replay.experiment, replay.label, 1
    if fabric != VIRTUAL:
        from testbed.runner.preflight import check

        least = check(replay.loaded, fabric)
    progress = Progress(quiet, experiment.dilation, experiment.specs[0].name)
    plan = TrialPlan.create(experiment, Algorithm(label), replay.seed, out, progress, replay.row())
    with ExitStack() as stack:
        stack.enter_context(interruptible())
        stack.enter_context(plan.directory)
        write(replay.trace, plan.directory.folder().path / MESSAGES)
        trial: LinkTrial
        if fabric == VIRTUAL:
            trial = SimCommReplay(plan, replay)
        else:
            from testbed.runner.real_links import comm_replay_trial

            stack.enter_context(machine(progress.say))
            progress.say(f"starting {len(experiment.specs)} nodes on the {fabric} fabric")
            session = comm_replay_trial(
                plan, replay, fabric, quiet=quiet, keep_failed=keep_failed, least=least
            )
            trial = stack.enter_context(session)
        stack.callback(progress.end)
        trial.carry_out(begin=lambda: progress.begin(label, None, 1, 1))
    return read_json(plan.directory.path / SUMMARY)
