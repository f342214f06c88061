"""Runs in the formats of experiment trackers (TensorBoard, Weights & Biases, MLflow) and as tables,
from their records, after they have ended.

Every tracker gets the same series. Those of steps count steps; those of links count seconds of
model time. A point's clock time is the run's start and its model time. Nothing leaves this machine:
W&B writes its offline format, MLflow a SQLite file (its folders of files are no longer written to).
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np

from analysis.load import TABLES, Run, columns, frame, needed, tabulated
from analysis.series import ends, timed
from analysis.tables import to_csv
from testbed.errors import InputError
from testbed.fidelity.verdict import CERTIFICATE
from testbed.records.events import PHASES
from testbed.records.run_directory import MANIFEST, SUMMARY, write_data_atomically

PROJECT = "narrows"
ATTACHED = (CERTIFICATE, MANIFEST, SUMMARY, "scenario.yaml")
"""Files of a run that trackers keep as artifacts, where it has them."""
_PER_STEP = ("loss", "accuracy", "density", "bytes_up", "bytes_down", "delay_s")
_MOST_METRICS = 1000
"""The most metrics that MLflow takes at once."""


class SeriesPoint(NamedTuple):
    """A value of a series. ``at``: number of the step, or second of model time of ``link/`` series.
    ``time_s``: model time after t0."""

    series: str
    at: int
    time_s: float
    value: float


def points(run: Run) -> list[SeriesPoint]:
    """Return the points of all series, by time. A value that is not finite is left out."""
    every = [*(_job_points(run) if run.is_job else _step_points(run)), *_link_points(run)]
    finite = [point for point in every if np.isfinite(point.value)]
    return sorted(finite, key=lambda point: (point.time_s, point.series, point.at))


def _step_points(run: Run) -> Iterator[SeriesPoint]:
    times_s = run.per_step("start_s") + sum(run.phase(phase) for phase in PHASES)
    columns = {name: run.per_step(name) for name in _PER_STEP}
    columns |= {f"phase/{phase}_s": run.phase(phase) for phase in PHASES}
    for name, values in columns.items():
        series = f"train/{name}" if name in _PER_STEP else name
        for step, time_s, value in zip(run.steps, times_s, values, strict=True):
            yield SeriesPoint(series, int(step), float(time_s), float(value))
    for step, time_s, accuracy in zip(*run.evaluations(), strict=True):
        yield SeriesPoint("test/accuracy", int(step), float(time_s), float(accuracy))


def _job_points(run: Run) -> Iterator[SeriesPoint]:
    for step in timed(run):
        end_s, lasted_s = step.end_s / run.dilation, (step.length_s or 0.0) / run.dilation
        yield SeriesPoint("job/step_s", step.number, end_s, lasted_s)
        for name, spent_s in step.phases_s.items():
            yield SeriesPoint(f"phase/{name}_s", step.number, end_s, spent_s / run.dilation)
        for name, value in step.values.items():
            yield SeriesPoint(f"job/{name}", step.number, end_s, value)


def _link_points(run: Run) -> Iterator[SeriesPoint]:
    """Yield the rates of each link direction in whole seconds, in bit/s of model time."""
    for end in ends(run):
        bins, series = end.seconds(), f"link/{end.link}/{end.direction}"
        for name, rates in (("requested", bins.requested), ("delivered", bins.delivered)):
            for from_s, to_s, rate in zip(bins.start, bins.stop, rates, strict=True):
                yield SeriesPoint(f"{series}/{name}_bit_s", round(from_s), float(to_s), float(rate))


def parameters(run: Run) -> dict[str, str | int | float]:
    """Return the conditions that tell runs apart."""
    workers = sum(node["role"] == "worker" for node in run.manifest["nodes"].values())
    return {
        "scenario": str(run.manifest["scenario"]),
        "scenario_hash": str(run.manifest["scenario_hash"]),
        "algorithm": run.algorithm,
        "seed": run.seed,
        "fabric": str(run.manifest["fabric"]),
        "dilation": run.dilation,
        "workers": workers,
    }


def totals(run: Run) -> dict[str, float]:
    """Return the finite numbers of the summary by name; times in model time unless they say
    ``wall``."""
    return {
        key: float(value)
        for key, value in run.summary.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and np.isfinite(value)
    }


def reasons(run: Run) -> str:
    """Return the reasons of the verdict in one line."""
    return " | ".join(map(str, run.summary["reasons"]))


def attached(run: Run) -> list[Path]:
    """Return the files of ``ATTACHED`` that the run has."""
    return [run.path / name for name in ATTACHED if (run.path / name).is_file()]


def started_s(run: Run) -> float:
    """Return the run's start in seconds of Unix time."""
    return datetime.fromisoformat(str(run.manifest["started_utc"])).timestamp()


def to_tensorboard(runs: Sequence[Run], out: Path) -> list[Path]:
    """Write ``out/<run>/``, one log folder for each run, by PyTorch's writer. Conditions and
    verdict are hyperparameters; verdict and certificate are texts."""
    needed("tensorboard", "exports to TensorBoard")
    from torch.utils.tensorboard import SummaryWriter
    from torch.utils.tensorboard.summary import hparams

    folders = [_new(out / run.path.name) for run in runs]
    for run, folder in zip(runs, folders, strict=True):
        began_s, known = started_s(run), {f"summary/{k}": v for k, v in totals(run).items()}
        with SummaryWriter(str(folder)) as writer:
            conditions = {**parameters(run), "verdict": run.verdict}
            for part in hparams(conditions, known):
                writer._get_file_writer().add_summary(part)
            for name, value in known.items():
                writer.add_scalar(name, value, 0, began_s)
            for point in points(run):
                writer.add_scalar(point.series, point.value, point.at, began_s + point.time_s)
            writer.add_text("verdict", f"{run.verdict}. {reasons(run)}", 0, began_s)
            for path in attached(run):
                text = "\n".join(f"    {line}" for line in path.read_text().splitlines())
                writer.add_text(path.name, text, 0, began_s)
    return folders


def to_mlflow(runs: Sequence[Run], out: Path) -> list[Path]:
    """Write ``out/mlflow.db`` and ``out/artifacts/``: an experiment for each scenario, a run for
    each run, the verdict as a tag, certificate and manifest as artifacts."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    client = needed("mlflow", "exports to MLflow", "mlflow.tracking").MlflowClient(
        f"sqlite:///{(out / 'mlflow.db').resolve()}"
    )
    entities = needed("mlflow", "exports to MLflow", "mlflow.entities")
    for index, run in enumerate(runs):  # before any is written
        same = f"tags.`narrows.run` = '{run.path.name}'"
        known = client.get_experiment_by_name(str(run.manifest["scenario"]))
        if run.path.name in {other.path.name for other in runs[:index]} or (
            known is not None and client.search_runs([known.experiment_id], same)
        ):
            raise _twice(run.path.name, out)
    for run in runs:
        name, artifacts = str(run.manifest["scenario"]), (out / "artifacts").resolve()
        experiment = client.get_experiment_by_name(name)
        number = (
            client.create_experiment(name, artifacts.as_uri())
            if experiment is None
            else experiment.experiment_id
        )
        began_ms = round(1e3 * started_s(run))
        tags = {"verdict": run.verdict, "reasons": reasons(run), "narrows.run": run.path.name}
        key = client.create_run(number, began_ms, tags, run.path.name).info.run_id
        metrics = [
            entities.Metric(p.series, p.value, began_ms + round(1e3 * p.time_s), p.at)
            for p in points(run)
        ]
        metrics += [
            entities.Metric(f"summary/{name}", value, began_ms, 0)
            for name, value in totals(run).items()
        ]
        for first in range(0, len(metrics), _MOST_METRICS):
            client.log_batch(key, metrics=metrics[first : first + _MOST_METRICS])
        client.log_batch(
            key, params=[entities.Param(k, str(v)) for k, v in parameters(run).items()]
        )
        for path in attached(run):
            client.log_artifact(key, str(path))
        ended_ms = began_ms + round(1e3 * float(run.summary["time_s"]))
        client.set_terminated(key, "FINISHED", ended_ms)
    return [out / "mlflow.db", out / "artifacts"]


def to_wandb(runs: Sequence[Run], out: Path) -> list[Path]:
    """Write ``out/wandb/offline-run-…`` for each run, for ``wandb sync``: the verdict as a tag, the
    certificate as an artifact. Series of links have the axis ``second``, all others ``step``."""
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    wandb = needed("wandb", "exports to Weights & Biases")
    folders = []
    for run in runs:
        settings = wandb.Settings(
            mode="offline", console="off", silent=True, disable_code=True, disable_git=True,
            x_disable_stats=True, x_disable_meta=True, x_save_requirements=False, save_code=False,
        )  # fmt: skip
        log = wandb.init(
            project=PROJECT, group=str(run.manifest["scenario"]), name=run.path.name,
            dir=str(out), config=parameters(run), tags=[run.verdict], notes=reasons(run),
            settings=settings,
        )  # fmt: skip
        folders.append(Path(log.settings.sync_dir))
        log.define_metric("*", step_metric="step")
        log.define_metric("link/*", step_metric="second")
        every = points(run)
        for (time_s, of_link, at), same in groupby(every, key=_axis):
            values = {point.series: point.value for point in same}
            log.log({("second" if of_link else "step"): at, "time_s": time_s, **values})
        log.summary.update({f"summary/{name}": value for name, value in totals(run).items()})
        log.summary["verdict"] = run.verdict
        artifact = wandb.Artifact(f"records-{run.path.name}"[:128], "certificate")
        for path in attached(run):
            artifact.add_file(str(path))
        log.log_artifact(artifact)
        log.finish()
    return folders


def _axis(point: SeriesPoint) -> tuple[float, bool, int]:
    return point.time_s, point.series.startswith("link/"), point.at


def _new(folder: Path) -> Path:
    if folder.exists():
        raise _twice(folder.name, folder.parent)
    return folder


def _twice(run: str, out: Path) -> InputError:
    hint = "Give another folder, or remove it"
    return InputError(f"{str(out)!r} has an export of {run!r} already", where="--out", hint=hint)


def write_tables(runs: Sequence[Run], out: Path, ending: str) -> list[Path]:
    """Write every table of all ``runs`` as ``out/<table>.<ending>``, ``csv`` or ``parquet``; those
    without rows are left out. Files of an earlier export are replaced."""
    files = []
    for name in TABLES:
        if rows := [row for run in runs for row in tabulated(run, name)]:
            data = io.BytesIO()
            if ending == "csv":
                names = columns(rows)
                data.write(to_csv([{key: row.get(key) for key in names} for row in rows]).encode())
            else:
                frame(rows).write_parquet(data)
            files.append(write_data_atomically(out / f"{name}.{ending}", data.getvalue()))
    return files


FORMATS: Mapping[str, Callable[[Sequence[Run], Path], list[Path]]] = {
    "tensorboard": to_tensorboard,
    "wandb": to_wandb,
    "mlflow": to_mlflow,
    "csv": lambda runs, out: write_tables(runs, out, "csv"),
    "parquet": lambda runs, out: write_tables(runs, out, "parquet"),
}
"""Every format by its name: writes runs into a folder, returns what was written."""


def export(runs: Sequence[Run], format_name: str, out: Path) -> list[Path]:
    """Write ``runs`` into the folder ``out``, made if need be, in a format of ``FORMATS``; return
    the paths. Raises InputError, and MachineError where a package is missing."""
    if format_name not in FORMATS:
        hint = f"Formats are {', '.join(FORMATS)}"
        raise InputError(f"there is no format {format_name!r}", where="--to", hint=hint)
    new = not out.exists()
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot be made: {error.strerror}", where=str(out)) from None
    try:
        return FORMATS[format_name](runs, out)
    except BaseException:
        if new:
            with suppress(OSError):  # something was written already
                out.rmdir()
        raise
