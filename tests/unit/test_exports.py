"""Runs in the formats of other programs, read back by these programs' own readers."""

from __future__ import annotations

import csv
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from command_here import call, carried_out_in
from synthetic_job import Job, make_job
from synthetic_run import PACE_S, Recipe, make_run

from analysis.exports import FORMATS, SeriesPoint, parameters, points, started_s, totals
from analysis.load import TABLES, Run, load, needed, tabulated
from testbed.errors import InputError, MachineError
from testbed.fidelity.verdict import Verdict

STEPS = 20
CERTIFICATE = '{\n  "verdict": "degraded"\n}\n'
READER = "reads with {package}, which the tests do not install: pip install {package}"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    verdict = Verdict("degraded", ["late by 12 ms", "busy"])
    recipe = Recipe("topk-0.15", 0.15, steps=STEPS, dilation=2.0, verdict=verdict)
    path = make_run(tmp_path_factory.mktemp("runs"), recipe)
    (path / "certificate.json").write_text(CERTIFICATE)
    return path


@pytest.fixture(scope="module")
def run(path: Path) -> Run:
    return load(path)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return load(make_job(tmp_path_factory.mktemp("jobs"), Job(steps=5, dilation=2.0)))


def series(run: Run) -> dict[str, list[SeriesPoint]]:
    every: dict[str, list[SeriesPoint]] = {}
    for point in points(run):
        every.setdefault(point.series, []).append(point)
    return every


def export(path: Path, out: Path, to: str) -> list[str]:
    """Export by the command; the paths that it names."""
    ended = carried_out_in(out, "export", str(path), "--to", to, "--out", "x", "--json")
    assert ended.returncode == 0, ended.stderr
    said = json.loads(ended.stdout)
    assert said["format"] == to
    assert all((out / file).exists() for file in said["files"])
    return list(said["files"])


def test_series_are_in_model_time_and_have_the_records_values(run: Run) -> None:
    every = series(run)
    records = [r for r in run.events["step"] if r["step"] == 7]
    (loss,) = [p for p in every["train/loss"] if p.at == 7]
    assert loss.value == pytest.approx(sum(r["loss"] for r in records) / 4)
    assert loss.time_s == pytest.approx(records[0]["end_s"] / 2, abs=1e-2)
    computed = [p.value for p in every["phase/compute_s"]]
    assert len(computed) == STEPS and all(0.99 < v / (PACE_S / 2) < 1.01 for v in computed)
    assert [p.at for p in every["test/accuracy"]] == [9, 19]
    assert [p.at for p in every["link/server/down/requested_bit_s"][:3]] == [0, 1, 2]


def test_rates_of_links_are_those_of_the_model(run: Run) -> None:
    rates = [p.value for p in series(run)["link/worker-0/up/requested_bit_s"]]
    assert rates == pytest.approx([200e6] * len(rates))


@pytest.mark.parametrize("diverged", [None, math.nan])
def test_a_value_that_is_not_finite_is_left_out(run: Run, diverged: float | None) -> None:
    """Records have it as null."""
    broken = [{**r, "loss": diverged if r["step"] == 3 else r["loss"]} for r in run.events["step"]]
    other = Run(run.path, run.manifest, run.summary, {**run.events, "step": broken}, run.links)
    assert [p.at for p in series(other)["train/loss"]] == [n for n in range(STEPS) if n != 3]
    least, largest = other.range_per_step("loss")
    assert math.isnan(least[3]) and math.isnan(largest[3]) and least[4] <= largest[4]


def test_a_job_has_the_lengths_phases_and_values_of_its_steps(job: Run) -> None:
    every = series(job)
    steps = [step for step in job.known.steps if step.length_s is not None]
    assert [p.value for p in every["job/step_s"]] == [s.length_s / 2 for s in steps if s.length_s]
    assert [p.at for p in every["job/loss"]] == [1, 2, 3, 4, 5]
    for phase, name in (("compute", "phase/compute_s"), ("exchange", "phase/exchange_s")):
        assert [p.value for p in every[name]] == [s.phases_s[phase] / 2 for s in steps]
    for name in ("job/step_s", "job/loss", "phase/compute_s", "phase/exchange_s"):
        assert [p.time_s for p in every[name]] == [s.end_s / 2 for s in steps], name
    assert not any(name.startswith("train/") for name in every)


def test_tables_have_every_record_in_model_time(run: Run) -> None:
    steps = tabulated(run, "steps")
    assert len(steps) == STEPS * 4
    record = run.events["step"][5]
    (row,) = [r for r in steps if (r["node"], r["step"]) == (record["node"], record["step"])]
    assert row["start_s"] == record["start_s"] / 2
    assert (row["algorithm"], row["bytes_up"], row["density"]) == (
        "topk-0.15",
        record["bytes_up"],
        0.15,
    )
    samples = [r for r in run.links if r["kind"] == "sample"]
    assert len(tabulated(run, "links")) == len(samples)
    recorded = [2 * r["rate_bits"] for r in run.links if r["kind"] == "change"]
    assert [change["rate"] for change in tabulated(run, "changes")] == recorded
    assert len(set(recorded)) > 2
    (summary,) = tabulated(run, "summary")
    assert (summary["verdict"], summary["reasons"]) == ("degraded", "late by 12 ms | busy")
    with pytest.raises(InputError, match="Tables are steps"):
        tabulated(run, "rounds")


def test_a_table_of_a_job_has_its_steps(job: Run) -> None:
    rows = tabulated(job, "steps")
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5]
    assert rows[1]["length_s"] == pytest.approx(rows[1]["end_s"] - rows[1]["start_s"])
    assert rows[1]["value_loss"] == pytest.approx(0.75)


def test_csv_has_all_runs_and_is_the_same_again(path: Path, tmp_path: Path) -> None:
    other = make_run(tmp_path, Recipe("none", seed=2, steps=3, scenario="else", hash="f" * 16))
    command = ["export", str(path), str(other), str(path), "--to", "csv", "--out", "x"]
    ended = carried_out_in(tmp_path, *command)
    assert (ended.returncode, ended.stderr) == (0, "")
    names = ["steps", "evaluations", "links", "changes", "summary"]
    assert ended.stdout.split() == [f"x/{name}.csv" for name in names]
    with (tmp_path / "x" / "steps.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["run"] for row in rows] == [path.name] * 4 * STEPS + [other.name] * 4 * 3
    first = load(path).events["step"][0]
    assert float(rows[0]["loss"]) == first["loss"] and rows[0]["node"] == first["node"]
    before = {file.name: file.read_bytes() for file in (tmp_path / "x").iterdir()}
    carried_out_in(tmp_path, *command)
    assert {file.name: file.read_bytes() for file in (tmp_path / "x").iterdir()} == before


def test_what_cannot_be_exported_is_said_in_a_sentence(path: Path, tmp_path: Path) -> None:
    unknown = carried_out_in(tmp_path, "export", str(path), "--to", "excel")
    assert unknown.returncode == 2
    assert f"--to: there is no format 'excel'. Formats are {', '.join(FORMATS)}" in unknown.stderr
    nowhere = carried_out_in(tmp_path, "export", str(tmp_path), "--to", "csv")
    assert nowhere.returncode == 2 and "no manifest.json" in nowhere.stderr
    (tmp_path / "file").touch()
    blocked = carried_out_in(tmp_path, "export", str(path), "--to", "csv", "--out", "file")
    assert blocked.returncode == 2 and "file: cannot be" in blocked.stderr


def test_an_export_that_fails_leaves_no_empty_folder(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FORMATS, "csv", lambda *_: needed("no_such_tracker", "exports to it"))
    for kept in (False, True):
        result = call("export", str(path), "--to", "csv", "--out", str(tmp_path / "x"))
        assert isinstance(result.exception, MachineError)
        assert (tmp_path / "x").exists() == kept
        (tmp_path / "x").mkdir(exist_ok=True)


def test_a_missing_package_is_named_with_the_command() -> None:
    with pytest.raises(MachineError) as error:
        needed("no_such_tracker", "exports to it")
    assert str(error.value).startswith("exports to it need the package 'no_such_tracker'")
    assert f"Run `{sys.executable} -P -m pip install no_such_tracker`" in str(error.value)


def test_the_page_names_every_format_and_its_notebook_lines_run(path: Path, tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "exporting.md").read_text()
    assert re.findall(r"testbed export \S+ --to (\w+) --out \w+", page) == [
        "csv", "parquet", "tensorboard", "mlflow", "wandb",
    ]  # fmt: skip
    assert set(re.findall(r"^\| `(\w+)` \| ", page, re.MULTILINE)) == {*FORMATS, *TABLES}
    (block,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    code = compile(block.replace("runs/…", str(path)), "page", "exec")
    if find_spec("polars") is None:
        with pytest.raises(MachineError, match="need the package 'polars'"):
            exec(code, {})
        return
    names: dict[str, Any] = {}
    exec(code, names)
    assert len(names["steps"]) == 4 * STEPS and "requested_rate" in names["links"].columns


def reader(package: str) -> Any:
    return pytest.importorskip(package, reason=READER.format(package=package))


@pytest.mark.optional
def test_polars_reads_the_frame_and_the_parquet_files(path: Path, run: Run, tmp_path: Path) -> None:
    polars = reader("polars")
    frame = run.to_frame()
    assert frame.shape[0] == 4 * STEPS
    assert frame["loss"].to_list() == [r["loss"] for r in run.events["step"]]
    assert run.to_frame("links")["busy"].dtype == polars.Boolean
    for file in export(path, tmp_path, "parquet"):
        name = Path(file).stem
        assert polars.read_parquet(tmp_path / file).equals(run.to_frame(name))


@pytest.mark.optional
def test_tensorboard_reads_the_series_and_the_verdict(path: Path, run: Run, tmp_path: Path) -> None:
    reader("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (folder,) = export(path, tmp_path, "tensorboard")
    own = EventAccumulator(str(tmp_path / folder), {"scalars": 0, "tensors": 0}).Reload()
    every = series(run)
    assert set(own.Tags()["scalars"]) == set(every) | {f"summary/{name}" for name in totals(run)}
    for name, expected in every.items():
        scalars = own.Scalars(name)
        assert [s.step for s in scalars] == [p.at for p in expected]
        assert [s.value for s in scalars] == pytest.approx([p.value for p in expected], rel=1e-6)
        times_s = [started_s(run) + p.time_s for p in expected]
        assert [s.wall_time for s in scalars] == pytest.approx(times_s, abs=1e-6)
    texts = {tag: own.Tensors(tag)[0].tensor_proto.string_val[0].decode() for tag in own.Tags()["tensors"]}  # fmt: skip
    assert texts["verdict/text_summary"] == "degraded. late by 12 ms | busy"
    assert '"verdict": "degraded"' in texts["certificate.json/text_summary"]
    hyperparameters = own.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    assert b"verdict" in hyperparameters and b"degraded" in hyperparameters
    again = carried_out_in(tmp_path, "export", str(path), "--to", "tensorboard", "--out", "x")
    assert again.returncode == 2 and "has an export of" in again.stderr


@pytest.mark.optional
@pytest.mark.filterwarnings("ignore")
def test_mlflow_reads_the_series_the_tag_and_the_certificate(
    path: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = reader("mlflow")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    export(path, tmp_path, "mlflow")
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path}/x/mlflow.db")
    experiment = client.get_experiment_by_name("demo")
    (own,) = client.search_runs([experiment.experiment_id], "tags.verdict = 'degraded'")
    assert own.info.run_name == path.name and own.info.status == "FINISHED"
    assert own.data.params == {key: str(value) for key, value in parameters(run).items()}
    assert own.data.metrics["summary/time_s"] == run.summary["time_s"]
    for name, expected in series(run).items():
        history = client.get_metric_history(own.info.run_id, name)
        found = sorted((m.step, m.value) for m in history)
        assert found == [(p.at, p.value) for p in expected]
    artifact = client.download_artifacts(own.info.run_id, "certificate.json", str(tmp_path))
    assert Path(artifact).read_text() == CERTIFICATE
    new = make_run(tmp_path, Recipe("none", steps=2))
    again = carried_out_in(tmp_path, "export", str(new), str(path), "--to", "mlflow", "--out", "x")
    assert again.returncode == 2 and "has an export of" in again.stderr
    kept = [found.info.run_name for found in client.search_runs([experiment.experiment_id])]
    assert kept == [path.name], "of runs that are refused none is written"


def framed(data: bytes) -> Iterator[bytes]:
    """Messages of a W&B file: LevelDB's log format in blocks of 32 KiB, after a header of 7 bytes.

    W&B has no public reader of it; its messages are decoded by its own classes.
    """
    assert data[:4] == b":W&B"
    at, parts = 7, b""
    while at + 7 <= len(data):
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        parts += data[at + 7 : at + 7 + length]
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""
        at += 7 + length
        if (left := 32768 - at % 32768) < 7:
            at += left


@pytest.mark.optional
def test_wandb_reads_the_series_the_tag_and_the_certificate(
    path: Path, run: Run, tmp_path: Path
) -> None:
    reader("wandb")
    from wandb.proto.wandb_internal_pb2 import Record

    command = [sys.executable, "-m", "testbed", "export", str(path), "--to", "wandb", "--out", "x"]
    own = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=own, capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    (file,) = (tmp_path / done.stdout.strip()).glob("*.wandb")
    records = [Record.FromString(data) for data in framed(file.read_bytes())]
    (about,) = [r.run for r in records if r.HasField("run")]
    assert list(about.tags) == ["degraded"] and about.display_name == path.name
    rows = [
        {i.key or ".".join(i.nested_key): json.loads(i.value_json) for i in r.history.item}
        for r in records if r.HasField("history")
    ]  # fmt: skip
    for name, expected in series(run).items():
        axis = "second" if name.startswith("link/") else "step"
        found = [(row[axis], row[name]) for row in rows if name in row]
        assert found == [(p.at, pytest.approx(p.value)) for p in expected]
    (artifact,) = [r.request.log_artifact.artifact for r in records if r.request.HasField("log_artifact")] or [r.artifact for r in records if r.HasField("artifact")]  # fmt: skip
    assert "certificate.json" in {entry.path for entry in artifact.manifest.contents}


@pytest.mark.optional
@pytest.mark.filterwarnings("ignore")
def test_the_notebook_runs_on_a_comparison(path: Path, tmp_path: Path) -> None:
    reader("polars")
    reader("ipykernel")
    client, notebooks = reader("nbclient"), reader("nbformat")
    other = make_run(path.parents[1], Recipe("none", seed=1, steps=3))
    comparison = tmp_path / "comparisons" / "demo"
    comparison.mkdir(parents=True)
    entries = [{"dir": str(own)} for own in (path, other)]
    (comparison / "comparison.json").write_text(json.dumps({"runs": entries}))
    page = Path(__file__).parents[2] / "docs" / "how-to" / "frames.ipynb"
    notebook = notebooks.read(page, 4)
    assert all(not cell.get("outputs") for cell in notebook.cells), "saved without outputs"
    client.NotebookClient(notebook, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [o.data for cell in notebook.cells for o in cell.get("outputs", []) if "data" in o]
    assert "('none', 1, 'valid'), ('topk-0.15', 1, 'degraded')" in shown[0]["text/plain"]
    assert "image/png" in shown[-1]
