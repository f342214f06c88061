"""Run directories of somebody else's, changed in hostile ways: a report, or a sentence that says where; and soon."""

from __future__ import annotations

import io
import json
import os
import resource
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fuzz_rig import EXAMPLES, TIMEOUT_S, altered, changed, fuzzed, written
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from synthetic_job import Job, make_job
from synthetic_run import Recipe, make_run

from analysis.figures import figures_of
from analysis.load import load_all
from analysis.report import render, sheet_of
from analysis.tables import to_csv
from testbed.cli import main
from testbed.errors import InputError
from testbed.records.run_directory import readable

pytestmark = pytest.mark.timeout(TIMEOUT_S)
SOON_S = 30.0
MOST_BYTES = 2 << 30
"""More memory than one report of a few kilobytes of records may take."""
drawn = settings(max_examples=max(3, EXAMPLES // 400), deadline=None)
"""Figures take seconds."""


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("compared")
    runs = [
        make_run(out, Recipe(name, density, steps=4))
        for name, density in (("none", 1.0), ("topk-0.1", 0.1))
    ]
    folder = out / "comparisons" / "x"
    folder.mkdir(parents=True)
    (folder / "comparison.json").write_text(json.dumps({"runs": [{"dir": str(run)} for run in runs]}))  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_job(tmp_path_factory.mktemp("job"), Job(steps=4))


def files(folder: Path) -> list[Path]:
    """Every record of a comparison, or of a run."""
    top = folder.parent.parent if (folder / "comparison.json").exists() else folder
    return sorted(path for path in top.rglob("*.json*"))


def hostile_file(draw: st.DrawFn, path: Path) -> bytes:
    """The same file, but changed as text, or in its values."""
    data = path.read_bytes()
    if draw(st.sampled_from(["values", "values", "values", "bytes"])) == "bytes":
        return draw(changed(data))
    if path.suffix == ".json":
        return written(draw(altered(json.loads(data))))
    lines = data.splitlines()
    at = draw(st.integers(0, len(lines) - 1))
    some = draw(altered([json.loads(line) for line in lines[at : at + 2]]))
    if not isinstance(some, list):
        some = [some]
    return b"\n".join([*lines[:at], *map(written, some), *lines[at + 2 :]]) + b"\n"


def used(folder: Path) -> str:
    """All of a report but the pictures."""
    runs = load_all([folder])
    sheet = sheet_of(runs)
    rows = sheet.rows(runs)
    text = io.StringIO()
    Console(file=text, width=160).print(sheet.rich_table(rows))
    for module in figures_of(runs):
        to_csv(module.data(runs))
    page = render([runs])
    assert "<script>" not in page
    return page


def refused(folder: Path, use: Callable[[Path], Any]) -> str:
    """What is said of it, if it is refused."""
    try:
        with readable([folder]):
            use(folder)
    except InputError as error:
        assert error.where or "run" in str(error) or "records" in str(error), error
        assert "MemoryError" not in str(error), error
        assert len(str(error)) < 6000
        return str(error)
    return ""


def with_change(data: st.DataObject, folder: Path, use: Callable[[Path], Any]) -> None:
    paths = files(folder)
    path = paths[data.draw(st.integers(0, len(paths) - 1))]
    before = path.read_bytes()
    path.write_bytes(hostile_file(data.draw, path))
    began_s = time.process_time()
    try:
        use(folder)
    finally:
        path.write_bytes(before)
    assert time.process_time() - began_s < SOON_S


@pytest.fixture(scope="module", autouse=True)
def bounded() -> Iterator[None]:
    """Who asks for more is refused it, and the machine lives."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + MOST_BYTES, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@fuzzed
@given(st.data())
def test_runs(comparison: Path, data: st.DataObject) -> None:
    with_change(data, comparison, lambda folder: refused(folder, used))


@fuzzed
@given(st.data())
def test_jobs(job: Path, data: st.DataObject) -> None:
    with_change(data, job, lambda folder: refused(folder, used))


def commands(folder: Path, out: Path) -> None:
    """As the user has them: exit code 0, or 2 with a sentence; 1 of controllers that decide otherwise."""
    run = files(folder)[-1].parent
    for arguments in (
        ["report", str(folder), "--out", str(out)],
        ["timeline", str(run), "--out", str(out / "timeline.json")],
        ["replay-controller", str(run)],
    ):
        with pytest.raises(SystemExit) as left:
            main(arguments)
        assert left.value.code in (0, 1, 2), arguments


@pytest.mark.nightly
@drawn
@given(st.data())
def test_commands(
    comparison: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    out = tmp_path_factory.mktemp("out")
    with_change(data, comparison, lambda folder: commands(folder, out))


def test_nothing_changed_is_nothing_refused(comparison: Path, job: Path) -> None:
    assert refused(comparison, used) == refused(job, used) == ""


@pytest.mark.parametrize(
    "name", ["events/worker-²-٣.jsonl", "events/x.jsonl", "events/worker-0.jsonl"]
)
@pytest.mark.parametrize("kind", ["folder", "pipe", "device", "file"])
def test_files_of_other_kinds(comparison: Path, tmp_path: Path, name: str, kind: str) -> None:
    run = tmp_path / "run"
    shutil.copytree(files(comparison)[-1].parent, run)
    path = run / name
    path.unlink(missing_ok=True)
    match kind:
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/zero")
        case _:
            path.write_text('{"kind": "x"}\n')
    said = refused(run, used)
    assert ("no regular file" in said) == (kind != "file"), said


def test_a_sentence_says_which_records_and_which_line_could_not_use_them(
    comparison: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "comparison.json").write_text('{"runs": null}')
    with pytest.raises(SystemExit) as left:
        main(["report", str(tmp_path)])
    said = capsys.readouterr().err
    assert left.value.code == 2
    assert said.startswith(f"testbed: {tmp_path}: the records cannot be used: TypeError: ")
    assert "(analysis/load.py:" in said and "Traceback" not in said


@pytest.mark.parametrize("to_s", [1e4, 1e8, 1e10, 1e18])
@pytest.mark.parametrize("key", ["from_s", "to_s"])
@pytest.mark.parametrize("of_job", [False, True])
def test_few_lines_that_speak_of_a_long_time(
    comparison: Path, job: Path, tmp_path: Path, of_job: bool, key: str, to_s: float
) -> None:
    """A link's last sample is somewhere else in time: answered soon, with no more memory than there is."""
    run = tmp_path / "run"
    shutil.copytree(job if of_job else files(comparison)[-1].parent, run)
    lines = [json.loads(line) for line in (run / "links.jsonl").read_text().splitlines()]
    last = next(line for line in reversed(lines) if line["kind"] == "sample")
    last.update({key: to_s, "to_s": to_s, "looks": [[0.02, 5]]} if key == "to_s" else {key: to_s})
    (run / "links.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (run / "summary.json").unlink()
    began_s = time.process_time()
    refused(run, used)
    assert time.process_time() - began_s < SOON_S
