"""The runs of one ``testbed run`` or ``compare``: in which order, how far they are, where that is written down."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from testbed.algorithms import Algorithm
from testbed.record.directory import COMPARISON, to_json, write_atomically
from testbed.record.summary import ENTRY, finished
from testbed.session.experiment import Experiment
from testbed.session.remaining import Remaining

Order = Sequence[tuple[Algorithm, int]]


class Listed(Protocol):
    """Who keeps account of trials."""

    def begin(self, directory: Path, algorithm: Algorithm, seed: int) -> None:
        """A run has begun."""
        ...

    def conclude(self, entry: dict[str, Any]) -> None:
        """It has come to its end."""
        ...


class Comparison:
    """Runs in their order and where their common results go; written down at every change.

    ``earlier``: by its place in ``order``, the entry of a run that is finished already, and the seconds that it took.
    """

    def __init__(
        self,
        directory: Path,
        experiment: Experiment,
        fabric: str,
        order: Order,
        earlier: dict[int, tuple[dict[str, Any], float | None]] | None = None,
        processes: int = 1,
    ) -> None:
        self.directory, self.order, self._loaded = directory, list(order), experiment.loaded
        self._fabric, self._experiment = fabric, experiment
        earlier = earlier or {}
        self._entries = {place: entry for place, (entry, _) in earlier.items()}
        self._over = set(earlier)
        self.remaining = Remaining([row.name for row, _ in order], processes)
        for place, (_, took_s) in earlier.items():
            self.remaining.over(place, took_s)
        self._save()

    @property
    def runs(self) -> list[dict[str, Any]]:
        """Entries as ``--json`` prints them, of all that has begun, in the comparison's order."""
        return [self._entries[place] for place in sorted(self._entries)]

    def entry(self, place: int) -> dict[str, Any]:
        """Of the run at ``place``, which has begun."""
        return self._entries[place]

    def left(self) -> Iterator[tuple[int, Algorithm, int]]:
        """Place, algorithm and seed of what is not over yet."""
        for place, (algorithm, seed) in enumerate(self.order):
            if place not in self._over:
                yield place, algorithm, seed

    def begin(self, directory: Path, algorithm: Algorithm, seed: int) -> None:
        """A run that has begun is listed, as what it is if nobody lives to conclude it."""
        blank = dict.fromkeys(ENTRY)
        about = {"dir": str(directory), "algorithm": algorithm.name, "seed": seed}
        place = self._place(algorithm.name, seed)
        self._entries[place] = {**blank, **about, "verdict": "invalid"}
        self.remaining.begun(time.monotonic())
        self._save()

    def conclude(self, entry: dict[str, Any], took_s: float | None = None) -> None:
        """What became of a run; one that was cut short is listed and still left to be done.

        ``took_s``: seconds of real time, if not those since it was begun.
        """
        place = self._place(entry["algorithm"], entry["seed"])
        self._entries[place] = entry
        if finished(Path(entry["dir"])) is not None:
            self._over.add(place)
            self.remaining.over(place, took_s or self.remaining.elapsed_s(time.monotonic()))
        self._save()

    @property
    def failed(self) -> bool:
        """Some run is invalid: its links were not what was asked for, or it did not end."""
        return any(entry["verdict"] == "invalid" for entry in self.runs)

    def _place(self, algorithm: str, seed: int) -> int:
        """The first of that algorithm with that seed that is not over."""
        return next(
            place
            for place, row, its_seed in self.left()
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
        write_atomically(self.directory / COMPARISON, to_json(about, indent=2) + "\n")


def interleaved(algorithms: Sequence[Algorithm], seeds: Sequence[int]) -> Order:
    """All pairs, seed by seed, each time beginning one algorithm later: A B C, B C A, C A B."""
    return [
        (algorithms[(turn + index) % len(algorithms)], seed)
        for turn, seed in enumerate(seeds)
        for index in range(len(algorithms))
    ]
