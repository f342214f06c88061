"""Tests of time are tried again where the hypervisor had the processors or the machine stood still, and only there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from stolen import Processors

CONFTEST = """
import pytest, sys
sys.path.insert(0, {tests!r})
import stolen

stolen.Processors.lacking = lambda self: stolen.Lacking({share}, {stalled_s}, {locked_s})

def pytest_runtest_protocol(item, nextitem):
    return stolen.carry_out(item, nextitem)
"""
TESTS = """
import pytest
tries = []

@pytest.fixture(scope="module")
def made():
    tries.append("made")
    if tries.count("made") < {good}:
        raise RuntimeError("too late")
    return 1

def test_measures():
    tries.append("test")
    assert tries.count("test") >= {good}

def test_uses(made):
    assert made == 1
"""


@pytest.mark.parametrize(
    ("share", "stalled_s", "locked_s", "good", "outcomes", "noted"),
    [
        (0.0, 0.0, 0.0, 1, "2 passed", 0),
        (0.3, 0.3, 0.0, 1, "2 passed", 0),
        (0.3, 0.0, 0.0, 2, "2 passed", 2),
        (0.3, 0.0, 0.0, 3, "2 passed", 4),
        (0.3, 0.0, 0.0, 4, "2 skipped", 6),
        (0.04, 0.0, 0.0, 4, "1 failed, 1 error", 6),
        (0.01, 0.004, 0.0, 2, "1 failed, 1 error", 0),
        (0.0, 0.02, 0.0, 3, "2 passed", 4),
        (0.0, 0.02, 0.0, 4, "2 skipped", 6),
        (0.0, 0.008, 0.0, 4, "1 failed, 1 error", 6),
        (0.0, 0.0, 0.1, 3, "2 passed", 4),
        (0.0, 0.0, 0.1, 4, "1 failed, 1 error", 6),
    ],
)
def test_a_failure_counts_unless_the_processors_were_taken(
    tmp_path: Path,
    share: float,
    stalled_s: float,
    locked_s: float,
    good: int,
    outcomes: str,
    noted: int,
) -> None:
    (tmp_path / "conftest.py").write_text(
        CONFTEST.format(
            tests=str(Path(__file__).parents[1]),
            share=share,
            stalled_s=stalled_s,
            locked_s=locked_s,
        )
    )
    (tmp_path / "test_some.py").write_text(TESTS.format(good=good))
    notes = tmp_path / "notes"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        env={**os.environ, "NARROWS_TRIED_AGAIN": str(notes)},
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == (1 if "failed" in outcomes else 0), done.stdout
    assert f"\n{outcomes} in " in done.stdout, done.stdout
    lines = notes.read_text().splitlines() if notes.exists() else []
    assert len(lines) == noted
    end = (
        f"{share:.0%} of the processors' time was taken by others, one stood still for {stalled_s * 1e3:.0f} ms, "
        f"devices were locked for {locked_s * 1e3:.0f} ms"
    )
    assert all(line.endswith(end) for line in lines)


def test_the_share_is_one_of_all_processors_time() -> None:
    with Processors() as processors:
        assert 0.0 <= processors.lacking().stolen <= 1.0


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a real-time thread")
def test_a_machine_that_stands_still_is_seen() -> None:
    """Its threads are stopped as all of this machine's would be."""
    with Processors() as processors:
        looking = processors._looking
        looking.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, looking.pid, os.WSTOPPED | os.WNOWAIT)
        time.sleep(0.3)
        looking.send_signal(signal.SIGCONT)
        time.sleep(0.1)
        assert processors.lacking().stalled_s > 0.2
        time.sleep(0.05)
        assert processors.lacking().stalled_s < 0.2
