"""All-reduce on real links: our ring, and gloo's operations bound to the data network."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from command_rig import Command

from testbed.records.events import PHASES, phase_s
from testbed.records.run_directory import read_events
from testbed.transport.frame import HEADER_BYTES

pytestmark = [pytest.mark.judged, pytest.mark.root, pytest.mark.timeout(240)]

WORKERS, STEPS, RATE = 3, 6, 100e6
SCENARIO = f"""
name: reduced
nodes: {{worker: {{role: worker, count: {WORKERS}}}}}
links:
  default: {{up: {{rate: 100 Mbit/s, queue: 50 ms}}, down: {{rate: 100 Mbit/s, queue: 50 ms}}}}
train: {{task: digits, model: mlp, width: 16, batch: 32, optimizer: {{name: sgd, lr: 0.1}},
  PACE slow: {{worker-1: 1.05, worker-2: 1.1}}, stop: {{steps: {STEPS}}}, evaluate_every: {STEPS}}}
algorithms:
  - ssgd
  - ring
  - ring-bf16
  - allreduce
  - allreduce-bf16
  - allgather-topk-0.05
  - {{name: peers-topk, from: topk-0.05, exchange: peers}}
  - {{name: small-buckets, from: ddp, exchange_options: {{bucket_bytes: 100000, first_bucket_bytes: 20000}}}}
congestion: cubic
peer_timeout: 10 s
"""
GLOO = ("allreduce", "allreduce-bf16", "allgather-topk-0.05", "small-buckets")
MANY = 8
"""Algorithms."""
HEADERS = 1 + 66 / 1448 + 66 / 2 / 1448
"""Of TCP, on full segments, and of an acknowledgement for every second segment that comes."""


def carried_out(folder: Path, pace: str = "pace: 250 ms,") -> dict[str, Path]:
    """Directories of runs by algorithm, all of which ended as they may."""
    path = folder / "reduced.yaml"
    path.write_text(SCENARIO.replace("PACE", pace))
    out, err = Command(folder, "run", str(path), "--json", "--fabric", "netns").accept(200.0)
    found = {run["algorithm"]: Path(run["dir"]) for run in json.loads(out)["runs"]}
    assert len(found) == MANY, err
    return found


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return carried_out(tmp_path_factory.mktemp("reduced"))


def summary(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / "summary.json").read_text())
    return found


def done(directory: Path) -> dict[str, dict[str, Any]]:
    """The nodes' last messages."""
    found: dict[str, dict[str, Any]] = json.loads((directory / "evidence.json").read_text())
    return found["nodes"]


def losses(directory: Path) -> list[float]:
    """By step and rank."""
    steps = read_events(directory)["step"]
    return [s["loss"] for s in sorted(steps, key=lambda s: (s["step"], s["node"]))]


def size_of(directory: Path) -> int:
    """Elements of the model."""
    return int(read_events(directory)["step"][0]["size"])


def test_nothing_is_wrong_with_counts_and_replicas(runs: dict[str, Path]) -> None:
    for directory in runs.values():
        (parameters,) = {m["summary"]["parameters"] for m in done(directory).values()}
        assert parameters is not None, "nobody has said what it has learnt"


@pytest.mark.parametrize(
    ("name", "alike", "within"),
    [
        ("ring", "ssgd", 1e-4),
        ("ring-bf16", "ssgd", 0.05),
        ("allreduce", "ssgd", 1e-4),
        ("allreduce-bf16", "ssgd", 0.05),
        ("small-buckets", "ssgd", 1e-4),
        ("allgather-topk-0.05", "peers-topk", 0.0),
    ],
)
def test_training_is_as_with_everybodys_gradient(
    runs: dict[str, Path], name: str, alike: str, within: float
) -> None:
    assert losses(runs[name]) == pytest.approx(losses(runs[alike]), abs=within, rel=0)
    accuracies = [summary(runs[one])["accuracy"] for one in (name, alike)]
    assert accuracies[0] == pytest.approx(accuracies[1], abs=0.01)


def test_bytes_of_the_ring_are_exact(runs: dict[str, Path]) -> None:
    size = size_of(runs["ring"])
    for name, width in (("ring", 4), ("ring-bf16", 2)):
        each = 2 * (WORKERS - 1) * (width * size / WORKERS + HEADER_BYTES)
        for step in read_events(runs[name])["step"]:
            assert abs(step["bytes_up"] - each) <= 2 * (WORKERS - 1) * width
        assert summary(runs[name])["measures"]["byte_identity"]["state"] == "valid"


def test_time_of_the_ring_is_that_of_its_bytes(runs: dict[str, Path]) -> None:
    for step in read_events(runs["ring"])["step"][3 * WORKERS :]:
        assert step["delay_s"] > 8 * step["bytes_up"] / RATE


@pytest.mark.parametrize("name", GLOO)
def test_bytes_of_gloo_are_on_the_data_interface(runs: dict[str, Path], name: str) -> None:
    for message in done(runs[name]).values():
        seen, told = message["interface"], message["summary"]
        assert seen["interface"] == "data"
        for way, key in (("sent", "bytes_up"), ("received", "bytes_down")):
            assert told[key] < seen[way]
        if name in ("allreduce", "allreduce-bf16"):
            assert seen["sent"] == pytest.approx(HEADERS * told["bytes_up"], rel=0.05)
            assert seen["received"] == pytest.approx(HEADERS * told["bytes_down"], rel=0.05)


def test_bytes_of_all_reduce_are_those_of_a_ring(runs: dict[str, Path]) -> None:
    size = size_of(runs["allreduce"])
    for name, width in (("allreduce", 4), ("allreduce-bf16", 2), ("small-buckets", 4)):
        for step in read_events(runs[name])["step"]:
            expected = 2 * (WORKERS - 1) / WORKERS * width * size
            assert step["bytes_up"] == pytest.approx(expected, abs=100)


def test_sockets_of_gloo_are_not_judged(runs: dict[str, Path]) -> None:
    measure = summary(runs["allreduce"])["measures"]["byte_identity"]
    assert measure.startswith("not measured: ") and "gloo keeps no count" in measure


def overlapped(directory: Path) -> list[float]:
    """Of every step: the share of the communication that was under way while gradients were computed."""
    steps = read_events(directory)["step"]
    return [s["overlap_s"] / (s["overlap_s"] + s["delay_s"]) for s in steps]


def test_buckets_travel_while_others_are_computed(runs: dict[str, Path]) -> None:
    shares = overlapped(runs["small-buckets"])
    assert min(shares) > 0 and median(shares) > 0.1
    assert set(overlapped(runs["allreduce"])) == {0.0}
    for step in read_events(runs["small-buckets"])["step"]:
        total = sum(phase_s(step, phase) for phase in PHASES)
        assert total == pytest.approx(step["end_s"] - step["start_s"], abs=1e-6)


# every day test_gloo.py has a member leave, and test_run_failures.py kills a worker
@pytest.mark.nightly
def test_a_killed_worker_is_named(tmp_path: Path, nothing_left: set[str]) -> None:
    path = tmp_path / "killed.yaml"
    text = SCENARIO.replace("PACE", "pace: 60 ms,").replace(f"steps: {STEPS}", "steps: 2000")
    path.write_text(text)
    arguments = ("run", str(path), "--fabric", "netns", "--algo", "allreduce")
    command = Command(tmp_path, *arguments)
    command.until(lambda: len(command.steps()) > 10, 150.0)  # it may have to wait for the machine
    os.kill(command.node("worker-1"), signal.SIGKILL)
    killed = time.monotonic()
    code, _, err = command.finish(30.0)
    assert time.monotonic() - killed < 10.0
    assert code == 1
    assert re.search(r"node 'worker-1' was lost at step \d+", err), err
