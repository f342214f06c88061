"""Workers that are not alike, on real links: paces, labels, rests, absences; what virtual time says of the same scenario."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from command_rig import Command

from testbed.records.run_directory import read_events, read_json
from testbed.runner.experiment import prepare
from testbed.runner.run import run

pytestmark = [pytest.mark.judged, pytest.mark.root, pytest.mark.timeout(700)]
SCENARIO = """
name: unlike
nodes: {server: {role: server}, worker: {role: worker, count: 3}}
links:
  default: {up: {rate: 40 Mbit/s, queue: 50 ms}, down: {rate: 40 Mbit/s, queue: 50 ms}}
train:
  task: digits
  model: mlp
  optimizer: {name: sgd, lr: 0.1, momentum: 0.5}
  pace: {name: lognormal, median: 80 ms, sigma: 0.4}
  slow: {worker-2: 2}
  split: {name: dirichlet, alpha: 0.3}
  stop: {steps: 20}
  evaluate_every: 10
algorithms: [topk-0.1]
congestion: cubic
"""
PARTIAL = SCENARIO.replace("  stop:", "  participation: {workers: 2}\n  stop:")
CHURN = SCENARIO + "events: [{kind: absent, nodes: [worker-1], at: 500 ms, for: 1500 ms}]\n"
DRAWN = ("step", "pace_s", "loss", "payload_crc", "sent_count", "bytes_up")


def real(folder: Path, text: str) -> Path:
    """A run that came to its end, whose counts and replicas agree."""
    path = folder / "unlike.yaml"
    path.write_text(text)
    command = Command(folder / "real", "run", str(path), "--fabric", "netns")
    command.accept(600.0)
    (directory,) = command.runs()
    summary = read_json(directory / "summary.json")
    assert summary["ended"] and summary["steps"] == 20, summary["reasons"]
    assert summary["measures"]["frame_identity"]["state"] == "valid", summary["reasons"]
    done = read_json(directory / "evidence.json")["nodes"]
    (parameters,) = {message["summary"]["parameters"] for message in done.values()}
    assert parameters is not None, "nobody has said what it has learnt"
    return directory


def virtual(folder: Path) -> Path:
    (entry,) = run(prepare(folder / "unlike.yaml"), "sim", folder / "sim", quiet=True).runs
    return Path(entry["dir"])


def picked(records: Sequence[dict[str, Any]], *keys: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(one[key] for key in ("node", *keys)) for one in records)


def test_both_fabrics_draw_the_same(tmp_path: Path, nothing_left: set[str]) -> None:
    there = read_events(real(tmp_path, PARTIAL))
    here = read_events(virtual(tmp_path))
    assert picked(there["step"], *DRAWN) == picked(here["step"], *DRAWN)
    assert picked(there["rest"], "step", "bytes_down") == picked(here["rest"], "step", "bytes_down")
    assert there["labels"] == here["labels"]
    assert [one["others"] for one in there["round"]] == [one["others"] for one in here["round"]]
    for step in there["step"]:
        assert step["overran"] or step["compute_s"] == pytest.approx(step["pace_s"], abs=0.05)


def test_a_worker_leaves_and_returns(tmp_path: Path, nothing_left: set[str]) -> None:
    directory = real(tmp_path, CHURN)
    events = read_events(directory)
    (away,) = events["away"]
    missed = set(range(away["step"], away["returned"] + 1))
    mine = {one["step"] for one in events["step"] if one["node"] == "worker-1"}
    assert missed and mine == set(range(1, 21)) - missed
    assert away["asked_s"] >= 2.0 and away["bytes_down"] >= 2 * 4 * events["step"][0]["size"]
