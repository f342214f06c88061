"""Runs as they are drawn: plain arrays in model time, read from run directories; and as tables for
other programs: rows with a column for each number, and polars data frames.

polars both holds the frames and writes Parquet, in one package; pandas would need pyarrow beside
it. ``to_pandas`` of its frames leads on to pandas.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from testbed.errors import InputError, MachineError, printable
from testbed.exchange.base import exchanges
from testbed.fidelity.summary import KnownSteps, is_job, known_steps, summarise, summarise_job
from testbed.process import module_command
from testbed.records.events import phase_s
from testbed.records.intervals import IntervalSet
from testbed.records.link_log import LinkTraffic
from testbed.records.run_directory import (
    COMPARISON,
    MANIFEST,
    SUMMARY,
    read_events,
    read_json,
    read_links,
    run_of,
)
from testbed.records.stored import Events, Records

if TYPE_CHECKING:
    import polars

_log = logging.getLogger(__name__)

Array = NDArray[np.float64]
_UNTIMED = {
    "step",
    "epoch",
    "density",
    "sent_count",
    "size",
    "bytes_up",
    "bytes_down",
    "loss",
    "accuracy",
}


Row = dict[str, Any]
_RECORD = ("v", "kind")
_PLAIN = (str, int, float, bool, type(None))


class EmptyRun(InputError):
    """A run that was stopped before its first step was finished."""


@dataclass(frozen=True)
class Run:
    """One run. All times but those of ``events`` are seconds of model time: wall time divided by
    the dilation."""

    path: Path
    manifest: Mapping[str, Any]
    summary: Mapping[str, Any]
    events: Events
    """As they were written: wall time."""
    links: Records

    @property
    def algorithm(self) -> str:
        """Name of the algorithm."""
        return printable(str(self.manifest["algorithm"]["name"]))

    @property
    def seed(self) -> int:
        """The run's seed."""
        return int(self.manifest["seed"])

    @property
    def is_job(self) -> bool:
        """Return whether it was a command of somebody else's (``testbed exec``): ``steps`` and what
        is along them are empty."""
        return is_job(self.manifest)

    @cached_property
    def traffic(self) -> LinkTraffic:
        """Return the traffic that its links carried: wall time."""
        return LinkTraffic(self.links)

    @cached_property
    def known(self) -> KnownSteps:
        """A job's steps: wall time."""
        return known_steps(self.events, self.traffic)

    @property
    def verdict(self) -> str:
        """``valid``, ``degraded`` or ``invalid``."""
        return str(self.summary["verdict"])

    @property
    def dilation(self) -> float:
        """Wall seconds per second of model time."""
        return float(self.manifest["dilation"])

    @property
    def server(self) -> str:
        """Name of the server node, which is also its link's; of the first worker, where none takes
        part."""
        nodes: Mapping[str, Mapping[str, Any]] = self.manifest["nodes"]
        if exchanges.get(self.manifest["algorithm"].get("exchange", "ps")).server is None:
            nodes = {name: node for name, node in nodes.items() if node["role"] != "server"}
        roles = [
            (node["role"] != "server", node["role"] != "worker", int(node["rank"]), name)
            for name, node in nodes.items()
        ]
        return min(roles)[-1]

    @cached_property
    def steps(self) -> NDArray[np.float64]:
        """Numbers of the steps that have a record, ascending: shape (n,)."""
        return np.unique([float(record["step"]) for record in self.events.get("step", [])])

    def per_step(self, column: str) -> Array:
        """``column`` of the step records, mean over workers, shape (n,) along ``steps``; not a
        number where a record has null."""
        return self._per_step(column, lambda record: _number(record[column]))

    def range_per_step(self, column: str) -> tuple[Array, Array]:
        """``column`` of the step records: the least and the largest of the workers, likewise."""
        records = self.events.get("step", [])
        columns = np.searchsorted(self.steps, [float(record["step"]) for record in records])
        values = [_number(record[column]) for record in records]
        least, largest = np.full(len(self.steps), np.inf), np.full(len(self.steps), -np.inf)
        with np.errstate(invalid="ignore"):
            np.minimum.at(least, columns, values)
            np.maximum.at(largest, columns, values)
        unit = 1.0 if column in _UNTIMED else self.dilation
        return least / unit, largest / unit

    def phase(self, phase: str) -> Array:
        """Seconds of a phase, mean over workers."""
        return self._per_step(phase, lambda record: phase_s(record, phase))

    def _per_step(self, column: str, read: Callable[[Mapping[str, Any]], float]) -> Array:
        records = self.events.get("step", [])
        values = np.array([read(record) for record in records])
        columns = np.searchsorted(self.steps, [float(record["step"]) for record in records])
        sums = np.bincount(columns, weights=values, minlength=len(self.steps))
        means: Array = sums / np.maximum(1, np.bincount(columns, minlength=len(self.steps)))
        return means if column in _UNTIMED else means / self.dilation

    def evaluations(self) -> tuple[Array, Array, Array]:
        """Step, time and test accuracy of every evaluation, each of shape (m,)."""
        records = sorted(self.events.get("evaluation", []), key=lambda record: int(record["step"]))
        step, time_s, accuracy = (
            np.array([_number(record[key]) for record in records])
            for key in ("step", "time_s", "accuracy")
        )
        return step, time_s / self.dilation, accuracy

    def to_frame(self, table: str = "steps") -> polars.DataFrame:
        """Return a table of the run as a polars frame, in model time: ``steps``, ``evaluations``,
        ``links``, ``changes`` or ``summary`` (see ``TABLES``).

        Raises InputError for another table, MachineError where polars is not installed.
        """
        return frame(tabulated(self, table))

    def disturbed(self, end: str | None = None) -> list[tuple[float, float]]:
        """From when to when (s) this machine could not be relied upon to emulate: link direction
        ``end`` (``worker-0 up``), or anything at all. Spans do not overlap."""
        spans = (
            (float(s["from_s"]) / self.dilation, float(s["to_s"]) / self.dilation)
            for s in self.links
            if s["kind"] == "disturbed" and (end is None or not s["ends"] or end in s["ends"])
        )
        return list(IntervalSet(spans))


def _number(value: float | None) -> float:
    """Return what a record has; null is how it writes a number that is not finite."""
    return np.nan if value is None else float(value)


def load(path: Path, *, replayed: bool = False) -> Run:
    """Read one run directory. Raises InputError when it is none, has no manifest or no finished
    step.

    ``replayed``: a replay's, in which there are no steps.
    """
    if not path.is_dir():
        raise InputError(
            f"{str(path)!r} is not a run directory", hint="Give runs/<…> or comparisons/<…>"
        )
    if not (path / MANIFEST).exists():
        raise InputError(
            f"{str(path)!r} has no {MANIFEST}: without it nobody can say what the records mean, "
            "and nothing is drawn from them",
            hint="Give a directory that 'testbed run' made: runs/<…> or comparisons/<…>",
        )
    events, manifest = read_events(path), read_json(path / MANIFEST)
    if missing := {"scenario", "scenario_hash", "algorithm", "seed", "dilation", "nodes"} - set(
        manifest
    ):
        raise InputError(f"lacks {', '.join(sorted(missing))}", where=str(path / MANIFEST))
    if events.get("message") and not replayed:
        raise EmptyRun(
            f"the run in {str(path)!r} replayed messages: it trained nothing, and made no steps",
            hint=f"Its {SUMMARY} says when which step's messages had come; leave it out",
        )
    if not events.get("step") and not replayed and not is_job(manifest):
        raise EmptyRun(
            f"the run in {str(path)!r} was stopped before its first step was finished: "
            "there is nothing to draw",
            hint="Leave it out",
        )
    sum_up = summarise_job if is_job(manifest) else summarise
    summary = read_json(path / SUMMARY) if (path / SUMMARY).exists() else sum_up(path)
    return Run(path, manifest, summary, events, read_links(path))


def load_all(paths: Iterable[Path]) -> list[Run]:
    """Read several runs and order them: ``none`` first, then as given; seeds ascending.

    A comparison's directory stands for its runs; those of them without a finished step are left
    out, with a warning. Raises InputError when the runs are not of one scenario, or some are jobs
    (``testbed exec``) and some are not: they do not compare.
    """
    runs = _distinct(run for path in paths for run in _load_some(path))
    scenarios = {
        (str(run.manifest["scenario"]), str(run.manifest["scenario_hash"])) for run in runs
    }
    if len(scenarios) > 1:
        listed = ", ".join(sorted(f"{name} ({hash_[:8]})" for name, hash_ in scenarios))
        raise InputError(f"the runs are of different scenarios: {listed}", hint="Draw them apart")
    if len({run.is_job for run in runs}) > 1:
        raise InputError(
            "some of the runs are of 'testbed run' and some of 'testbed exec': what is known of "
            "them is not the same",
            hint="Draw them apart",
        )
    return _ordered(runs)


def load_groups(paths: Iterable[Path]) -> list[list[Run]]:
    """Read runs and sort them into groups that compare, each in the order of ``load_all``.

    Runs of one scenario on one fabric are a group; so many comparisons of it as have a run of the
    same algorithm and seed are groups of their own. Jobs compare with jobs alone.
    """
    sources = {run.path.resolve(): (path, run) for path in paths for run in _load_some(path)}
    _distinct(run for _, run in sources.values())
    groups: dict[tuple[str, ...], list[tuple[Path, Run]]] = {}
    for path, run in sources.values():
        manifest = run.manifest
        names = (manifest["scenario"], manifest["scenario_hash"], manifest["fabric"], run.is_job)
        groups.setdefault(tuple(map(str, names)), []).append((path, run))
    return [_ordered(runs) for group in groups.values() for runs in _apart(group)]


def _apart(group: Sequence[tuple[Path, Run]]) -> list[list[Run]]:
    """One group, or one for each comparison where these have the same algorithm and seed."""
    runs = [run for _, run in group]
    if runs[0].is_job or len({(run.algorithm, run.seed) for run in runs}) == len(runs):
        return [runs]
    by_source: dict[Path | None, list[Run]] = {}
    for path, run in group:
        by_source.setdefault(path if (path / COMPARISON).exists() else None, []).append(run)
    return list(by_source.values())


def _distinct(runs: Iterable[Run]) -> list[Run]:
    """Every run directory once. Raises InputError without any."""
    distinct = list({run.path.resolve(): run for run in runs}.values())
    if not distinct:
        raise InputError(
            "no run with a finished step was given", hint="Name one or more run directories"
        )
    return distinct


def _ordered(runs: Sequence[Run]) -> list[Run]:
    order = list(dict.fromkeys(run.algorithm for run in runs))
    return sorted(runs, key=lambda r: (r.algorithm != "none", order.index(r.algorithm), r.seed))


def _load_some(path: Path) -> Iterator[Run]:
    """The run in ``path``, or the runs of the comparison in it."""
    if not (path / COMPARISON).exists():
        yield load(path)
        return
    for entry in read_json(path / COMPARISON).get("runs", []):
        try:
            yield load(_listed(path, Path(entry["dir"])))
        except EmptyRun as error:
            _log.warning("left out: %s", error)


def _listed(comparison: Path, run: Path) -> Path:
    """Return the folder of a run that a comparison lists. Raises InputError where there is none."""
    if (folder := run_of(comparison, run)).is_dir():
        return folder
    raise InputError(
        f"lists the run {str(run)!r}, which is not there",
        where=str(comparison / COMPARISON),
        hint=f"Bring its runs into {comparison.resolve().parent.parent / 'runs'}",
    )


def by_algorithm(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Runs by algorithm, in their order."""
    grouped: dict[str, list[Run]] = {}
    for run in runs:
        grouped.setdefault(run.algorithm, []).append(run)
    return grouped


def lowest_seeds(runs: Iterable[Run]) -> list[Run]:
    """Return each algorithm's run with the lowest seed, in the order of the algorithms."""
    return [min(same, key=lambda run: run.seed) for same in by_algorithm(runs).values()]


def longest(runs: Sequence[Run]) -> Run:
    """Return the run that took longest."""
    return max(runs, key=lambda run: float(run.summary["time_s"]))


def tabulated(run: Run, name: str) -> list[Row]:
    """Rows of the table ``name`` of ``run``; a key of ``TABLES``. Raises InputError."""
    if name not in TABLES:
        raise InputError(f"there is no table {name!r}", hint=f"Tables are {', '.join(TABLES)}")
    identity = {"run": run.path.name, "algorithm": run.algorithm, "seed": run.seed}
    return [{**identity, **row} for row in TABLES[name](run)]


def _steps(run: Run) -> Iterator[Row]:
    """Yield a row for each worker and step; of a job, for each step."""
    if run.is_job:
        for step in run.known.steps:
            times = {"start_s": step.start_s, "end_s": step.end_s, "length_s": step.length_s}
            phases = {f"phase_{name}_s": spent_s for name, spent_s in step.phases_s.items()}
            yield {"step": step.number, **_in_model_time({**times, **phases}, run.dilation),
                   **{f"value_{name}": value for name, value in step.values.items()}}  # fmt: skip
    for record in run.events.get("step", []):
        yield _in_model_time(_plain(record), run.dilation)


def _evaluations(run: Run) -> Iterator[Row]:
    for record in run.events.get("evaluation", []):
        yield _in_model_time(_plain(record), run.dilation)


def _links(run: Run) -> Iterator[Row]:
    """Yield a row for each sample of a link direction; rates in bit/s of model time."""
    for record in run.links:
        length_s = float(record["to_s"]) - float(record["from_s"]) if _is(record, "sample") else 0.0
        if length_s > 0:
            row = _in_model_time(_plain(record), run.dilation)
            for bits, rate in (
                ("asked_bits", "requested_rate"),
                ("delivered_bits", "delivered_rate"),
            ):
                row[rate] = float(record[bits]) / length_s * run.dilation
            yield row


def _changes(run: Run) -> Iterator[Row]:
    """Yield a row for each change of a link direction; the rate in bit/s of model time."""
    for record in run.links:
        if _is(record, "change"):
            row = _in_model_time(_plain(record), run.dilation)
            row["rate"] = float(row.pop("rate_bits")) * run.dilation
            yield row


def _summary(run: Run) -> Iterator[Row]:
    """Yield the numbers and words of the summary; reasons in one line."""
    reasons = " | ".join(map(str, run.summary["reasons"]))
    scenario = {name: str(run.manifest[name]) for name in ("scenario", "scenario_hash", "fabric")}
    yield {**scenario, "dilation": run.dilation, **_plain(run.summary), "reasons": reasons}


TABLES: Mapping[str, Callable[[Run], Iterator[Row]]] = {
    "steps": _steps,
    "evaluations": _evaluations,
    "links": _links,
    "changes": _changes,
    "summary": _summary,
}
"""Every table by its name."""


def _is(record: Mapping[str, Any], kind: str) -> bool:
    return bool(record["kind"] == kind)


def _plain(record: Mapping[str, Any]) -> Row:
    """Return the fields that are single values; those within others are not columns."""
    return {
        key: value
        for key, value in record.items()
        if key not in _RECORD and isinstance(value, _PLAIN)
    }


def _in_model_time(row: Row, dilation: float) -> Row:
    return {
        key: value / dilation if key.endswith("_s") and isinstance(value, int | float) else value
        for key, value in row.items()
    }


def columns(rows: Sequence[Row]) -> list[str]:
    """Names of all columns, in the order in which rows first have them."""
    return list(dict.fromkeys(name for row in rows for name in row))


def frame(rows: Sequence[Row]) -> polars.DataFrame:
    """Return rows as a polars frame; a value that a row lacks is null. Raises MachineError."""
    frames = needed("polars", "data frames and Parquet")
    names = columns(rows)
    values = {name: [row.get(name) for row in rows] for name in names}
    whole: polars.DataFrame = frames.DataFrame(values, strict=False, infer_schema_length=None)
    return whole


def needed(package: str, purpose: str, module: str | None = None) -> Any:
    """Import and return ``module`` of an optional package (without it, the package). Raises
    MachineError with the command that installs it."""
    if find_spec(package) is None:
        raise MachineError(
            f"{purpose} need the package {package!r}, which is not installed",
            fix=f"Run `{shlex.join(module_command('pip', 'install', package))}`",
        )
    return import_module(module or package)
