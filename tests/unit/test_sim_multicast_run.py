"""Whole runs in virtual time of workers that multicast their gradients to each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from virtual_run import carried_out

from testbed.fabric.sim.endpoint import packet_bytes
from testbed.records.run_directory import read_events, read_json, read_jsonl

WORKERS, STEPS = 4, 6
SCENARIO = f"""
name: multicast
nodes: {{worker: {{role: worker, count: {WORKERS}}}}}
links:
  default: {{up: {{rate: 5 Mbit/s, queue: 200 ms}}, down: {{rate: 40 Mbit/s, queue: 50 ms}}}}
train: {{task: digits, model: mlp, batch: 32, optimizer: {{name: sgd, lr: 0.1}}, pace: 100 ms,
  stop: {{steps: {STEPS}}}, evaluate_every: 3}}
algorithms: [ssgd, ssgd-multicast]
seeds: [1]
"""
LOSSY = SCENARIO.replace("queue: 50 ms", "queue: 50 ms, loss: 0.02")


def runs(folder: Path, text: str = SCENARIO, **options: Any) -> dict[str, Path]:
    """Directories by algorithm; all runs are valid."""
    done = carried_out(folder, text, **options).runs
    assert {run["verdict"] for run in done} == {"valid"}
    return {run["algorithm"]: Path(run["dir"]) for run in done}


def delivered(directory: Path, direction: str) -> float:
    """Bits that the workers' links carried."""
    samples = [s for s in read_jsonl(directory / "links.jsonl") if s["kind"] == "sample"]
    return float(sum(s["delivered_bits"] for s in samples if s["direction"] == direction))


def test_one_copy_leaves_every_worker(tmp_path: Path) -> None:
    found = runs(tmp_path)
    unicast, multicast = (read_json(directory / "summary.json") for directory in found.values())
    assert unicast["bytes_up"] == (WORKERS - 1) * multicast["bytes_up"]
    assert unicast["bytes_down"] == multicast["bytes_down"] == unicast["bytes_up"]
    assert unicast["accuracy"] == multicast["accuracy"]
    pace_s = 0.1
    saved = (unicast["step_s"] - pace_s) / (multicast["step_s"] - pace_s)
    assert saved == pytest.approx(WORKERS - 1, rel=0.05)
    frame = read_events(found["ssgd-multicast"])["step"][0]["bytes_up"]
    sent = WORKERS * STEPS * 8 * packet_bytes(frame)
    assert sent < delivered(found["ssgd-multicast"], "up") < 1.02 * sent
    down = delivered(found["ssgd-multicast"], "down")
    assert (WORKERS - 1) * sent < down < 1.02 * (WORKERS - 1) * sent


def test_what_is_lost_is_repaired_and_the_run_repeats(tmp_path: Path) -> None:
    clean = runs(tmp_path / "clean", algorithms=["ssgd-multicast"])["ssgd-multicast"]
    first, again = (
        runs(tmp_path / name, LOSSY, algorithms=["ssgd-multicast"])["ssgd-multicast"]
        for name in ("first", "again")
    )
    assert delivered(first, "up") > 1.03 * delivered(clean, "up")
    assert (first / "links.jsonl").read_bytes() == (again / "links.jsonl").read_bytes()
    for step in zip(*(read_events(directory)["step"] for directory in (first, again)), strict=True):
        assert step[0] == step[1]
    trained = [
        [(step["node"], step["step"], step["loss"]) for step in read_events(directory)["step"]]
        for directory in (clean, first)
    ]
    assert trained[0] == trained[1]
