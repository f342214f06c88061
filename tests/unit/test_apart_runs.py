"""Whole runs, in virtual time, of exchanges whose workers are not in lockstep."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from virtual_run import carried_out

from testbed.errors import InputError, NodeLost
from testbed.runner.experiment import prepare

SCENARIO = """
name: apart
nodes: {server: {role: server}, worker: {role: worker, count: 3}}
links:
  default: {up: {rate: 20 Mbit/s, queue: 50 ms}, down: {rate: 20 Mbit/s, queue: 50 ms}}
  worker-2: {up: {rate: 4 Mbit/s, queue: 50 ms}, down: {rate: 4 Mbit/s, queue: 50 ms}}
train: {task: digits, model: mlp, batch: 32, optimizer: {name: sgd, lr: 0.1}, pace: 100 ms,
  stop: {steps: 20}, evaluate_every: 5}
algorithms: [asgd]
seeds: [1]
events: []
"""
KILLED = SCENARIO.replace("events: []", "events: [{kind: kill, nodes: [worker-1], at: 1 s}]")


def summaries(folder: Path, text: str, algorithms: list[str]) -> list[dict[str, Any]]:
    runs = carried_out(folder, text, algorithms=algorithms).runs
    return [json.loads((Path(run["dir"]) / "summary.json").read_text()) for run in runs]


def test_stragglers_hold_up_nobody(tmp_path: Path) -> None:
    slow, free, backup = summaries(tmp_path, SCENARIO, ["none", "asgd", "backup-1"])
    assert {run["verdict"] for run in (slow, free, backup)} == {"valid"}
    assert {run["steps"] for run in (slow, free, backup)} == {20}
    assert free["time_s"] < 0.8 * slow["time_s"] and backup["time_s"] < 0.8 * slow["time_s"]
    assert 1 < free["mean_staleness"] < free["max_staleness"]
    assert slow["mean_staleness"] is None and not slow["dropped"] and not slow["lost"]
    assert set(backup["dropped"]) == {"worker-2"}


@pytest.mark.parametrize("algorithm", ["asgd", "asgd-s1", "backup-1"])
def test_a_killed_worker_is_named_and_gone_on_without(tmp_path: Path, algorithm: str) -> None:
    (run,) = summaries(tmp_path, KILLED, [algorithm])
    assert (run["verdict"], run["ended"], run["lost"]) == ("valid", True, ["worker-1"])
    assert run["steps"] == 20
    assert any("worker-1 was lost" in reason for reason in run["reasons"])


def test_records_are_the_same_byte_for_byte(tmp_path: Path) -> None:
    def events(folder: Path) -> dict[str, bytes]:
        (run,) = carried_out(folder, KILLED).runs
        return {path.name: path.read_bytes() for path in Path(run["dir"], "events").iterdir()}

    assert events(tmp_path / "one") == events(tmp_path / "two")


def test_in_lockstep_and_beyond_the_spares_a_killed_worker_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(NodeLost, match="'worker-1' was lost at step"):
        carried_out(tmp_path / "ps", KILLED, algorithms=["none"])
    both = KILLED.replace("nodes: [worker-1]", "nodes: [worker-1, worker-0]")
    with pytest.raises(NodeLost, match="'worker-0' was lost at step"):
        carried_out(tmp_path / "backup", both, algorithms=["backup-1"])


@pytest.mark.parametrize(
    ("old", "new", "algorithm", "said"),
    [
        ("{role: server}", "{role: server, count: 2}", "asgd", "has one server, and there are 2"),
        ("count: 3", "count: 2", "backup-2", "does not wait for 2 workers, and there are only 2"),
        ("pace: 100 ms", "gradients: none, pace: 100 ms", "asgd", "`train.gradients` is none"),
    ],
)
def test_what_cannot_be_run_is_refused(
    tmp_path: Path, old: str, new: str, algorithm: str, said: str
) -> None:
    path = tmp_path / "refused.yaml"
    text = SCENARIO.replace(old, new, 1).replace(
        "  worker-2: {up: {rate: 4 Mbit/s, queue: 50 ms}, down: {rate: 4 Mbit/s, queue: 50 ms}}\n",
        "",
    )
    path.write_text(text.replace("[asgd]", "[none]"))
    with pytest.raises(InputError, match=said):
        prepare(path, [algorithm])


def test_very_many_workers_cannot_be_apart(tmp_path: Path) -> None:
    many = SCENARIO.replace("count: 3", "count: 33").replace("batch: 32", "batch: 8")
    with pytest.raises(InputError, match="share one replica"):
        carried_out(tmp_path, many)
