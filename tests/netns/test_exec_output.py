"""Output that nobody reads, and what is left in the background, do not hold up a job."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command_rig import command_line, descendants
from verdict_rig import accepted_runs

pytestmark = [pytest.mark.timeout(120)]
SCENARIO = """
name: printing
nodes: {worker: {role: worker, count: 2}}
links: {default: {up: {rate: 40 Mbit/s, queue: 50 ms}, down: {rate: 40 Mbit/s, queue: 50 ms}}}
"""


def start(folder: Path, script: str, **environment: str) -> subprocess.Popen[bytes]:
    (folder / "scenario.yaml").write_text(SCENARIO)
    return subprocess.Popen(
        [sys.executable, "-m", "testbed", "exec", str(folder / "scenario.yaml"), "--quiet",
         "--out", str(folder), "--", "sh", "-c", script],
        env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def test_a_reader_that_leaves_does_not_hold_it_up(tmp_path: Path) -> None:
    process = start(tmp_path, "for i in 1 2 3 4; do echo line $i; sleep 0.5; done")
    assert process.stdout is not None and process.stderr is not None
    assert b"line 1" in process.stdout.readline()
    process.stdout.close()
    with process.stderr:
        said = process.stderr.read()
    accepted_runs(tmp_path.glob("runs/*"), process.wait(60))
    assert b"Traceback" not in said and b"BrokenPipe" not in said
    kept = [path.read_text().splitlines() for path in tmp_path.glob("runs/*/log/worker-*.log")]
    assert kept == [[f"line {i}" for i in range(1, 5)]] * 2


def test_what_a_terminal_cannot_show_is_kept_as_it_was(tmp_path: Path) -> None:
    process = start(tmp_path, r"printf '\303\251\n'", PYTHONIOENCODING="ascii")
    out, _ = process.communicate(timeout=60)
    accepted_runs(tmp_path.glob("runs/*"), process.returncode)
    assert sorted(out.splitlines()) == [b"worker-0 | ?", b"worker-1 | ?"]
    assert [path.read_bytes() for path in tmp_path.glob("runs/*/log/*.log")] == [b"\xc3\xa9\n"] * 2


def test_what_is_left_in_the_background_ends_with_the_job(tmp_path: Path) -> None:
    process = start(tmp_path, "sleep 300.125 & echo $!")
    out, _ = process.communicate(timeout=60)
    accepted_runs(tmp_path.glob("runs/*"), process.returncode)
    left = [int(line.split()[-1]) for line in out.splitlines()]
    assert len(left) == 2
    # of one that waits to be reaped it is empty
    assert not [pid for pid in left if "300.125" in command_line(pid)]


def test_a_killed_testbed_leaves_nothing_that_clean_does_not_find(tmp_path: Path) -> None:
    environment = {"NARROWS_STATE": str(tmp_path / "state")}
    process = start(tmp_path, "echo $NARROWS_MARKS; sleep 300.25", **environment)
    assert process.stdout is not None
    marks = Path(process.stdout.readline().split()[-1].decode())
    assert marks.is_socket()
    children = descendants(process.pid)
    process.kill()
    process.wait(30)
    process.stdout.close()
    assert process.stderr is not None
    process.stderr.close()
    give_up = time.monotonic() + 20
    while any(command_line(pid) for pid in children):
        assert time.monotonic() < give_up, "its processes go on"
        time.sleep(0.1)
    assert marks.parent.exists(), "nothing is left for `clean`"
    clean = [sys.executable, "-m", "testbed", "clean"]
    done = subprocess.run(clean, env={**os.environ, **environment}, capture_output=True, check=True)
    assert not marks.parent.exists(), done.stdout
