"""``testbed run --fabric docker`` as a user runs it: with racks, cross traffic and events of nodes, one of which dies."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from command_rig import Command
from crossed_rig import TRAFFIC, of, records, write
from rights_rig import RunningCommand, assert_documented, run_in
from standing import assert_gone
from verdict_rig import accepted_runs

from testbed.fabric.netns import run_tag
from testbed.links.network.namespaces import NAMED

pytestmark = [pytest.mark.judged, pytest.mark.docker, pytest.mark.timeout(400)]
STEPS = 28
EVENTS = (
    "{kind: pause, nodes: [worker-1], at: 1 s, for: 1 s}, "
    "{kind: kill, nodes: [noise-1], at: 1500 ms, restart_after: 500 ms}"
)


@dataclass
class Finished:
    """A run of two algorithms that came to its end. ``runs``: as it told of them."""

    folder: Path
    code: int
    runs: list[dict[str, Any]]

    def directories(self) -> list[Path]:
        return [Path(run["dir"]) for run in self.runs]


@pytest.fixture(scope="module")
def finished(image: str, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp("crossed")
    path = write(folder, traffic=TRAFFIC, events=EVENTS, steps=STEPS, algorithms="none, adatopk")
    command = Command(folder, "run", path, "--fabric", "docker", "--json")
    code, out, err = command.finish(280.0)
    assert out, err
    assert_gone(run_in(folder))
    return Finished(folder, code, json.loads(out)["runs"])


def test_a_run_in_containers(finished: Finished) -> None:
    assert [run["algorithm"] for run in finished.runs] == ["none", "adatopk"]
    verdicts = accepted_runs(finished.directories(), finished.code)
    assert [run["verdict"] for run in finished.runs] == verdicts
    for run, directory in zip(finished.runs, finished.directories(), strict=True):
        summary = json.loads((directory / "summary.json").read_text())
        assert run["steps"] == STEPS and run["accuracy"] > 0.2
        assert summary["measures"]["byte_identity"]["state"] == "valid", summary["reasons"]
        assert "worker-1" in (directory / "compose.yaml").read_text()
        assert (directory / "log" / "worker-1.log").exists()


def test_nodes_are_paused_killed_and_started_again(finished: Finished) -> None:
    told = records(finished.folder, "links.jsonl")
    assert len(told) == 2
    for links in told:
        actions = [record["action"] for record in links if record["kind"] == "node"]
        assert sorted(actions) == ["kill", "pause", "restart", "resume"]


def test_racks_carry_cross_traffic(finished: Finished) -> None:
    met = records(finished.folder, "traffic.jsonl")
    evidence = [json.loads((run / "evidence.json").read_text()) for run in finished.directories()]
    for bursts, found in zip(met, evidence, strict=True):
        assert of(bursts, "bulk", "received")[0]["bytes"] > 500_000
        assert of(bursts, "steady", "sent")[-1]["start_s"] >= 2.0  # by the host that came back
        held = {(link["link"], link["direction"]): link["class_bytes"] for link in found["links"]}
        assert held["a", "up"] > of(bursts, "bulk", "received")[0]["bytes"]


# every day test_fabric.py sees the cause of a container's death, and test_run_failures.py has the step
@pytest.mark.nightly
def test_a_killed_container_is_named_with_its_step(
    tmp_path: Path, image: str, nothing_left: None
) -> None:
    """Until then all processes have the rights that are documented; of others' processes root alone may read them."""
    bulk = "{name: bulk, from: noise-0, to: noise-1, kind: tcp, at: 0 s}"
    path = write(tmp_path, traffic=bulk, steps=2000)
    command = Command(tmp_path, "run", path, "--fabric", "docker")
    command.until(lambda: len(command.steps()) > 10, 200.0)
    running = RunningCommand(command.process.pid, run_in(tmp_path), "run", tmp_path, {"0": "root"})
    rows = running.rows() if os.getuid() == 0 else []
    worker = f"narrows-{run_in(tmp_path)}-worker-1"
    subprocess.run(["docker", "kill", worker], capture_output=True, check=True)
    killed = time.monotonic()
    code, _, err = command.finish(60.0)
    assert time.monotonic() - killed < 15.0
    assert code == 1
    assert re.search(r"node 'worker-1' was lost at step \d+", err), err
    assert len(command.steps()) > 10
    if rows:
        assert_documented(rows, "root", "run")


# every day test_killed_containers.py kills command and agent while there is a rack
@pytest.mark.nightly
def test_clean_removes_racks_after_everyone_was_killed(
    tmp_path: Path, image: str, nothing_left: None
) -> None:
    away = "{kind: pause, nodes: [worker-1], at: 1 s, for: 9 s}"
    path = write(tmp_path, events=away, steps=500)
    command = Command(tmp_path, "run", path, "--fabric", "docker")
    command.until(
        lambda: any("pause" in str(found) for found in records(tmp_path, "links.jsonl")), 200.0
    )
    agent = command.agent()
    os.kill(agent, signal.SIGKILL)
    command.process.kill()
    command.process.communicate()
    (racks,) = NAMED.glob(f"nw-{run_tag(run_in(tmp_path))}-racks")
    subprocess.run([sys.executable, "-m", "testbed", "clean"], check=True, timeout=90)
    assert not racks.exists()
