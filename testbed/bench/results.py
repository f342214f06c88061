"""Results of link suites: rows, checks against limits, medians, in which order alternatives are
measured, runs that figures may be made of, and ``testbed bench link`` itself.

A *history* is a step function, ``(seconds after t0, bit/s)`` with the first entry at 0. A *mark* is
``(seconds after t0, bytes so far)``.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import import_module
from itertools import pairwise
from math import ceil
from pathlib import Path
from random import Random
from statistics import fmean
from statistics import median as middle
from typing import TYPE_CHECKING, Any, TypeVar

from testbed.errors import InputError, Interrupted, MachineError, NarrowsError
from testbed.records.manifest import machine_facts
from testbed.records.run_directory import fresh, to_json, write_atomically
from testbed.runner.signals import interruptible
from testbed.scenario.link_state import FRAME_BYTES
from testbed.traces.generate import markov

if TYPE_CHECKING:
    from rich.console import Console


Row = Mapping[str, Any]
Say = Callable[[str], None]


def measurement(out: Path, name: str) -> Path:
    """A new directory for what ``testbed bench`` measures under this name."""
    path, _ = fresh(out / "measurements", f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}_{name}")
    return path


def write_json(path: Path, content: Any) -> None:
    """Write ``content`` as indented JSON."""
    write_atomically(path, to_json(content, indent=2) + "\n")


def write_scenario(folder: Path, name: str, content: Mapping[str, Any]) -> Path:
    """Write a scenario as ``name``.yaml: JSON is YAML too."""
    folder.mkdir(parents=True, exist_ok=True)
    return write_atomically(folder / f"{name}.yaml", json.dumps(content, indent=2) + "\n")


def locate_files(content: Mapping[str, Any], folder: Path) -> None:
    """Name the files of a scenario that lies in ``folder`` by whole paths: copies of it lie
    elsewhere."""
    train = content.get("train", {})
    paces = (train.get("pace"), *train.get("paces", {}).values())
    for entry in (*content.get("events", ()), *paces):
        if isinstance(entry, dict) and "file" in entry:
            entry["file"] = str((folder / entry["file"]).resolve())
    for key in ("data", "recorded", "profile"):
        path = train.get(key)
        if path and (key != "profile" or "/" in path or path.endswith(".json")):
            train[key] = str((folder / path).resolve())


def star(name: str, workers: int, train: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Return a scenario of one server and some workers that train with seed 1; ``more``: its other
    keys."""
    return {
        "name": name,
        "nodes": {"server": {"role": "server"}, "worker": {"role": "worker", "count": workers}},
        "train": dict(train),
        "seeds": [1],
        "congestion": "cubic",
        **more,
    }


def link(rate: str, queue: str = "50 ms") -> dict[str, dict[str, str]]:
    """Return a scenario's link with the same rate and queue both ways."""
    end = {"rate": rate, "queue": queue}
    return {"up": end, "down": end}


@dataclass(frozen=True, slots=True)
class ResultCheck:
    """One figure against its limit. ``measured`` None: it could not be measured, and is not met."""

    name: str
    measured: float | None
    limit: str
    met: bool | None


@dataclass(frozen=True, slots=True)
class Suite:
    """The outcome of one suite. ``absent`` names what this machine lacks for parts of it."""

    title: str
    rows: Sequence[Row]
    checks: Sequence[ResultCheck]
    about: Mapping[str, Any] = field(default_factory=dict)
    absent: Sequence[str] = ()
    failure: str | None = None

    @property
    def met(self) -> bool | None:
        """Return whether every check is met; None where one could not be measured and none has
        failed."""
        if self.failure is not None:
            return False
        outcomes = [check.met for check in self.checks]
        if False in outcomes:
            return False
        return None if None in outcomes or not outcomes else True

    def to_json(self) -> dict[str, Any]:
        """``{"title", "met", "checks": [...], "rows": [...], "about", "absent", "failure"}``."""
        return {"title": self.title, "met": self.met, **asdict(self), "absent": list(self.absent)}


def within(name: str, measured: float | None, low: float, high: float) -> ResultCheck:
    """A figure that must lie between two limits, both included."""
    met = None if measured is None else low <= measured <= high
    return ResultCheck(name, measured, f"{low:g} to {high:g}", met)


def at_most(name: str, measured: float | None, limit: float) -> ResultCheck:
    """A figure that must not exceed its limit."""
    return ResultCheck(
        name, measured, f"at most {limit:g}", None if measured is None else measured <= limit
    )


def at_least(name: str, measured: float | None, limit: float) -> ResultCheck:
    """A figure that must reach its limit."""
    return ResultCheck(
        name, measured, f"at least {limit:g}", None if measured is None else measured >= limit
    )


def table(rows: Iterable[Row]) -> tuple[list[str], list[list[str]]]:
    """Columns and cells of rows, as they are shown: every key is a column, in order of
    appearance."""
    listed = list(rows)
    columns = list(dict.fromkeys(key for row in listed for key in row))
    return columns, [[cell(row.get(column)) for column in columns] for row in listed]


def cell(value: Any) -> str:
    """A figure in few digits; what was not measured is a dash."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0f}"
        case _:
            return str(value)


Step = tuple[float, int]
Mark = tuple[float, int]
MBIT = 1_000_000
RADIO_STAY, RADIO_EVERY_S = 0.8, 0.1
"""The probability with which a radio link keeps its rate, and how often it may change."""
QUEUE_S, LEAST_QUEUE_BYTES = 0.05, 20 * FRAME_BYTES


def square(low_bits: int, high_bits: int, changes_per_s: float, seconds: float) -> list[Step]:
    """High first, then in turn; ``changes_per_s`` changes every second."""
    count = ceil(seconds * changes_per_s)
    return [(n / changes_per_s, low_bits if n % 2 else high_bits) for n in range(count)]


def uniform(low_bits: int, high_bits: int, every_s: float, seconds: float, seed: int) -> list[Step]:
    """An independent rate, uniform between the two, for every interval."""
    random, count = Random(seed), ceil(seconds / every_s - 1e-9)
    return [(round(n * every_s, 9), random.randint(low_bits, high_bits)) for n in range(count)]


def radio(levels: tuple[float, ...], seconds: float, seed: int) -> list[Step]:
    """A radio link's rates, of ``levels`` in Mbit/s, the highest first; steps of the same rate are
    one."""
    trace = markov(
        levels=levels, stay=RADIO_STAY, seconds=seconds, every_s=RADIO_EVERY_S, seed=seed
    )
    steps = list(zip(trace.times_s, trace.rates_bits, strict=True))
    steps[0] = (0.0, round(levels[-1] * 1e6))
    return [step for n, step in enumerate(steps) if not n or step[1] != steps[n - 1][1]]


def asked_bits(history: Sequence[Step], from_s: float, to_s: float) -> float:
    """Integral of a history between two times."""
    edges = [from_s, *(at for at, _ in history if from_s < at < to_s), to_s]
    return sum(rate_at(history, begin) * (end - begin) for begin, end in pairwise(edges))


def rate_at(history: Sequence[Step], time_s: float) -> int:
    """The rate asked for at a time."""
    return history[max(0, bisect_right(history, time_s, key=lambda step: step[0]) - 1)][1]


def bytes_at(marks: Sequence[Mark], time_s: float) -> float:
    """Bytes so far at a time, on the straight line between the two marks around it."""
    after = bisect_right(marks, time_s, key=lambda mark: mark[0])
    if after == 0 or after == len(marks):
        return float(marks[0 if after == 0 else -1][1])
    (from_s, before), (to_s, behind) = marks[after - 1], marks[after]
    return before + (behind - before) * (time_s - from_s) / (to_s - from_s)


def ratio(history: Sequence[Step], marks: Sequence[Mark]) -> float:
    """Delivered over asked, from the first mark to the last."""
    (from_s, before), (to_s, behind) = marks[0], marks[-1]
    return 8 * (behind - before) / asked_bits(history, from_s, to_s)


def bin_errors(
    history: Sequence[Step], marks: Sequence[Mark], edges: Iterable[float]
) -> list[float]:
    """Relative error of every bin between two edges that lies within the marks and asks for
    anything."""
    inside = [edge for edge in edges if marks[0][0] - 1e-3 <= edge <= marks[-1][0] + 1e-3]
    errors = []
    for begin, end in pairwise(inside):
        requested = asked_bits(history, begin, end)
        if requested > 0:
            delivered = 8 * (bytes_at(marks, end) - bytes_at(marks, begin))
            errors.append(abs(delivered - requested) / requested)
    return errors


def median(values: Iterable[float | None]) -> float | None:
    """Middle of what was measured; None of nothing."""
    known = [value for value in values if value is not None]
    return middle(known) if known else None


def mean(values: Sequence[float]) -> float | None:
    """Mean; None of nothing."""
    return fmean(values) if values else None


def percentile(values: Iterable[float], share: float) -> float | None:
    """Nearest rank: the smallest value that ``share`` of all do not exceed; None of nothing."""
    ordered = sorted(values)
    return ordered[max(0, ceil(share * len(ordered)) - 1)] if ordered else None


def times(value: float | None, reference: float | None) -> float | None:
    """``value`` over ``reference``; None where either is unknown."""
    return value / reference if value is not None and reference else None


def queue_bytes(history: Sequence[Step]) -> int:
    """The same queue for all: 50 ms at the highest rate."""
    return max(LEAST_QUEUE_BYTES, round(max(rate for _, rate in history) / 8 * QUEUE_S))


T = TypeVar("T")
R = TypeVar("R")


def interleaved(alternatives: Sequence[T], repetitions: int) -> Iterator[tuple[int, T]]:
    """``(repetition, alternative)`` for all of them: A B C, C B A, A B C, …"""
    for repetition in range(repetitions):
        turn = alternatives if repetition % 2 == 0 else alternatives[::-1]
        for alternative in turn:
            yield repetition, alternative


ATTEMPTS = 3
"""How often a run is made at most: once, and twice more where it was invalid."""
_LONGEST = 200
Summary = dict[str, Any]


@dataclass
class Sound:
    """Summaries of runs that are not invalid, ``lost`` repetitions without one, and why runs were
    discarded."""

    attempts: int = ATTEMPTS
    runs: list[Summary] = field(default_factory=list)
    lost: int = 0
    discarded: list[str] = field(default_factory=list)

    def add(self, make: Callable[[], Summary]) -> None:
        """One more repetition. ``make``: a run, and its summary."""
        for _ in range(self.attempts):
            run = make()
            if run["verdict"] != "invalid":
                self.runs.append(run)
                return
            self.discarded.append("; ".join(run.get("reasons", []))[:_LONGEST] or "no reason given")
        self.lost += 1


def all_sound(name: str, sound: Sound) -> ResultCheck:
    """Check that every repetition had a run to make figures of; its name says why not."""
    reason = f" ({sound.discarded[-1]})" if sound.lost else ""
    return at_most(f"repetitions that stayed invalid, {name}{reason}", sound.lost, 0)


@dataclass(frozen=True, slots=True)
class Setup:
    """``repeat``: how often everything is measured. ``quick``: only to see that it works."""

    directory: Path
    """Where runs and files of this benchmark go."""
    say: Say
    repeat: int = 5
    quick: bool = False

    def seconds(self, usual: float, quick: float) -> float:
        """How long to measure."""
        return quick if self.quick else usual

    @property
    def attempts(self) -> int:
        """How often a training run is made at most, where it comes out invalid."""
        return 1 if self.quick else ATTEMPTS

    @property
    def repetitions(self) -> int:
        """Once where it need only work."""
        return 1 if self.quick else self.repeat

    def in_turns(
        self, title: str, cases: Sequence[T], measure: Callable[[T, int], R]
    ) -> dict[T, list[R]]:
        """Measure every case (by its name, or itself) in each repetition, and say so before it.
        ``measure``: of a case and the number of the repetition."""
        results: dict[T, list[R]] = {case: [] for case in cases}
        for repetition, case in interleaved(cases, self.repetitions):
            name = getattr(case, "name", case)
            self.say(f"{title}{name}, {repetition + 1} of {self.repetitions}")
            results[case].append(measure(case, repetition))
        return results


SUITES = {
    "static": "testbed.bench.links.rates:run",
    "replay": "testbed.bench.links.rates:run_replay",
    "swing": "testbed.bench.links.rates:run_swing",
    "lateness": "testbed.bench.links.lateness:run",
    "outage": "testbed.bench.links.rates:run_outage",
    "departures": "testbed.bench.links.departures:run",
    "completion": "testbed.bench.links.training:run",
    "dilation": "testbed.bench.links.training:run_dilation",
    "aa": "testbed.bench.links.training:run_again",
    "nodes": "testbed.bench.links.lateness:run_nodes",
    "certificate": "testbed.bench.links.certificate:run",
    "agreement": "testbed.bench.links.unprivileged:run",
}
"""Every suite and the function that carries it out."""


def suite(name: str) -> Callable[[Setup], Suite]:
    """The function of a suite. Raises InputError for an unknown one."""
    if name not in SUITES:
        raise InputError(
            f"there is no suite {name!r}", where="--suite", hint=f"There are {', '.join(SUITES)}"
        )
    module, _, function = SUITES[name].partition(":")
    carry_out: Callable[[Setup], Suite] = getattr(import_module(module), function)
    return carry_out


RESULT = "bench.json"


@dataclass
class BenchOutcome:
    """Results so far. ``path``: the file that holds the same."""

    path: Path
    machine: dict[str, Any]
    suites: dict[str, Suite] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """``{"suites": {name: {...}}, "machine": {...}}``."""
        suites = {name: each.to_json() for name, each in self.suites.items()}
        return {"suites": suites, "machine": self.machine}

    def save(self) -> None:
        """Write the file."""
        write_json(self.path, self.to_json())


def run(
    names: Sequence[str],
    out: Path,
    say: Say,
    *,
    repeat: int = 5,
    quick: bool = False,
) -> BenchOutcome:
    """Carry out the suites called ``names`` (all, where there are none).

    A suite that fails is recorded with its reason, and the others go on. Raises InputError for an
    unknown suite, Interrupted when asked to end; what was finished is on disk then.
    """
    chosen = {name: suite(name) for name in names or SUITES}
    directory = measurement(out, "link")
    outcome = BenchOutcome(directory / RESULT, machine_facts())
    fill(outcome, chosen, Setup(directory, say, repeat, quick))
    return outcome


def fill(
    outcome: BenchOutcome, chosen: Mapping[str, Callable[[Setup], Suite]], setup: Setup
) -> None:
    """Carry out suites one after the other, as ``run`` says."""
    with interruptible():
        for name, measure in chosen.items():
            try:
                outcome.suites[name] = measure(setup)
            except (Interrupted, InputError):
                raise
            except MachineError as error:
                outcome.suites[name] = Suite(name, [], [], absent=[str(error)])
            except (NarrowsError, OSError, RuntimeError) as error:
                outcome.suites[name] = Suite(name, [], [], failure=str(error))
            outcome.save()


def show(console: Console, name: str, suite: Suite) -> None:
    """A table, each check with its limit, and what is absent or failed."""
    from rich.table import Table

    columns, cells = table(suite.rows)
    shown = Table(title=f"{name}: {suite.title}", title_justify="left")
    for column in columns:
        shown.add_column(column, justify="right")
    for line in cells:
        shown.add_row(*line)
    console.print(shown)
    for check in suite.checks:
        verdict = {True: "met", False: "NOT MET", None: "not measured"}[check.met]
        said = f"  {check.name}: {cell(check.measured)}, {check.limit}: {verdict}"
        console.print(said, highlight=False, markup=False)
    for missing in suite.absent:
        console.print(f"  absent: {missing}", highlight=False, markup=False)
    if suite.failure is not None:
        console.print(f"  failed: {suite.failure}", highlight=False, markup=False)
