"""Whole runs in virtual time whose workers are held to paces that differ."""

from __future__ import annotations

from pathlib import Path

import pytest
from virtual_run import carried_out

from testbed.records.run_directory import read_events, read_json
from testbed.scenario.load import load
from testbed.scenario.model import LogNormalPace
from testbed.training.pacing import times_of
from testbed.units import Duration

SCENARIO = """
name: unlike
nodes: {server: {role: server}, worker: {role: worker, count: 3}}
links:
  default: {up: {rate: 200 Mbit/s, queue: 50 ms}, down: {rate: 200 Mbit/s, queue: 50 ms}}
train: {task: digits, model: mlp, batch: 32, optimizer: {name: sgd, lr: 0.1}, PACE
  stop: {steps: 10}, evaluate_every: 10}
algorithms: [none]
sim: {send: 0 ms, receive: 0 ms}
"""


def ran(folder: Path, pace: str, algorithm: str = "none") -> Path:
    text = SCENARIO.replace("PACE", f"{pace},").replace("[none]", f"[{algorithm}]")
    (entry,) = carried_out(folder, text).runs
    return Path(entry["dir"])


def test_steps_take_what_was_drawn_for_them_and_say_so(tmp_path: Path) -> None:
    directory = ran(tmp_path, "pace: {name: lognormal, median: 100 ms, sigma: 0.5}")
    asked = LogNormalPace(name="lognormal", median=Duration(0.1), sigma=0.5)
    for step in read_events(directory)["step"]:
        times = times_of(asked, 1, step["node"])
        assert times is not None and step["pace_s"] == times.at(step["step"])
        assert step["compute_s"] == pytest.approx(step["pace_s"])
        assert not step["overran"]
    manifest = read_json(directory / "manifest.json")
    assert manifest["pace_s"] is None
    told = {"name": "lognormal", "usual_s": 0.1, "sigma": 0.5}
    assert manifest["pacing"]["workers"] == {f"worker-{n}": told for n in range(3)}


@pytest.mark.parametrize("slow", ["worker: 1.0", "worker-1: 4", "worker-0: 1.01, worker-1: 1.02"])
def test_a_step_is_expected_to_be_as_long_as_its_slowest_worker_makes_it(
    tmp_path: Path, slow: str
) -> None:
    """Gradients take 1.6 ms on a link, and three at once 4.9: a slow worker's comes when the link is free."""
    summary = read_json(ran(tmp_path, f"pace: 100 ms, slow: {{{slow}}}") / "summary.json")
    assert summary["verdict"] == "valid"
    assert summary["step_s"] == pytest.approx(summary["expected_step_s"], abs=0.0016)
    assert (summary["step_s"] > 0.4) == ("4" in slow)


def test_a_run_keeps_recorded_times_and_is_itself_a_scenario(tmp_path: Path) -> None:
    (tmp_path / "gpu.csv").write_text("step_ms,other_ms\n90,1\n110,2\n100,3\n")
    pace = "pace: {name: file, file: gpu.csv, column: step_ms}"
    directory = ran(tmp_path, pace)
    (tmp_path / "gpu.csv").unlink()
    assert list(load(directory / "scenario.yaml").step_times.values()) == [(0.09, 0.11, 0.1)]
    steps = read_events(directory)["step"]
    assert {round(step["pace_s"], 9) for step in steps} == {0.09, 0.11, 0.1}


def hash_of(folder: Path, pace: str) -> str:
    """The hash of a scenario whose paces are from files."""
    (folder / "paced.yaml").write_text(SCENARIO.replace("PACE", f"{pace},"))
    return load(folder / "paced.yaml").hash


def test_the_hash_depends_on_recorded_times_and_not_on_where_they_lie(tmp_path: Path) -> None:
    """Neither for everybody's pace nor for one worker's."""
    (tmp_path / "elsewhere").mkdir()
    hashes: dict[str, set[str]] = {}
    for text in ("step_ms,other_ms\n90,1\n110,2\n", "step_ms,other_ms\n90,1\n111,2\n"):
        for name in ("gpu.csv", "elsewhere/device.csv"):
            (tmp_path / name).write_text(text)
            for file in (name, str(tmp_path / name)):
                pace = f"{{name: file, file: {file}, column: step_ms}}"
                for given in (f"pace: {pace}", f"pace: 100 ms, paces: {{worker-1: {pace}}}"):
                    kind = text + given[:11]
                    hashes.setdefault(kind, set()).add(hash_of(tmp_path, given))
    assert [len(each) for each in hashes.values()] == [1] * 4
    assert len(set.union(*hashes.values())) == 4
    other = "pace: {name: file, file: gpu.csv, column: other_ms}"
    assert hash_of(tmp_path, other) not in set.union(*hashes.values())


def test_the_scenario_that_a_run_keeps_has_the_runs_hash(tmp_path: Path) -> None:
    """Its paces are in a file of another name."""
    (tmp_path / "gpu.csv").write_text("step_ms,other_ms\n90,1\n110,2\n100,3\n")
    directory = ran(tmp_path, "pace: {name: file, file: gpu.csv, column: step_ms}")
    kept = load(directory / "scenario.yaml")
    assert kept.hash == read_json(directory / "manifest.json")["scenario_hash"]


def test_layers_are_stretched_as_the_step_is(tmp_path: Path) -> None:
    overlapped = "{name: a, from: none, bucket_bytes: 1 KiB, overlap: true}"
    pace = "pace: {name: lognormal, median: 100 ms, sigma: 0.5}, profile: constant"
    directory = ran(tmp_path, pace, overlapped)
    events = read_events(directory)
    asked = {(step["node"], step["step"]): step["pace_s"] for step in events["step"]}
    assert len(set(asked.values())) == 30
    for step in events["step"]:
        assert step["compute_s"] == pytest.approx(step["pace_s"], rel=1e-6)
    for one in events["pass"]:
        spans = [*one["forward"].values(), *one["backward"].values()]
        computed = sum(to_s - from_s for from_s, to_s in one["backward"].values())
        assert len(spans) == 4
        assert computed == pytest.approx(2 / 3 * asked[one["node"], one["step"]], rel=1e-6)
