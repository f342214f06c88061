"""Tables of runs for other programs, in model time: rows with a column for each number, as CSV,
Parquet and polars data frames.

polars both holds the frames and writes Parquet, in one package; pandas would need pyarrow beside
it. ``to_pandas`` of its frames leads on to pandas.
"""

from __future__ import annotations

import csv
import io
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from testbed.errors import InputError, MachineError
from testbed.fidelity.summary import KnownSteps
from testbed.process import module_command
from testbed.records.run_directory import write_data_atomically

if TYPE_CHECKING:
    import polars

Row = dict[str, Any]
_RECORD = ("v", "kind")
_PLAIN = (str, int, float, bool, type(None))


class TabulatedRun(Protocol):
    """The part of ``analysis.load.Run`` that tables are made from."""

    @property
    def path(self) -> Path: ...  # noqa: D102
    @property
    def manifest(self) -> Mapping[str, Any]: ...  # noqa: D102
    @property
    def summary(self) -> Mapping[str, Any]: ...  # noqa: D102
    @property
    def events(self) -> Mapping[str, Sequence[Mapping[str, Any]]]: ...  # noqa: D102
    @property
    def links(self) -> Sequence[Mapping[str, Any]]: ...  # noqa: D102
    @property
    def algorithm(self) -> str: ...  # noqa: D102
    @property
    def seed(self) -> int: ...  # noqa: D102
    @property
    def is_job(self) -> bool: ...  # noqa: D102
    @property
    def known(self) -> KnownSteps: ...  # noqa: D102
    @property
    def dilation(self) -> float: ...  # noqa: D102


def table(run: TabulatedRun, name: str) -> list[Row]:
    """Rows of the table ``name`` of ``run``; a key of ``TABLES``. Raises InputError."""
    if name not in TABLES:
        raise InputError(f"there is no table {name!r}", hint=f"Tables are {', '.join(TABLES)}")
    identity = {"run": run.path.name, "algorithm": run.algorithm, "seed": run.seed}
    return [{**identity, **row} for row in TABLES[name](run)]


def _steps(run: TabulatedRun) -> Iterator[Row]:
    """Yield a row for each worker and step; of a job, for each step."""
    if run.is_job:
        for step in run.known.steps:
            times = {"start_s": step.start_s, "end_s": step.end_s, "length_s": step.length_s}
            phases = {f"phase_{name}_s": spent_s for name, spent_s in step.phases_s.items()}
            yield {"step": step.number, **_in_model_time({**times, **phases}, run.dilation),
                   **{f"value_{name}": value for name, value in step.values.items()}}  # fmt: skip
    for record in run.events.get("step", []):
        yield _in_model_time(_plain(record), run.dilation)


def _evaluations(run: TabulatedRun) -> Iterator[Row]:
    for record in run.events.get("evaluation", []):
        yield _in_model_time(_plain(record), run.dilation)


def _links(run: TabulatedRun) -> Iterator[Row]:
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


def _changes(run: TabulatedRun) -> Iterator[Row]:
    """Yield a row for each change of a link direction; the rate in bit/s of model time."""
    for record in run.links:
        if _is(record, "change"):
            row = _in_model_time(_plain(record), run.dilation)
            row["rate"] = float(row.pop("rate_bits")) * run.dilation
            yield row


def _summary(run: TabulatedRun) -> Iterator[Row]:
    """Yield the numbers and words of the summary; reasons in one line."""
    reasons = " | ".join(map(str, run.summary["reasons"]))
    scenario = {name: str(run.manifest[name]) for name in ("scenario", "scenario_hash", "fabric")}
    yield {**scenario, "dilation": run.dilation, **_plain(run.summary), "reasons": reasons}


TABLES: Mapping[str, Callable[[TabulatedRun], Iterator[Row]]] = {
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


def write_tables(runs: Sequence[TabulatedRun], out: Path, ending: str) -> list[Path]:
    """Write every table of all ``runs`` as ``out/<table>.<ending>``, ``csv`` or ``parquet``; those
    without rows are left out. Files of an earlier export are replaced."""
    files = []
    for name in TABLES:
        rows = [row for run in runs for row in table(run, name)]
        if rows:
            data = _csv(rows) if ending == "csv" else _parquet(rows)
            files.append(write_data_atomically(out / f"{name}.{ending}", data))
    return files


def _csv(rows: Sequence[Row]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns(rows), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def _parquet(rows: Sequence[Row]) -> bytes:
    data = io.BytesIO()
    frame(rows).write_parquet(data)
    return data.getvalue()


def needed(package: str, purpose: str, module: str | None = None) -> Any:
    """Import and return ``module`` of an optional package (without it, the package). Raises
    MachineError with the command that installs it."""
    if find_spec(package) is None:
        raise MachineError(
            f"{purpose} need the package {package!r}, which is not installed",
            fix=f"Run `{shlex.join(module_command('pip', 'install', package))}`",
        )
    return import_module(module or package)
