"""The runs of one ``testbed run`` or ``compare``: their order, how far they are, resuming them,
and the fixed densities of a sweep.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.algorithm import Algorithm
from testbed.errors import InputError
from testbed.fidelity.summary import ENTRY, entry, finished
from testbed.records.run_directory import (
    COMPARISON,
    read_json,
    read_jsonl,
    readable,
    run_of,
    to_json,
)
from testbed.runner.experiment import Experiment, from_loaded, parse_seeds
from testbed.runner.progress import Remaining
from testbed.scenario.load import Loaded, load
from testbed.topology import VIRTUAL
from testbed.user_files import PinnedFolder

Order = Sequence[tuple[Algorithm, int]]


class Comparison:
    """Runs in their order and where their common results go; written down at every change.

    ``earlier``: by its place in ``order``, the entry of a run that is finished already, and the
    seconds that it took. ``folder``: what was made at ``directory``, to which all is written; what
    has that path now if not given.
    """

    def __init__(
        self,
        directory: Path,
        experiment: Experiment,
        fabric: str,
        order: Order,
        earlier: dict[int, tuple[dict[str, Any], float | None]] | None = None,
        processes: int = 1,
        folder: PinnedFolder | None = None,
    ) -> None:
        self.folder = folder or PinnedFolder(directory.resolve())
        self.directory, self.order, self._loaded = directory, list(order), experiment.loaded
        self._fabric, self._experiment = fabric, experiment
        earlier = earlier or {}
        self._entries = {index: entry for index, (entry, _) in earlier.items()}
        self._over = set(earlier)
        self._identities: dict[int, tuple[int, int]] = {}
        """Device and inode number of each run's directory, as it was begun here."""
        in_process = fabric == VIRTUAL and processes == 1
        names = [row.name for row, _ in order]
        self.remaining = Remaining(names, processes, in_process=in_process)
        for index, (_, took_s) in earlier.items():
            self.remaining.over(index, took_s)
        self._save()

    @property
    def runs(self) -> list[dict[str, Any]]:
        """Entries as ``--json`` prints them, of all that has begun, in the comparison's order."""
        return [self._entries[index] for index in sorted(self._entries)]

    def entry(self, index: int) -> dict[str, Any]:
        """Return the entry of the run at ``index``, which has begun."""
        return self._entries[index]

    def left(self) -> Iterator[tuple[int, Algorithm, int]]:
        """Index, algorithm and seed of what is not over yet."""
        for index, (algorithm, seed) in enumerate(self.order):
            if index not in self._over:
                yield index, algorithm, seed

    def begin(self, directory: Path, algorithm: Algorithm, seed: int) -> None:
        """A run that has begun is listed, as what it is if nobody lives to conclude it."""
        blank = dict.fromkeys(ENTRY)
        about = {"dir": str(directory), "algorithm": algorithm.name, "seed": seed}
        index = self._index(algorithm.name, seed)
        self._entries[index] = {**blank, **about, "verdict": "invalid"}
        self._identities[index] = _identity(directory)
        self.remaining.begun(time.monotonic())
        self._save()

    def conclude(self, entry: dict[str, Any], took_s: float | None = None) -> None:
        """Record the result of a run; a run that was cut short is listed and still left to be done.

        ``took_s``: seconds of real time, if not those since it was begun.
        """
        index = self._index(entry["algorithm"], entry["seed"])
        self._entries[index] = entry
        self._identities.setdefault(index, _identity(Path(entry["dir"])))
        if finished(Path(entry["dir"])) is not None:
            self._over.add(index)
            self.remaining.over(index, took_s or self.remaining.elapsed_s(time.monotonic()))
        self._save()

    def check_runs(self) -> None:
        """Raise InputError where something else is in the place of a run's directory by now."""
        for index, identity in self._identities.items():
            directory = Path(self._entries[index]["dir"])
            if not directory.is_dir() or _identity(directory) != identity:
                raise InputError("this is another folder than the run's", where=str(directory))

    @property
    def failed(self) -> bool:
        """Some run is invalid: its links were not what was asked for, or it did not end."""
        return any(entry["verdict"] == "invalid" for entry in self.runs)

    def _index(self, algorithm: str, seed: int) -> int:
        """The first of that algorithm with that seed that is not over."""
        return next(
            index
            for index, row, its_seed in self.left()
            if (row.name, its_seed) == (algorithm, seed)
        )

    def _save(self) -> None:
        about = {
            "scenario": self._loaded.scenario.name,
            "hash": self._loaded.hash,
            "fabric": self._fabric,
            "algorithms": [algorithm.name for algorithm in self._experiment.algorithms],
            "seeds": self._experiment.seeds,
            "order": [[algorithm.name, seed] for algorithm, seed in self.order],
            "took_s": self.remaining.took_s,
            "runs": self.runs,
        }
        self.folder.write(COMPARISON, (to_json(about, indent=2) + "\n").encode())


def _identity(directory: Path) -> tuple[int, int]:
    state = directory.stat()
    return state.st_dev, state.st_ino


def interleaved(algorithms: Sequence[Algorithm], seeds: Sequence[int]) -> Order:
    """All pairs, seed by seed, each time beginning one algorithm later: A B C, B C A, C A B."""
    return [
        (algorithms[(turn + index) % len(algorithms)], seed)
        for turn, seed in enumerate(seeds)
        for index in range(len(algorithms))
    ]


FLAG = "--resume"
BEGUN = "begun.jsonl"
"""Runs side by side that have begun, a line each, written by the run's own process."""
_NEEDED = ("hash", "fabric", "algorithms", "seeds", "order")


@dataclass(frozen=True)
class Recorded:
    """The contents of ``comparison.json``."""

    directory: Path
    hash: str
    fabric: str
    algorithms: list[str]
    seeds: list[int]
    order: list[tuple[str, int]]
    runs: list[dict[str, Any]]
    took_s: list[float | None]

    @property
    def out(self) -> Path:
        """Where its runs are, in ``runs/``."""
        plain = len(self.directory.parts) > 1 and ".." not in self.directory.parts
        return (self.directory if plain else self.directory.resolve()).parent.parent

    def again(self) -> Recorded:
        """As it is now: it may have gone on since it was read."""
        return _read(self.directory)

    def agree(self, flag: str, given: object, recorded: object) -> None:
        """Raises InputError where a flag says something else than the comparison."""
        if given != recorded:
            raise InputError(
                f"{_said(given)} was given, but the comparison in {self.directory} was begun with "
                f"{_said(recorded)}",
                where=flag,
                hint=f"Leave the flag out to go on with it, or {FLAG} to begin another",
            )

    def check(self, loaded: Loaded) -> None:
        """Raises InputError where the scenario is not the one of the comparison."""
        if loaded.hash != self.hash:
            raise InputError(
                f"the scenario's hash is {loaded.hash[:8]}, but the comparison in {self.directory} "
                f"was begun with {self.hash[:8]}: the file, or a trace of it, has changed",
                where=str(loaded.source),
                hint=f"Give the scenario as it was, or leave {FLAG} out to begin another "
                "comparison",
            )

    def resumed(self, experiment: Experiment, processes: int = 1) -> Comparison:
        """The comparison with its finished runs."""
        rows = {algorithm.name: algorithm for algorithm in experiment.algorithms}
        order = [(rows[name], seed) for name, seed in self.order]
        return Comparison(
            self.directory, experiment, self.fabric, order, dict(self._finished()), processes
        )

    def _finished(self) -> Iterator[tuple[int, tuple[dict[str, Any], float | None]]]:
        """Yield each finished run's place, its entry from its own summary, and its seconds."""
        begun = [*self.runs, *read_jsonl(self.directory / BEGUN)]
        where: dict[tuple[str, int], dict[Path, dict[str, Any]]] = {}
        for run in begun:
            directory = run_of(self.directory, Path(run["dir"]))
            if (summary := finished(directory)) is not None:
                same = where.setdefault((run["algorithm"], run["seed"]), {})
                same[directory.resolve()] = {**entry(summary), "dir": str(directory)}
        for index, key in enumerate(self.order):
            if finished_runs := where.get(key):
                yield index, (finished_runs.pop(next(iter(finished_runs))), self.took_s[index])


def recorded(path: Path, out: Path | None = None) -> Recorded:
    """Read the comparison in ``path``, or in ``out / path``. Raises InputError for none."""
    near = [path] if out is None else [path, out / path]
    directory = next((each for each in near if (each / COMPARISON).exists()), None)
    if directory is None:
        raise InputError(
            f"{str(path)!r} holds no {COMPARISON}",
            where=FLAG,
            hint="Give the directory of a comparison: comparisons/<…>",
        )
    return _read(directory)


def _read(directory: Path) -> Recorded:
    content = read_json(directory / COMPARISON)
    if missing := [name for name in _NEEDED if name not in content]:
        raise InputError(
            f"lacks {', '.join(missing)}: it was begun before comparisons could be resumed",
            where=str(directory / COMPARISON),
            hint="Begin another comparison",
        )
    with readable([directory / COMPARISON]):
        order = [(str(name), int(seed)) for name, seed in content["order"]]
        took_s = content.get("took_s") or []
        return Recorded(
            directory=directory,
            hash=str(content["hash"]),
            fabric=str(content["fabric"]),
            algorithms=[str(name) for name in content["algorithms"]],
            seeds=[int(seed) for seed in content["seeds"]],
            order=order,
            runs=[dict(run) for run in content.get("runs", [])],
            took_s=[*took_s, *[None] * len(order)][: len(order)],
        )


def _said(value: object) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(str(each) for each in value)
    return str(value)


SWEEP = ("topk-0.001", "topk-0.003", "topk-0.01", "topk-0.03", "topk-0.1", "topk-0.3")
"""Algorithms that ``--sweep`` adds."""


def swept(names: Sequence[str]) -> list[str]:
    """``names``, then the densities of a sweep that are not among them."""
    densities = {fixed_density(name) for name in names}
    return [*names, *(name for name in SWEEP if fixed_density(name) not in densities)]


def fixed_density(name: str) -> float | None:
    """The density of ``topk-<density>``, exact top-k with error feedback; None of anything else."""
    prefix, _, number = name.partition("-")
    try:
        return float(number) if prefix == "topk" else None
    except ValueError:
        return None


SEEDS = "1-3"


def requested_experiment(
    scenario: Path,
    algorithms: Sequence[str],
    seed: str | None,
    *,
    sweep: bool,
    earlier: Recorded | None,
) -> Experiment:
    """The experiment. Raises InputError for flags, or a scenario, that contradict ``earlier``."""
    loaded = load(scenario)
    names = wanted(loaded, algorithms, sweep=sweep)
    if earlier is None:
        return from_loaded(loaded, names, parse_seeds(seed or SEEDS))
    earlier.check(loaded)
    if algorithms or sweep:
        earlier.agree("--algo" if algorithms else "--sweep", names, earlier.algorithms)
    if seed is not None:
        earlier.agree("--seed", parse_seeds(seed), earlier.seeds)
    return from_loaded(loaded, earlier.algorithms, earlier.seeds)


def wanted(loaded: Loaded, algorithms: Sequence[str], *, sweep: bool) -> list[str]:
    """Names of the algorithms given, or the scenario's, and the densities of a sweep."""
    own = [each if isinstance(each, str) else each.name for each in loaded.scenario.algorithms]
    names = list(algorithms) or own
    return swept(names) if sweep else names
