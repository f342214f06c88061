"""``testbed compare --resume``: after SIGKILL a comparison ends as if nothing had happened."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from command_here import Ended, carried_out_in
from command_rig import command_line, descendants
from virtual_run import KILL, SCENARIO

from testbed.cli.run import MARGIN, _flags
from testbed.records.run_directory import read_json
from testbed.runner.progress import Remaining
from testbed.runner.signals import only_one

TEXT = SCENARIO
RUNS, SEEDS = 4, "1-2"


def words(folder: Path, *arguments: str) -> list[str]:
    return ["compare", str(folder / "virtual.yaml"), "--quiet", *arguments]


def command(folder: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "testbed", *words(folder, *arguments)]


def carried_out(folder: Path, *arguments: str) -> Ended:
    """Without figures, which one test looks at."""
    return carried_out_in(folder, *words(folder, "--json", "--no-figures", *arguments))


def made(folder: Path, text: str = TEXT) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "virtual.yaml").write_text(text)
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What an uninterrupted comparison prints."""
    folder = made(tmp_path_factory.mktemp("whole"))
    done = carried_out(folder, "--fabric", "sim", "--seed", SEEDS)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def without_places(found: dict[str, Any]) -> dict[str, Any]:
    runs = [{key: value for key, value in run.items() if key != "dir"} for run in found["runs"]]
    return {**found, "runs": runs, "directory": ""}


def contents(directory: Path) -> dict[str, tuple[int, bytes]]:
    files = [path for path in sorted(directory.rglob("*")) if path.is_file()]
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def finished(folder: Path) -> list[Path]:
    return [path.parent for path in (folder / "runs").glob("*/summary.json")]


def killed(folder: Path, *arguments: str) -> Path:
    """The directory of a comparison whose process was killed when one of its runs was finished, and whose own
    processes have noticed that it is gone."""
    whole = command(folder, "--fabric", "sim", "--seed", SEEDS, *arguments)
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(whole, stdout=log, stderr=log, cwd=folder)
        until = time.monotonic() + 120
        while not finished(folder) and time.monotonic() < until and process.poll() is None:
            time.sleep(0.01)
        children = descendants(process.pid)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, (folder / "log").read_text()
    while any(map(command_line, children)):
        assert time.monotonic() < until
        time.sleep(0.01)
    (directory,) = (folder / "comparisons").iterdir()
    return directory


# every day test_sim_run.py carries runs out side by side; what is resumed is the same
@pytest.mark.parametrize(
    "parallel",
    [
        pytest.param((), id="one by one"),
        pytest.param(("--parallel", "2"), id="side by side", marks=pytest.mark.nightly),
    ],
)
def test_after_a_kill_it_ends_as_if_nothing_had_happened(
    whole: dict[str, Any], parallel: tuple[str, ...], tmp_path: Path
) -> None:
    folder = made(tmp_path)
    directory = killed(folder, *parallel)
    kept, begun = finished(folder), len(list((folder / "runs").iterdir()))
    before = {path: contents(path) for path in kept}
    assert 1 <= len(kept) < RUNS
    where = str(directory.relative_to(folder))
    done = carried_out(folder, "--resume", where, *parallel)
    assert done.returncode == 0, done.stderr
    assert {path: contents(path) for path in kept} == before
    assert len(list((folder / "runs").iterdir())) == begun + RUNS - len(kept)
    found = json.loads(done.stdout)
    assert without_places(found) == without_places(whole)
    used = {folder / run["dir"] for run in found["runs"]}
    assert set(kept) <= used and len(used) == RUNS
    assert json.loads((directory / "compared.json").read_text()) == found
    again = carried_out(folder, "--resume", where)
    assert json.loads(again.stdout) == found
    assert len(finished(folder)) == RUNS


@pytest.fixture(scope="module")
def over(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Where a whole comparison is."""
    folder = made(tmp_path_factory.mktemp("over"))
    assert carried_out(folder, "--fabric", "sim", "--seed", "1").returncode == 0
    (directory,) = (folder / "comparisons").iterdir()
    return folder, str(directory)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--algo", "none"], "--algo: none was given, but .* was begun with none, topk-0.01"),
        (["--sweep"], "--sweep: none, topk-0.01, topk-0.001"),
        (["--seed", "1-2"], "--seed: 1, 2 was given, but .* was begun with 1. Leave the flag out"),
        (["--fabric", "netns"], "--fabric: netns was given, but .* was begun with sim"),
        (["--out", "elsewhere"], "--out: .*elsewhere was given"),
        (["--baseline", "fp16"], "--baseline: 'fp16' is not compared. Give one of none"),
        (["--target", "90"], "--target: 90 is no accuracy"),
        (["--target", "90%"], "--target: '90%' is no number. Write a share such as 0.9"),
        (["--margin", "1%"], "--margin: '1%' is no number. Write a share such as 0.005"),
        (["--margin", "-1"], "--margin: -1 is no margin"),
    ],
)
def test_flags_that_contradict_are_refused(
    over: tuple[Path, str], flags: list[str], said: str
) -> None:
    folder, directory = over
    done = carried_out(folder, "--resume", directory, *flags)
    assert done.returncode == 2 and done.stdout == ""
    assert re.search(said, done.stderr), done.stderr


def test_flags_that_agree_are_accepted(over: tuple[Path, str]) -> None:
    folder, directory = over
    flags = ["--algo", "none", "--algo", "topk-0.01", "--seed", "1", "--fabric", "sim"]
    done = carried_out(folder, "--resume", directory, *flags, "--out", ".", "--target", "0.3")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["targets"]["none"]["0.3"]["reached"] == 1


@pytest.mark.parametrize("json_too", [False, True])
def test_whoever_goes_on_asks_for_the_same_again(json_too: bool) -> None:
    """What the comparison's directory does not keep; what was not asked for is not written."""
    flags = _flags("none", [0.5, 0.1234567], 0.02, parallel=3, as_json=json_too)
    again = [*flags, *_flags(None, [], MARGIN, parallel=1, as_json=False)]
    asked = ["--baseline", "none", "--target", "0.5", "--target", "0.1234567", "--margin", "0.02"]
    assert again == [*asked, "--parallel", "3", *(["--json"] if json_too else [])]


def test_another_scenario_is_refused(over: tuple[Path, str], tmp_path: Path) -> None:
    other = made(tmp_path, TEXT.replace("steps: 12", "steps: 13"))
    done = carried_out(other, "--resume", over[1])
    assert done.returncode == 2 and "the scenario's hash is" in done.stderr
    done = carried_out(other, "--resume", str(tmp_path))
    assert done.returncode == 2 and "holds no comparison.json" in done.stderr


def test_one_process_at_a_time_has_a_comparison(over: tuple[Path, str]) -> None:
    folder, directory = over
    with only_one(Path(directory)):
        done = carried_out(folder, "--resume", directory)
        assert done.returncode == 2 and "carried out by another process" in done.stderr
    with only_one(Path(directory)):
        pass


def test_a_failed_run_is_run_anew_and_never_counts(tmp_path: Path) -> None:
    folder = made(tmp_path, TEXT.replace("traffic:", KILL + "traffic:"))
    for count in (1, 2):
        where = [str(path) for path in folder.glob("comparisons/*")]
        how = ["--resume", *where] if where else ["--fabric", "sim", "--seed", "1"]
        done = carried_out(folder, *how)
        assert done.returncode == 1 and done.stdout == ""
        (directory,) = (folder / "comparisons").iterdir()
        assert "0 of 2 runs done" in done.stderr
        again = f"To go on: testbed compare {folder / 'virtual.yaml'} --resume comparisons/"
        assert again in done.stderr if not where else "--resume" in done.stderr
        (entry,) = read_json(directory / "comparison.json")["runs"]
        assert entry["verdict"] == "invalid" and len(list((folder / "runs").iterdir())) == count
        assert read_json(folder / entry["dir"] / "summary.json")["ended"] is False
        assert not (directory / "compared.json").exists()


def test_what_a_comparison_is_made_of_is_written_at_once(over: tuple[Path, str]) -> None:
    said = read_json(Path(over[1]) / "comparison.json")
    assert (said["fabric"], said["algorithms"], said["seeds"]) == (
        "sim",
        ["none", "topk-0.01"],
        [1],
    )
    assert said["order"] == [["none", 1], ["topk-0.01", 1]]
    assert all(took_s > 0 for took_s in said["took_s"])


def test_the_estimate_goes_by_algorithm() -> None:
    left = Remaining(["a", "b", "b", "c"])
    assert left.left_s(0.0) is None and left.words(0.0) == "0 of 4 runs done"
    left.over(0, 10.0)
    assert left.left_s(0.0) == 30.0  # nothing else is known
    left.over(1, 2.0)
    assert left.left_s(0.0) == 2.0 + 6.0  # of c: the mean of all
    left.begun(100.0)
    assert left.left_s(101.0) == 7.0 and left.left_s(150.0) == 6.0
    assert left.words(101.0) == "2 of 4 runs done, about 7 s left"
    two = Remaining(["a", "b", "b", "c"], processes=2)
    two.over(0, 10.0)
    assert two.left_s(0.0) == 15.0


def test_a_sweep_adds_what_is_not_there(tmp_path: Path) -> None:
    from testbed.runner.comparison import SWEEP, fixed_density, swept

    assert swept(["none", "topk-0.10"]) == [
        "none",
        "topk-0.10",
        *(n for n in SWEEP if n != "topk-0.1"),
    ]
    assert fixed_density("topk-0.01+int8") is None and fixed_density("adatopk") is None
    text = TEXT.replace("steps: 12", "steps: 4").replace("[none, topk-0.01]", "[none, topk-0.1]")
    folder = made(tmp_path, text)
    done = carried_out(folder, "--sweep", "--fabric", "sim", "--seed", "1")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [row["algorithm"] for row in found["algorithms"]] == [
        "none", "topk-0.1", "topk-0.001", "topk-0.003", "topk-0.01", "topk-0.03", "topk-0.3",
    ]  # fmt: skip
    assert list(folder.glob("comparisons/*/algorithms.csv"))
