"""What a container may use, tried by jobs that take as much as they get."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from command_rig import Command

from testbed.topology import Machine

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300), pytest.mark.usefixtures("image")]
SCENARIO = """
name: greedy
nodes:
  bound: {role: worker, limits: {processes: 40, memory: 256 MiB, tmp: 16 MiB}}
  free: {role: worker}
links: {default: {up: {rate: 40 Mbit/s, queue: 50 ms}, down: {rate: 40 Mbit/s, queue: 50 ms}}}
"""
GREEDY = """
import json, os, signal, time
def forked(most):
    children = []
    while len(children) < most:
        try:
            child = os.fork()
        except OSError:
            break
        if child == 0:
            time.sleep(300)
        children.append(child)
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return len(children)
def written(most_mib):
    with open("/tmp/much", "wb", buffering=0) as file:
        try:
            for number in range(most_mib):
                file.write(bytes(1 << 20))
        except OSError:
            pass
        size = file.tell()
    os.remove("/tmp/much")
    return size >> 20
def taken(mib):
    child = os.fork()
    if child == 0:
        kept = b"x" * (mib << 20)
        os._exit(0)
    return os.waitpid(child, 0)[1]
print("found", json.dumps([forked(100), written(64), taken(400)]))
"""


def found(log: Path) -> list[int]:
    (line,) = [line for line in log.read_text().splitlines() if line.startswith("found")]
    numbers: list[int] = json.loads(line.removeprefix("found"))
    return numbers


def test_a_node_gets_no_more_than_its_limits(tmp_path: Path) -> None:
    os.chown(tmp_path, 10001, 10001)
    (tmp_path / "scenario.yaml").write_text(SCENARIO)
    options = [str(tmp_path / "scenario.yaml"), "--fabric", "docker"]
    command = Command(tmp_path, "exec", *options, "--", "python", "-c", GREEDY)
    _, _, err = command.finish(200.0)
    (run,) = command.runs()
    processes, written, killed = found(run / "log" / "bound.log")
    assert 10 < processes < 40 and written == 16 and killed == 9, err
    assert found(run / "log" / "free.log") == [100, 64, 0]
    services: dict[str, Any] = json.loads((run / "manifest.json").read_text())["nodes"]
    assert services["bound"]["limits"] == {
        "processes": 40, "memory_bytes": 256 << 20, "tmp_bytes": 16 << 20,
    }  # fmt: skip
    assert Machine.here().memory_bytes > 1 << 30
