"""``testbed run --fabric docker`` as a user runs it, and the death of a container."""

import json
import re
import subprocess
import time
from pathlib import Path

import pytest
from command_rig import Command, Write

pytestmark = [pytest.mark.docker, pytest.mark.timeout(240)]


def test_a_run_in_containers(
    tmp_path: Path, scenario: Write, image: str, nothing_left: set[str]
) -> None:
    path = scenario(algorithms="none, adatopk")
    command = Command(tmp_path, "run", path, "--fabric", "docker", "--json")
    code, out, err = command.finish(120.0)
    runs = json.loads(out)["runs"]
    assert code == (1 if "invalid" in {run["verdict"] for run in runs} else 0), err
    for run in runs:
        directory = Path(run["dir"])
        summary = json.loads((directory / "summary.json").read_text())
        assert run["steps"] == 25 and run["accuracy"] > 0.3
        assert summary["measures"]["byte_identity"]["state"] == "valid", summary["reasons"]
        assert "worker-1" in (directory / "compose.yaml").read_text()
        assert (directory / "log" / "worker-1.log").exists()


def test_a_killed_container_is_named_with_its_step(
    tmp_path: Path, scenario: Write, image: str, nothing_left: set[str]
) -> None:
    command = Command(tmp_path, "run", scenario(steps=2000), "--fabric", "docker")
    command.until(lambda: len(command.steps()) > 10, 90.0)
    listed = subprocess.run(
        ["docker", "ps", "-q", "--filter", "label=narrows.node=worker-1"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    subprocess.run(["docker", "kill", listed.stdout.strip()], capture_output=True, check=True)
    killed = time.monotonic()
    code, _, err = command.finish(60.0)
    assert time.monotonic() - killed < 15.0
    assert code == 1
    assert re.search(r"node 'worker-1' was lost at step \d+", err), err
    assert len(command.steps()) > 10
