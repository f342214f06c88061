"""Real runs of exchanges that are not in lockstep, and of workers that are killed meanwhile."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from command_rig import Command, Write, summaries
from verdict_rig import accepted

WAIT_S = 300.0
"""Another run may have the machine."""

pytestmark = [pytest.mark.root, pytest.mark.timeout(700)]


def slower(path: str, more: str = "") -> str:
    """A scenario's file with few steps, each with time to spare on a busy machine. ``more``: lines of it."""
    text = Path(path).read_text()
    assert "pace: 200 ms" in text
    Path(path).write_text(text.replace("pace: 200 ms", "pace: 250 ms") + more)
    return path


def killed_after_some_steps(command: Command, node: str) -> float:
    command.until(lambda: len(command.steps()) > 10, WAIT_S)
    os.kill(command.node(node), signal.SIGKILL)
    return time.monotonic()


def ended(command: Command, *lost: Collection[str]) -> list[dict[str, Any]]:
    """The summaries of runs that all came to their end, in their order. ``lost``: whom each run was to lose."""
    code, _, err = command.finish(WAIT_S)
    runs = summaries(command.folder)
    assert len(runs) == len(lost), err
    for run, names in zip(runs, lost, strict=True):
        accepted(run, run["verdict"] == "invalid", names)
        assert run["ended"] and run["lost"] == list(names), err
        assert run["verdict"] == "valid" or run["reasons"][0] in err
    assert code == any(run["verdict"] == "invalid" for run in runs), err
    return runs


@pytest.mark.judged
def test_asynchronous_and_backup_runs_end_well(
    tmp_path: Path, scenario: Write, nothing_left: set[str]
) -> None:
    path = slower(scenario(steps=20, algorithms="asgd, asgd-s1, backup-1"))
    free, bound, backup = ended(Command(tmp_path, "run", path), (), (), ())
    for run in (free, bound, backup):
        assert run["steps"] == 20
    for run in (free, bound):
        assert run["mean_staleness"] is not None and run["accuracy"] > 0.5
    assert bound["max_staleness"] <= 3  # two steps of one worker between two of the other


# every day test_exchange_failures.py takes a worker from an exchange with backups
@pytest.mark.parametrize("algorithm", ["asgd", pytest.param("backup-1", marks=pytest.mark.nightly)])
@pytest.mark.judged
def test_a_run_goes_on_without_a_killed_worker_and_the_next_has_it_back(
    tmp_path: Path, scenario: Write, nothing_left: set[str], algorithm: str
) -> None:
    path = slower(scenario(steps=14, algorithms=f"{algorithm}, none"))
    command = Command(tmp_path, "run", path)
    killed_after_some_steps(command, "worker-1")
    first, second = ended(command, ("worker-1",), ())
    assert first["steps"] == second["steps"] == 14
    assert any("worker-1 was lost" in reason for reason in first["reasons"])


@pytest.mark.nightly  # every day test_run_failures.py kills a worker in lockstep
def test_in_lockstep_the_loss_of_one_is_the_end(
    tmp_path: Path, scenario: Write, nothing_left: set[str]
) -> None:
    command = Command(tmp_path, "run", scenario(steps=2000, algorithms="none"))
    killed = killed_after_some_steps(command, "worker-1")
    code, _, err = command.finish(30.0)
    assert code == 1 and time.monotonic() - killed < 10.0
    assert re.search(r"node 'worker-1' was lost at step \d+, while (gathering|sending)", err), err


@pytest.mark.judged
def test_a_worker_that_hangs_is_gone_on_without(
    tmp_path: Path, scenario: Write, nothing_left: set[str]
) -> None:
    path = slower(scenario(steps=28, algorithms="asgd"), "peer_timeout: 4 s")
    command = Command(tmp_path, "run", path)
    command.until(lambda: len(command.steps()) > 10, WAIT_S)
    os.kill(command.node("worker-0"), signal.SIGSTOP)
    (run,) = ended(command, ("worker-0",))
    assert run["steps"] == 28
