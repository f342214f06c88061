"""What an engine cannot give, and nodes that do not come back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from command_rig import Command, Write
from crossed_rig import records, write
from rights_rig import run_in

from testbed.host.checks import POOL
from testbed.process import environment

pytestmark = [
    pytest.mark.docker,
    pytest.mark.timeout(400),
    pytest.mark.usefixtures("image", "nothing_left"),
]
OCCUPY = (
    f"ip link add taken type veth peer name other && ip address add {POOL[1]}/{POOL.prefixlen} dev taken && "
    'ip link set other up && ip link set taken up && exec "$@"'
)


@pytest.mark.root
def test_no_free_subnet_is_told_with_what_to_do(tmp_path: Path, scenario: Write) -> None:
    """The command has a network of its own, in which all that nodes could get is somebody's already."""
    state = tmp_path / "state"
    run = [sys.executable, "-m", "testbed", "run", scenario(), "--fabric", "docker"]
    done = subprocess.run(
        ["unshare", "--net", "sh", "-c", OCCUPY, "sh", *run, "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env=environment(NARROWS_STATE=str(state)),
    )
    assert done.returncode == 3, done.stderr
    assert f"no two free /24 subnets are left in {POOL}" in done.stderr
    assert "testbed clean" in done.stderr and "docker network ls" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("runs/*")) and not list(state.glob("*.journal"))


@pytest.mark.root
@pytest.mark.nightly
def test_a_host_that_does_not_come_back_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is to start again for the second algorithm, and its container's first process is stopped.

    Engines let a container that they have paused go on when it is sent a signal.
    """
    monkeypatch.setenv("NARROWS_START_S", "30")
    event = "{kind: kill, nodes: [noise-1], at: 500 ms}"
    path = write(tmp_path, events=event, steps=60, algorithms="none, topk-0.15")
    command = Command(tmp_path, "run", path, "--fabric", "docker")
    command.until(
        lambda: any("kill" in str(found) for found in records(tmp_path, "links.jsonl")), 200.0
    )
    container = f"narrows-{run_in(tmp_path)}-noise-1"
    inspected = subprocess.run(
        ["docker", "inspect", "--format", "{{.State.Pid}}", container],
        check=True,
        capture_output=True,
    )
    os.kill(int(inspected.stdout), signal.SIGSTOP)
    code, _, err = command.finish(120.0)
    assert code == 1 and "not back: noise-1" in err, err
    summaries = sorted(tmp_path.glob("runs/*/summary.json"))
    assert [json.loads(path.read_text())["ended"] for path in summaries] == [True, False]
