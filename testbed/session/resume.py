"""A comparison that was begun earlier: what it is made of, and which of its runs are finished."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.errors import InputError
from testbed.record.directory import COMPARISON, read_json, read_jsonl, run_of
from testbed.record.readable import readable
from testbed.record.summary import entry, finished
from testbed.scenario.load import Loaded
from testbed.session.comparison import Comparison
from testbed.session.experiment import Experiment

FLAG = "--resume"
BEGUN = "begun.jsonl"
"""Of runs side by side: who has begun where, written by each process, so that none depends on another's life."""
_NEEDED = ("hash", "fabric", "algorithms", "seeds", "order")


@dataclass(frozen=True)
class Recorded:
    """What ``comparison.json`` says."""

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
                f"{_said(given)} was given, but the comparison in {self.directory} was begun with {_said(recorded)}",
                where=flag,
                hint=f"Leave the flag out to go on with it, or {FLAG} to begin another",
            )

    def check(self, loaded: Loaded) -> None:
        """Raises InputError where the scenario is not the one that the comparison was begun with."""
        if loaded.hash != self.hash:
            raise InputError(
                f"the scenario's hash is {loaded.hash[:8]}, but the comparison in {self.directory} was begun "
                f"with {self.hash[:8]}: the file, or a trace of it, has changed",
                where=str(loaded.source),
                hint=f"Give the scenario as it was, or leave {FLAG} out to begin another comparison",
            )

    def resumed(self, experiment: Experiment, processes: int = 1) -> Comparison:
        """The comparison with its finished runs."""
        rows = {algorithm.name: algorithm for algorithm in experiment.algorithms}
        order = [(rows[name], seed) for name, seed in self.order]
        return Comparison(
            self.directory, experiment, self.fabric, order, dict(self._finished()), processes
        )

    def _finished(self) -> Iterator[tuple[int, tuple[dict[str, Any], float | None]]]:
        """By place: the entry of a finished run, from its own summary, and how long it took."""
        begun = [*self.runs, *read_jsonl(self.directory / BEGUN)]
        where: dict[tuple[str, int], dict[Path, dict[str, Any]]] = {}
        for said in begun:
            directory = run_of(self.directory, Path(said["dir"]))
            if (summary := finished(directory)) is not None:
                same = where.setdefault((said["algorithm"], said["seed"]), {})
                same[directory.resolve()] = {**entry(summary), "dir": str(directory)}
        for place, key in enumerate(self.order):
            if found := where.get(key):
                yield place, (found.pop(next(iter(found))), self.took_s[place])


def recorded(path: Path, out: Path | None = None) -> Recorded:
    """Read the comparison in ``path``, which may be relative to ``out`` too. Raises InputError when it is none."""
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
    said = read_json(directory / COMPARISON)
    if missing := [name for name in _NEEDED if name not in said]:
        raise InputError(
            f"lacks {', '.join(missing)}: it was begun before comparisons could be resumed",
            where=str(directory / COMPARISON),
            hint="Begin another comparison",
        )
    with readable([directory / COMPARISON]):
        order = [(str(name), int(seed)) for name, seed in said["order"]]
        took_s = said.get("took_s") or []
        return Recorded(
            directory=directory,
            hash=str(said["hash"]),
            fabric=str(said["fabric"]),
            algorithms=[str(name) for name in said["algorithms"]],
            seeds=[int(seed) for seed in said["seeds"]],
            order=order,
            runs=[dict(run) for run in said.get("runs", [])],
            took_s=[*took_s, *[None] * len(order)][: len(order)],
        )


def _said(value: object) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(str(each) for each in value)
    return str(value)
