"""Coded exchange between real nodes: the same training as in virtual time, bit by bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from command_rig import trained

from testbed.records.run_directory import read_events, read_json

pytestmark = [pytest.mark.root, pytest.mark.timeout(400)]

STEPS, WORKERS = 4, 5
ALGORITHMS = ("cssgd-r2", "grouped-r2", "combined-r2", "replicated-r2")
SCENARIO = f"""
name: coded
nodes: {{worker: {{role: worker, count: {WORKERS}}}}}
links:
  default: {{up: {{rate: 20 Mbit/s, queue: 50 ms}}, down: {{rate: 20 Mbit/s, queue: 50 ms}}}}
train: {{task: digits, model: mlp, batch: 24, optimizer: {{name: sgd, lr: 0.1}}, pace: 400 ms,
  stop: {{steps: {STEPS}}}, evaluate_every: {STEPS}}}
algorithms: [{", ".join(ALGORITHMS)}]
congestion: cubic
"""


def told(folder: Path, fabric: str) -> dict[str, dict[str, Any]]:
    """What the runs on ``fabric`` recorded, by algorithm and kind, and their summaries."""
    paths = {run["algorithm"]: Path(run["dir"]) for run in trained(folder, SCENARIO, fabric, 300.0)}
    return {
        name: {"summary": [read_json(path / "summary.json")], **read_events(path)}
        for name, path in paths.items()
    }


def test_the_four_schemes_train_as_in_virtual_time(tmp_path: Path, nothing_left: set[str]) -> None:
    real, virtual = told(tmp_path / "netns", "netns"), told(tmp_path / "sim", "sim")
    assert set(real) == set(virtual) == set(ALGORITHMS)
    for name in ALGORITHMS:
        ours, theirs = real[name], virtual[name]
        sent = [
            {(e["node"], e["step"]): e["payload_crc"] for e in found["step"]}
            for found in (ours, theirs)
        ]
        assert len(sent[0]) == STEPS * WORKERS
        assert sent[0] == sent[1], name
        bytes_sent = [
            {(e["node"], e["step"]): (e["packets"], e["bytes_sent"], e["received"]) for e in found["coded"]}
            for found in (ours, theirs)
        ]  # fmt: skip
        assert bytes_sent[0] == bytes_sent[1], name
        (summary,) = ours["summary"]
        assert summary["accuracy"] == theirs["summary"][0]["accuracy"]
        assert summary["measures"]["byte_identity"]["state"] == "valid", summary["reasons"]
