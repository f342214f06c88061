"""SIGKILL in some states of a run in containers: after ``testbed clean`` the host is exactly as it was.

Two of them by day, where tests/netns/test_killed_anywhere.py has every state, all by night; or a tenth of ``NARROWS_KILLS``. ``NARROWS_KILLS_SEED`` chooses whom they hit.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from command_rig import command_line, descendants

from testbed.process import environment

SEED = int(os.environ.get("NARROWS_KILLS_SEED", "1"))
REACHED_S = 120.0
_LOOK = """
ip -o link | cut -d: -f2; ip -o -4 address; ip -4 route show table all; tc qdisc
docker ps --all --quiet; docker network ls --quiet; docker volume ls --quiet; ls /run/netns | grep -v ^nwl
"""
"""A lab's namespaces (``../swarm/lab.py``) come and go beside these tests."""
SCENARIO = """
name: short
nodes: {server: {role: server}, worker: {role: worker, count: 1}}
racks: {a: {members: [worker], up: {rate: 30 Mbit/s, queue: 50 ms}, down: {rate: 30 Mbit/s, queue: 50 ms}}}
links:
  default: {up: {rate: 20 Mbit/s, queue: 50 ms, at: network}, down: {rate: 20 Mbit/s, queue: 50 ms}}
train: {task: digits, model: mlp, optimizer: {name: sgd, lr: 0.1}, pace: 20 ms, stop: {steps: 20}}
algorithms: [topk-0.15]
"""


def written(folder: Path, pattern: str) -> bool:
    """Whether there is such a file of a run, and something in it."""
    return any(path.stat().st_size for path in folder.glob(f"runs/*/{pattern}"))


def containers(folder: Path) -> bool:
    """Whether containers of this run are there, as its journal names it."""
    runs = [path.stem for path in folder.glob("state/*.journal")]
    return any(
        subprocess.run(
            ["docker", "ps", "-q", "--filter", f"label=narrows.run={run}"],
            capture_output=True,
            check=True,
        ).stdout
        for run in runs
    )


STATES: dict[str, Callable[[Path], bool]] = {
    "journal begun": lambda folder: any(folder.glob("state/*.journal")),
    "containers started": containers,
    "nodes connected": lambda folder: written(folder, "scenario.yaml"),
    "links prepared": lambda folder: written(folder, "manifest.json"),
    "links carry": lambda folder: written(folder, "links.jsonl"),
    "training": lambda folder: written(folder, "events/worker-*.jsonl"),
    "judged": lambda folder: written(folder, "summary.json"),
}
MOMENTS = (
    ("replay", "containers started"),
    ("run", "training"),
    ("replay", "links prepared"),
    ("replay", "journal begun"),
    ("run", "nodes connected"),
    ("replay", "links carry"),
    ("run", "judged"),
)
KILLS = range(max(1, int(os.environ.get("NARROWS_KILLS", "0")) // 10))
if "NARROWS_KILLS" not in os.environ:
    # by day, as the seed is 1: the command, whose agent removes the rack, and both, so that it is left to `clean`
    KILLS = range(len(MOMENTS)) if os.environ.get("NARROWS_NIGHTLY") else range(1, 3)

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300)]


def host() -> set[str]:
    """Links, addresses, routes, queueing disciplines, containers, networks, volumes, namespaces."""
    looked = subprocess.run(["sh", "-c", _LOOK], capture_output=True, text=True, check=False)
    return set(looked.stdout.splitlines())


def command(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "testbed", *arguments],
        env=environment(NARROWS_STATE=str(folder / "state"), TMPDIR=str(folder)),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def differences(before: set[str], timeout_s: float = 20.0) -> set[str]:
    give_up = time.monotonic() + timeout_s
    while (changed := before ^ host()) and time.monotonic() < give_up:
        time.sleep(0.2)
    return changed


@pytest.mark.parametrize("number", KILLS)
def test_nothing_is_left_of_containers(tmp_path: Path, image: str, number: int) -> None:
    random = Random(SEED * 1000 + number)
    before = host()
    (tmp_path / "short.yaml").write_text(SCENARIO)
    verb, state = MOMENTS[number % len(MOMENTS)]
    seconds = ["--seconds", "1"] if verb == "replay" else []
    started = command(tmp_path, verb, "short.yaml", "--fabric", "docker", "--quiet", *seconds)
    give_up = time.monotonic() + REACHED_S
    while not STATES[state](tmp_path):
        assert started.poll() is None, started.communicate()[0]
        assert time.monotonic() < give_up, f"never reached: {state}"
        time.sleep(0.02)
    agents = [
        pid for pid in descendants(started.pid) if "testbed.links.agent.server" in command_line(pid)
    ]
    choices = [[started.pid]]
    if state != "judged":  # in which the agent has done all that it has to, and may be gone
        choices += [agents, [started.pid, *agents]]
    victims = random.choice(choices) or [started.pid]
    assert started.poll() is None, "it was over before it was killed"
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    said = started.communicate(timeout=90)[0]
    # without its agent it ends as a run that failed
    assert started.returncode == (-signal.SIGKILL if started.pid in victims else 1), said
    cleaning = command(tmp_path, "clean")
    cleaned = cleaning.communicate(timeout=60)[0]
    assert cleaning.returncode == 0, cleaned
    assert differences(before) == set(), (said, cleaned)
    assert "Traceback" not in said + cleaned
    assert not list((tmp_path / "state").glob("*.journal"))
