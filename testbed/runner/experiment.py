"""A scenario made ready to run: expanded, dilated, its algorithms resolved, and the jobs of its
nodes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self, TypedDict

from testbed.algorithm import Algorithm
from testbed.compatibility import check_momentum, check_nodes, resolve
from testbed.control.base import controllers
from testbed.errors import InputError
from testbed.exchange.base import exchanges
from testbed.fidelity.summary import mean_density
from testbed.runner.manifest_writer import (
    check_data,
    check_layers,
    check_spread,
    longest_pace_s,
    recorded_times,
)
from testbed.scenario.expand import end_settings, expand, racks
from testbed.scenario.link_state import route
from testbed.scenario.load import Loaded, for_seed, load
from testbed.scenario.model import Derived, Scenario
from testbed.scenario.node_timeline import Absences
from testbed.scenario.recorded_paces import worker_paces
from testbed.scenario.timeline import Timeline
from testbed.topology import NodeSpec, RackSpec
from testbed.training.job import Job, PayloadSizes, SharedLink
from testbed.training.membership import exchange_kind
from testbed.training.payload_only import RecordedSizes, check_sizes, sizes
from testbed.transport.frame import MAX_BODY


class SharedLinks(TypedDict):
    """Fields of a worker's ``Job``."""

    way_up: tuple[SharedLink, ...]
    way_down: tuple[SharedLink, ...]


class Paths:
    """Ways of every worker to the first server, and back."""

    def __init__(self, specs: Sequence[NodeSpec], racks: Sequence[RackSpec]) -> None:
        self._rack = {member: rack.name for rack in racks for member in rack.members}
        self._server = next(spec.name for spec in specs if spec.role == "server")
        workers = [spec.name for spec in specs if spec.role == "worker"]
        self._up = Counter(end for name in workers for end in route(self._rack, name, self._server))
        self._down = Counter(
            end for name in workers for end in route(self._rack, self._server, name)
        )

    def of(self, worker: str) -> SharedLinks:
        """Each link with the number of workers whose messages pass it that way."""
        up = route(self._rack, worker, self._server)
        down = route(self._rack, self._server, worker)
        return {
            "way_up": tuple(SharedLink(end.link, end.direction, self._up[end]) for end in up),
            "way_down": tuple(SharedLink(end.link, end.direction, self._down[end]) for end in down),
        }


_SEED_BOUND, _MOST_SEEDS = 2**31, 1000


@dataclass(frozen=True)
class Experiment:
    """The work of ``testbed run``. ``scenario``: in wall time; ``loaded``: in model time."""

    loaded: Loaded
    scenario: Scenario
    specs: list[NodeSpec]
    timeline: Timeline
    algorithms: list[Algorithm]
    seeds: list[int]

    @classmethod
    def untrained(cls, loaded: Loaded, scenario: Scenario, seed: int = 0) -> Self:
        """Return an experiment without algorithms; ``scenario``: ``loaded`` in wall time."""
        return cls(loaded, scenario, expand(scenario), loaded.timeline(), [], [seed])

    @property
    def folders(self) -> tuple[Path, ...]:
        """The task's data folders, which nodes read. Raises InputError for one that is missing, or
        lacks a file."""
        return check_data(self.loaded, self.scenario.train.data)

    def for_seed(self, seed: int) -> Experiment:
        """This experiment for ``seed``: links may begin elsewhere in their traces."""
        loaded = for_seed(self.loaded, seed)
        if loaded is self.loaded:
            return self
        scenario = _located(loaded.wall(), loaded.source.parent)
        return replace(self, loaded=loaded, scenario=scenario, timeline=loaded.timeline())

    @property
    def dilation(self) -> float:
        """Wall time over model time."""
        return self.loaded.scenario.dilation


def up_places(scenario: Scenario) -> dict[str, Literal["nic", "network"]]:
    """Where each node's uplink is shaped: ``nic`` or ``network``."""
    settings = end_settings(scenario)
    return {
        end.link: setting.at or "nic" for end, setting in settings.items() if end.direction == "up"
    }


def prepare(path: Path, algorithms: Sequence[str] = (), seeds: Sequence[int] = ()) -> Experiment:
    """Read ``path``; ``algorithms`` and ``seeds`` replace those of the file when given."""
    return from_loaded(load(path), algorithms, seeds)


def from_loaded(
    loaded: Loaded, algorithms: Sequence[str] = (), seeds: Sequence[int] = ()
) -> Experiment:
    """As ``prepare``, for a scenario that is in memory already."""
    scenario = _located(loaded.wall(), loaded.source.parent)
    derived = {entry.name: entry for entry in scenario.algorithms if not isinstance(entry, str)}
    wanted = [derived.get(name, name) for name in algorithms] or list(scenario.algorithms)
    where = "--algo" if algorithms else str(loaded.source)
    resolved = [resolve(_at_mean(entry, loaded.source), where=where) for entry in wanted]
    for algorithm in resolved:
        check_momentum(algorithm, scenario.train.optimizer.momentum, where=where)
        check_sizes(scenario.train, algorithm.controller, where=where)
        check_nodes(algorithm, scenario, where=where)
    check_spread(scenario, resolved, where)
    check_layers(loaded)
    if (recorded := scenario.train.recorded) is not None:
        was, given = RecordedSizes(Path(recorded)).algorithm, [row.name for row in resolved]
        if given != [was]:
            raise InputError(
                f"the recorded run is one of {was!r}, not of {', '.join(given)}",
                where=where,
                hint=f"Write `algorithms: [{was}]`",
            )
    if len({algorithm.name for algorithm in resolved}) != len(resolved):
        names = ", ".join(algorithm.name for algorithm in resolved)
        raise InputError(f"an algorithm is asked for twice: {names}", where=where)
    return Experiment(
        loaded=loaded,
        scenario=scenario,
        specs=expand(scenario),
        timeline=loaded.timeline(),
        algorithms=resolved,
        seeds=list(seeds) or list(scenario.seeds),
    )


def _located(scenario: Scenario, folder: Path) -> Scenario:
    """Paths of data and recorded runs count from the scenario file, as a trace's do."""
    train = scenario.train
    named = {name: getattr(train, name) for name in ("data", "recorded")}
    resolved = {name: str((folder / path).resolve()) for name, path in named.items() if path}
    return scenario.model_copy(update={"train": train.model_copy(update=resolved)})


def _at_mean(entry: str | Derived, source: Path) -> str | Derived:
    """``mean_of`` as the density that it stands for. Raises InputError where there is none."""
    if isinstance(entry, str) or entry.mean_of is None:
        return entry
    try:
        mean = mean_density((source.parent / entry.mean_of).resolve())
    except InputError as error:
        message = f"algorithm {entry.name!r}: mean_of {entry.mean_of!r}: {error}"
        raise InputError(message, where=str(source)) from None
    return entry.model_copy(update={"mean_of": None, "rule": "fixed", "density": mean})


class JobFactory:
    """Makes the nodes' jobs in one run of ``algorithm`` with ``seed``; ``run`` marks its frames."""

    def __init__(self, experiment: Experiment, algorithm: Algorithm, seed: int, run: int) -> None:
        self._experiment, self._algorithm, self._seed, self._run = experiment, algorithm, seed, run
        training = [spec for spec in experiment.specs if spec.role != "host"]
        self._names = tuple(spec.name for spec in sorted(training, key=lambda spec: spec.peer))
        self._workers = sum(spec.role == "worker" for spec in training)
        self._sizes: tuple[tuple[PayloadSizes, ...], ...] = ()
        self._watched = controllers.get(algorithm.controller)(seed=0, **algorithm.options).watches
        led = exchanges.get(algorithm.exchange).server is not None
        self._on_paths = led and "path" in self._watched
        if self._on_paths:
            self._paths = Paths(training, racks(experiment.scenario))
        profile = experiment.loaded.profile
        self._profile = None if profile is None else profile.profile()
        self._absences = Absences(experiment.scenario)
        self._paces = worker_paces(experiment.scenario)
        self._longest_s = longest_pace_s(self._paces.values(), experiment.loaded)
        recorded = experiment.scenario.train.recorded
        self._recorded = None if recorded is None else RecordedSizes(Path(recorded))

    def of(self, spec: NodeSpec) -> Job:
        """The job of one node."""
        scenario = self._experiment.scenario
        train = scenario.train
        if spec.role == "worker":
            own: dict[str, Any] = {"pace": self._paces[spec.name], "paces": {}, "slow": {}}
            train = train.model_copy(update=own)
        job = Job(
            run=self._run,
            algorithm=self._algorithm,
            train=train,
            seed=self._seed,
            workers=self._workers,
            servers=len(self._names) - self._workers,
            node=spec.name,
            rank=spec.rank,
            peer=spec.peer,
            peer_timeout_s=float(scenario.peer_timeout),
            device=spec.device,
            dilation=self._experiment.dilation,
            sizes=self._sizes,
            names=self._names,
            profile=self._profile,
            step_times=recorded_times(train.pace, self._experiment.loaded),
            longest_pace_s=self._longest_s,
            absences=self._absences.of(spec),
        )
        if self._on_paths and spec.role == "worker":
            job = replace(job, **self._paths.of(spec.name))
        if scenario.train.gradients == "real" or self._sizes:
            return job
        if self._recorded is not None:
            return replace(job, sizes=self._recorded.sizes(job))
        self._sizes = (sizes(replace(job, device="cpu")),)
        return replace(job, sizes=self._sizes)


def parse_seeds(text: str | None) -> list[int]:
    """Read ``1``, ``1-5`` or ``1,3,7-9``; None is no choice."""
    if text is None:
        return []
    seeds: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        if match is None:
            raise InputError(
                f"{text!r} names no seeds", where="--seed", hint="Write 3, 1-5 or 1,4,7-9"
            )
        first, last = (
            int(digits.lstrip("0")[:12] or 0) for digits in (match[1], match[2] or match[1])
        )
        if last >= _SEED_BOUND or last - first >= _MOST_SEEDS:
            raise InputError(
                f"{text!r} names seeds from {_SEED_BOUND} up, or more than {_MOST_SEEDS}",
                where="--seed",
            )
        seeds += range(first, last + 1)
    if not seeds or len(set(seeds)) != len(seeds):
        raise InputError(f"{text!r} names no seed, or one twice", where="--seed")
    return seeds


_DENSE_BYTES = 4
_SPARSE_BYTES = 8
"""Bytes of an element with its index."""
_MOST_PER_ELEMENT, _MOST_BESIDE = 64, 1 << 20
"""No payload takes more for an element of the model, and for what is not elements."""
_UNSENT = 32 << 10
"""Room for the time that a sender takes to go on: 0.26 ms at 1 Gbit/s."""


def expected_bytes(job: Job) -> float:
    """Bytes of the larger ones of a job's messages: exact where nothing is trained, else from its
    density.

    A controller may choose any density, so that of the dense gradient stands for what it does.
    """
    if job.sizes:
        return max(max(size.up, size.down) for step in job.sizes for size in step)
    return _parameters(job) * _per_element(job) / max(1, job.servers)


def most_bytes(job: Job) -> int:
    """Return bytes that no message of a job can exceed, generously."""
    if job.sizes:
        return min(MAX_BODY, int(expected_bytes(job)) + _MOST_BESIDE)
    return min(MAX_BODY, _parameters(job) * _MOST_PER_ELEMENT + _MOST_BESIDE)


def unsent_bytes(job: Job) -> int | None:
    """How much of what has not left yet a job's nodes hand over; None: whatever their network
    stacks take.

    Where the most urgent bucket goes first: what has been handed over, no other can overtake.
    """
    row = job.algorithm
    return _UNSENT if row.overlap and row.order == "forward" else None


def _per_element(job: Job) -> float:
    """Return bytes per element of the workers' mean, which is less sparse than any of them."""
    density = job.algorithm.options.get("density")
    compressed = exchange_kind(job).unit == "payload" and job.algorithm.controller == "fixed"
    if not compressed or not isinstance(density, int | float):
        return _DENSE_BYTES
    return min(_DENSE_BYTES, density * job.workers * _SPARSE_BYTES)


def _parameters(job: Job) -> int:
    from testbed.training.models.base import parameter_count

    return parameter_count(job.train.model, job.train.task, job.train.width)
