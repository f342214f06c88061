"""A scenario whose nodes need more open files than this machine allows is refused before anything is made."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from testbed.errors import MachineError
from testbed.process import environment
from testbed.runner import preflight

SCENARIO = """
name: very-many
nodes: {first: {role: worker, count: 6000}, second: {role: worker, count: 6000}}
links: {default: {up: {rate: 1 Mbit/s, queue: 50 ms}, down: {rate: 1 Mbit/s, queue: 50 ms}}}
"""


@pytest.mark.root
def test_more_nodes_than_files_can_be_open(tmp_path: Path) -> None:
    (tmp_path / "scenario.yaml").write_text(SCENARIO)
    command = [sys.executable, "-P", "-m", "testbed", "exec", "scenario.yaml", "--", "true"]
    ended = subprocess.run(
        ["sh", "-c", 'ulimit -n 4096; exec "$@"', "sh", *command],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert ended.returncode == 3, ended.stderr
    assert "12000 nodes need some" in ended.stderr and "may have 4096 here" in ended.stderr
    assert "at most 672 nodes" in ended.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["scenario.yaml"]


def test_every_process_of_a_job_needs_open_files_and_so_does_its_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A node with 3 processes takes 3 files for each of them and 3 for itself."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1, 64 + 12 * 10))
    preflight._check_open_files(10, 3)
    with pytest.raises(MachineError, match="11 nodes need some 196 open files") as refused:
        preflight._check_open_files(11, 3)
    assert "at most 10 nodes" in str(refused.value)
    preflight._check_open_files(20, 0)
    with pytest.raises(MachineError, match="at most 20 nodes"):
        preflight._check_open_files(21, 0)
