"""Whatever may go wrong during a run: it is named, records are kept, nothing is left behind."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command_rig import (
    Command,
    Write,
    ours,
    settle,
)

pytestmark = [pytest.mark.root, pytest.mark.timeout(180)]


def test_a_killed_worker_is_named_with_its_step(
    tmp_path: Path, scenario: Write, nothing_left: set[str]
) -> None:
    command = Command(tmp_path, "run", scenario(steps=2000))
    command.until(lambda: len(command.steps()) > 10)
    os.kill(command.node("worker-1"), signal.SIGKILL)
    killed = time.monotonic()
    code, _, err = command.finish(30.0)
    assert time.monotonic() - killed < 10.0
    assert code == 1
    assert re.search(
        r"node 'worker-1' was lost at step \d+(, while \w+)?: killed by signal 9", err
    ), err
    assert len(command.steps()) > 10
    summary = json.loads(next(tmp_path.glob("runs/*/summary.json")).read_text())
    assert summary["verdict"] == "invalid" and summary["steps"] > 0


def test_a_stopped_worker_is_missed(
    tmp_path: Path, scenario: Write, nothing_left: set[str]
) -> None:
    command = Command(tmp_path, "run", scenario(steps=2000))
    command.until(lambda: len(command.steps()) > 10)
    os.kill(command.node("worker-0"), signal.SIGSTOP)
    code, _, err = command.finish(30.0)
    assert code == 1
    assert "node 'worker-0' was lost" in err


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("victim", ["worker-1", "server"])
def test_overlapped_steps_end_with_a_lost_node(
    tmp_path: Path, scenario: Write, nothing_left: set[str], victim: str, number: signal.Signals
) -> None:
    command = Command(tmp_path, "run", scenario(steps=2000, algorithms="topk-0.1+overlap"))
    command.until(lambda: len(command.steps()) > 10)
    os.kill(command.node(victim), number)
    struck = time.monotonic()
    code, _, err = command.finish(40.0)
    assert time.monotonic() - struck < 30.0
    assert code == 1 and "Traceback" not in err
    assert re.search(rf"node '{victim}' was lost at step \d+", err), err
    assert len(command.steps()) > 10


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_keeps_what_is_finished(
    tmp_path: Path, scenario: Write, nothing_left: set[str], number: signal.Signals
) -> None:
    command = Command(tmp_path, "run", scenario(steps=2000))
    command.until(lambda: len(command.steps()) > 10)
    command.process.send_signal(number)
    code, _, err = command.finish(30.0)
    assert code == 1
    assert "interrupted" in err and "Traceback" not in err
    assert len(command.steps()) > 10


def test_a_killed_agent_ends_the_run(
    tmp_path: Path, scenario: Write, nothing_left: set[str]
) -> None:
    command = Command(tmp_path, "run", scenario(steps=2000))
    command.until(lambda: len(command.steps()) > 10)
    os.kill(command.agent(), signal.SIGKILL)
    code, _, err = command.finish(30.0)
    assert code == 1 and "agent" in err and "Traceback" not in err


def test_a_killed_testbed_leaves_nothing_that_clean_does_not_remove(
    tmp_path: Path, scenario: Write, nothing_left: set[str]
) -> None:
    command = Command(tmp_path, "run", scenario(steps=2000))
    command.until(lambda: len(command.steps()) > 10)
    command.process.kill()
    command.process.communicate()
    settle(nothing_left)
    subprocess.run([sys.executable, "-m", "testbed", "clean"], check=True, timeout=60)


def test_keep_leaves_a_failed_run_standing(
    tmp_path: Path, scenario: Write, nothing_left: set[str]
) -> None:
    command = Command(tmp_path, "run", scenario(steps=2000), "--keep")
    command.until(lambda: len(command.steps()) > 10)
    os.kill(command.node("worker-1"), signal.SIGKILL)
    code, _, _ = command.finish(30.0)
    assert code == 1
    standing = ours() - nothing_left
    assert {name.rpartition("-")[2] for name in standing} >= {"switch", "server"}
    subprocess.run([sys.executable, "-m", "testbed", "clean", "--all"], check=True, timeout=60)


def test_what_the_kernel_cannot_do_is_refused_first(
    tmp_path: Path, scenario: Write, nothing_left: set[str]
) -> None:
    path = Path(scenario())
    path.write_text(path.read_text().replace("queue: 50 ms}}", "queue: 50 ms, delay: 10 ms}}"))
    text = path.read_text().replace(
        "up: {rate: 40 Mbit/s, queue: 50 ms}", "up: {rate: 40 Mbit/s, queue: 50 ms, delay: 5 ms}"
    )
    path.write_text(text)
    code, _, err = Command(tmp_path, "run", str(path)).finish()
    assert code == 3
    assert "netem" in err and "delay" in err
