"""SIGKILL at random moments of a run in containers: after ``testbed clean`` the host is exactly as it was.

A tenth as many moments as in namespaces, every third in a whole training run (``NARROWS_KILLS``, ``NARROWS_KILLS_SEED``).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from command_rig import command_line, descendants

from testbed.links.process import environment

KILLS = max(1, int(os.environ.get("NARROWS_KILLS", "30")) // 10)
SEED = int(os.environ.get("NARROWS_KILLS_SEED", "1"))
REPLAY_S, RUN_S = 14.0, 14.0
"""How long the two usually take here."""
_LOOK = """
ip -o link | cut -d: -f2; ip -o -4 address; ip -4 route show table all; tc qdisc
docker ps --all --quiet; docker network ls --quiet; docker volume ls --quiet; ls /run/netns
"""
SCENARIO = """
name: short
nodes: {server: {role: server}, worker: {role: worker, count: 1}}
links:
  default: {up: {rate: 20 Mbit/s, queue: 50 ms, at: network}, down: {rate: 20 Mbit/s, queue: 50 ms}}
train: {task: digits, model: mlp, optimizer: {name: sgd, lr: 0.1}, pace: 20 ms, stop: {steps: 20}}
algorithms: [topk-0.15]
"""

pytestmark = [pytest.mark.docker, pytest.mark.timeout(120 + 90 * KILLS)]


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


@pytest.mark.parametrize("number", range(KILLS))
def test_nothing_is_left_of_containers(tmp_path: Path, image: str, number: int) -> None:
    random = Random(SEED * 1000 + number)
    before = host()
    (tmp_path / "short.yaml").write_text(SCENARIO)
    verb, seconds, usual_s = ("replay", ["--seconds", "1"], REPLAY_S)
    if number % 3 == 1:
        verb, seconds, usual_s = ("run", [], RUN_S)
    options = ["--fabric", "docker", "--quiet", *seconds]
    started = command(tmp_path, verb, "short.yaml", *options)
    time.sleep(usual_s * (number + random.random()) / KILLS)  # set-up and run alike, however few
    children = [] if started.poll() is not None else descendants(started.pid)
    agents = [pid for pid in children if "testbed.links.agent" in command_line(pid)]
    victims = random.choice(([started.pid], agents, [started.pid, *agents])) or [started.pid]
    for pid in victims:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    said = started.communicate(timeout=90)[0]
    cleaning = command(tmp_path, "clean")
    cleaned = cleaning.communicate(timeout=60)[0]
    assert cleaning.returncode == 0, cleaned
    assert differences(before) == set(), (said, cleaned)
    assert "Traceback" not in said + cleaned
    assert not list((tmp_path / "state").glob("*.journal"))
