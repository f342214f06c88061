"""A whole training run in containers over impaired links, in a guest, as a user would start it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from verdict_rig import accepted_run

from testbed.host import images

SCENARIO = """
name: impaired
nodes: {server: {role: server}, worker: {role: worker, count: 2}}
links:
  default:
    up: {rate: 10 Mbit/s, queue: 100 ms, delay: 10 ms, jitter: 1 ms, distribution: normal, loss: 0.002}
    down: {rate: 10 Mbit/s, queue: 100 ms, delay: 10 ms}
events:
  - {kind: step, links: [worker-0], direction: up, at: 12 s, rate: 5 Mbit/s, delay: 30 ms}
train:
  {task: digits, model: mlp, batch: 8, optimizer: {name: sgd, lr: 0.1}, pace: 4 s, stop: {steps: 6}}
algorithms: [none]
seeds: [1]
"""


def _run(tmp_path: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    scenario = tmp_path / "impaired.yaml"
    scenario.write_text(SCENARIO)
    command = [sys.executable, "-m", "testbed", "run", str(scenario), "--guest", *flags]
    return subprocess.run(
        [*command, "--out", str(tmp_path), "--json"], capture_output=True, text=True, check=False
    )


@pytest.mark.docker
@pytest.mark.root
@pytest.mark.timed
@pytest.mark.judged
@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_containers_over_impaired_links(tmp_path: Path) -> None:
    images.ensure()
    done = _run(tmp_path, "--fabric", "docker")
    assert done.stdout, done.stderr
    (run,) = json.loads(done.stdout)["runs"]
    assert run["steps"] == 6, done.stderr
    directory = Path(run["dir"])
    # A guest has one processor, which may be too busy for a verdict.
    assert accepted_run(directory, done.returncode) == run["verdict"]
    assert directory.parent == tmp_path / "runs"

    manifest = json.loads((directory / "manifest.json").read_text())
    assert manifest["fabric"] == "docker"
    assert manifest["machine"]["kernel"] != f"Linux {os.uname().release}"
    delays = [link["line"]["impairments"]["delay_ns"] for link in manifest["links"]]
    assert delays == 6 * [10_000_000]

    summary = json.loads((directory / "summary.json").read_text())
    for measure in ("changes", "min_rtt", "byte_identity"):
        assert summary["measures"][measure]["state"] == "valid", summary["measures"][measure]
    # Packets are drawn by chance: one time in a thousand their share is outside its interval.
    loss = summary["measures"]["loss"]
    assert loss["state"] in ("valid", "degraded"), loss
    certificate = json.loads((directory / "certificate.json").read_text())
    assert certificate["verdict"] == run["verdict"]
    assert (directory / "log" / "worker-1.log").exists()


def test_nothing_can_be_kept_standing(tmp_path: Path) -> None:
    done = _run(tmp_path, "--keep")
    assert done.returncode == 2 and "--keep" in done.stderr
