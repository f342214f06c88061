"""Open files: the testbed's own processes may have as many as the host allows, jobs as many as their user's shell says."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from command_rig import Command, Write, command_line, descendants

pytestmark = pytest.mark.timeout(180)
SOFT = 333
JOB = """
name: some-job
nodes: {worker: {role: worker, count: 2}}
links: {default: {up: {rate: 40 Mbit/s, queue: 50 ms}, down: {rate: 40 Mbit/s, queue: 50 ms}}}
"""
TOLD = "ulimit -Sn; env | grep -c NARROWS_OPEN_FILES; sleep 300"


@pytest.fixture(autouse=True)
def few_files() -> Iterator[None]:
    """What is started has a low soft limit."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (SOFT, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def limits(pid: int) -> tuple[int, int]:
    """Soft and hard limit of a process's open files."""
    lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
    (soft, hard) = next(line.split()[3:5] for line in lines if line.startswith("Max open files"))
    return int(soft), int(hard)


def test_a_job_has_its_users_limit_and_the_testbed_the_highest(
    tmp_path: Path, nothing_left: None
) -> None:
    (tmp_path / "scenario.yaml").write_text(JOB)
    scenario = str(tmp_path / "scenario.yaml")
    command = Command(tmp_path, "exec", scenario, "--seconds", "60", "--", "sh", "-c", TOLD)
    logs = [f"runs/*/log/worker-{rank}.log" for rank in range(2)]
    command.until(
        lambda: all(
            any(path.read_text().count("\n") == 2 for path in tmp_path.glob(log)) for log in logs
        )
    )
    ours = [limits(pid) for pid in (command.process.pid, command.agent())]
    command.process.terminate()
    command.finish()
    said = [path.read_text().split() for path in tmp_path.glob("runs/*/log/worker-*.log")]
    assert said == [[str(SOFT), "0"]] * 2
    assert all(soft == hard > SOFT for soft, hard in ours)


def outputs(pid: int) -> set[str]:
    """Where a process's output and error output go."""
    return {str(Path(f"/proc/{pid}/fd/{number}").readlink()) for number in (1, 2)}


def pipes_of(pid: int) -> Iterator[str]:
    """Pipes that a process has open."""
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            if (file := str(path.readlink())).startswith("pipe:"):
                yield file


def test_a_nodes_process_has_its_users_limit(
    tmp_path: Path, nothing_left: None, scenario: Write
) -> None:
    """And no file for its output, which would have no limit: the testbed reads it from a pipe, and bounds the log."""
    command = Command(tmp_path, "run", scenario(steps=500), "--fabric", "netns")
    command.until(command.steps)
    forker = next(
        pid
        for pid in descendants(command.process.pid)
        if "testbed.fabric.fork_server" in command_line(pid)
        and pid not in [command.node(name) for name in ("server", "worker-0", "worker-1")]
    )
    found = [limits(pid)[0] for pid in (forker, command.node("server"), command.node("worker-0"))]
    output = set().union(*(outputs(command.node(name)) for name in ("server", "worker-0")))
    pipes = set(pipes_of(command.process.pid))
    command.process.terminate()
    command.finish()
    assert len(output) == 2 and output <= pipes
    assert found == [resource.getrlimit(resource.RLIMIT_NOFILE)[1], SOFT, SOFT]
