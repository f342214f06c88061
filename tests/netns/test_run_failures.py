"""Whatever may go wrong during a run: it is named, records are kept, nothing is left behind."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from command_rig import Command, Write, ours, settle, summaries
from kernel_rig import has_netem

# `state`: what other tests' runs have left is not `clean`'s matter here, and nothing of theirs is taken away
pytestmark = [pytest.mark.root, pytest.mark.timeout(180), pytest.mark.usefixtures("state")]


def clean(*options: str) -> list[dict[str, list[str]]]:
    """What ``testbed clean`` says it has removed, by run."""
    command = [sys.executable, "-m", "testbed", "clean", "--json", *options]
    done = subprocess.run(command, check=True, capture_output=True, timeout=60)
    return json.loads(done.stdout)["runs"]


def silence(path: str, seconds: int) -> str:
    """The scenario, whose nodes give up who is silent for so long."""
    Path(path).write_text(f"{Path(path).read_text()}peer_timeout: {seconds} s\n")
    return path


def test_a_killed_worker_is_named_with_its_step_and_keep_leaves_the_run_standing(
    tmp_path: Path, scenario: Write, nothing_left: set[str]
) -> None:
    # who is dead need not be silent first
    command = Command(tmp_path, "run", silence(scenario(steps=2000), 120), "--keep")
    command.until(lambda: len(command.steps()) > 10)
    os.kill(command.node("worker-1"), signal.SIGKILL)
    code, _, err = command.finish(60.0)
    assert code == 1
    assert re.search(
        r"node 'worker-1' was lost at step \d+(, while \w+)?: killed by signal 9", err
    ), err
    assert len(command.steps()) > 10
    (summary,) = summaries(tmp_path)
    assert summary["verdict"] == "invalid" and summary["steps"] > 0
    standing = {name for name in ours() - nothing_left if not name.isdigit()}
    assert {name.rpartition("-")[2] for name in standing} >= {"switch", "server"}
    assert clean() == [], "what is kept is not cleaned by the way"
    assert settle({*nothing_left, *standing}) == set(), "processes are left"
    assert ours() - nothing_left == standing
    (cleaned,) = clean("--all")
    assert cleaned["removed"]


# every day a server is stopped below, and test_exchange_failures.py stops workers
@pytest.mark.nightly
def test_a_stopped_worker_is_missed(
    tmp_path: Path, scenario: Write, nothing_left: set[str]
) -> None:
    command = Command(tmp_path, "run", silence(scenario(steps=2000), 4))
    command.until(lambda: len(command.steps()) > 10)
    os.kill(command.node("worker-0"), signal.SIGSTOP)
    code, _, err = command.finish(60.0)
    assert code == 1
    assert "node 'worker-0' was lost" in err


# every day tests/unit/test_overlapped_lost.py takes each of them at any moment
@pytest.mark.parametrize(
    ("victim", "number"),
    [
        ("server", signal.SIGSTOP),
        pytest.param("worker-1", signal.SIGKILL, marks=pytest.mark.nightly),
        pytest.param("worker-1", signal.SIGSTOP, marks=pytest.mark.nightly),
        pytest.param("server", signal.SIGKILL, marks=pytest.mark.nightly),
    ],
)
def test_overlapped_steps_end_with_a_lost_node(
    tmp_path: Path, scenario: Write, nothing_left: set[str], victim: str, number: signal.Signals
) -> None:
    path = silence(scenario(steps=2000, algorithms="topk-0.1+overlap"), 4)
    command = Command(tmp_path, "run", path)
    command.until(lambda: len(command.steps()) > 10)
    os.kill(command.node(victim), number)
    code, _, err = command.finish(60.0)
    assert code == 1 and "Traceback" not in err
    assert re.search(rf"node '{victim}' was lost at step \d+", err), err
    (summary,) = summaries(tmp_path)
    assert summary["verdict"] == "invalid" and summary["steps"] > 0 and not summary["ended"]


# every day test_exec.py interrupts with SIGTERM as well
@pytest.mark.parametrize(
    ("number", "options"),
    [(signal.SIGINT, ["--keep"]), pytest.param(signal.SIGTERM, [], marks=pytest.mark.nightly)],
)
def test_interrupted_keeps_what_is_finished(
    tmp_path: Path, scenario: Write, nothing_left: set[str], number: signal.Signals, options: list[str],
) -> None:  # fmt: skip
    """A whole run, and of the one that it cuts short every step that was recorded. ``--keep`` is for failures alone."""
    path = scenario(steps=12, algorithms="none, topk-0.15")
    command = Command(tmp_path, "run", path, *options)
    command.until(lambda: len(command.steps()) > 2 * 12 + 4)
    before = command.steps()
    command.process.send_signal(number)
    code, _, err = command.finish(60.0)
    assert code == 1
    assert f"interrupted by {number.name}" in err and "Traceback" not in err
    whole, cut = sorted(summaries(tmp_path), key=lambda summary: summary["ended"], reverse=True)
    assert (whole["algorithm"], whole["ended"], whole["steps"]) == ("none", True, 12)
    assert (cut["algorithm"], cut["ended"], cut["verdict"]) == ("topk-0.15", False, "invalid")
    assert 2 <= cut["steps"] < 12 and "interrupted" in cut["reasons"][0]
    kept = {(step["node"], step["start_s"]) for step in command.steps()}
    assert kept >= {(step["node"], step["start_s"]) for step in before}
    (listed,) = tmp_path.glob("comparisons/*/comparison.json")
    runs = json.loads(listed.read_text())["runs"]
    assert [(run["algorithm"], run["steps"]) for run in runs] == [
        ("none", 12), ("topk-0.15", cut["steps"]),
    ]  # fmt: skip


def test_a_killed_agent_ends_the_run(
    tmp_path: Path, scenario: Write, nothing_left: set[str]
) -> None:
    command = Command(tmp_path, "run", scenario(steps=2000))
    command.until(lambda: len(command.steps()) > 10)
    os.kill(command.agent(), signal.SIGKILL)
    code, _, err = command.finish(60.0)
    assert code == 1 and "agent" in err and "Traceback" not in err


# every day test_killed_anywhere.py kills both in some of its states
@pytest.mark.parametrize(
    "agent", ["lives", pytest.param("is killed, too", marks=pytest.mark.nightly)]
)
def test_a_killed_testbed_leaves_nothing_that_clean_does_not_remove(
    tmp_path: Path, scenario: Write, nothing_left: set[str], agent: str
) -> None:
    """An agent that lives undoes what it made; without it everything is there for ``clean``, as control groups always are."""
    command = Command(tmp_path, "run", scenario(steps=2000))
    command.until(lambda: len(command.steps()) > 10)
    made = {name for name in ours() - nothing_left if name.startswith("nw")}
    assert made
    if agent != "lives":
        os.kill(command.process.pid, signal.SIGSTOP)
        os.kill(command.agent(), signal.SIGKILL)
    command.process.kill()
    command.process.communicate()
    left = settle(nothing_left, timeout_s=60.0 if agent == "lives" else 2.0)
    assert left == (set() if agent == "lives" else made)
    (cleaned,) = clean()
    groups = [what for what in cleaned["removed"] if what.startswith("control group ")]
    assert groups and (groups == cleaned["removed"]) == (agent == "lives")
    assert clean() == []


@pytest.mark.optional
def test_what_the_kernel_cannot_do_is_refused_first(
    tmp_path: Path, scenario: Write, nothing_left: set[str]
) -> None:
    if has_netem():
        pytest.skip("this kernel has netem, so that nothing is refused")
    path = Path(scenario())
    path.write_text(path.read_text().replace("queue: 50 ms}}", "queue: 50 ms, delay: 10 ms}}"))
    text = path.read_text().replace(
        "up: {rate: 40 Mbit/s, queue: 50 ms}", "up: {rate: 40 Mbit/s, queue: 50 ms, delay: 5 ms}"
    )
    path.write_text(text)
    code, _, err = Command(tmp_path, "run", str(path)).finish()
    assert code == 3
    assert "netem" in err and "delay" in err
