"""SIGKILL at random moments of set-up and run: after ``testbed clean`` the host is exactly as it was.

``NARROWS_KILLS`` (default 30) is how many moments; ``NARROWS_KILLS_SEED`` chooses them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest
from private_host import PrivateHost

KILLS = int(os.environ.get("NARROWS_KILLS", "30"))
SEED = int(os.environ.get("NARROWS_KILLS_SEED", "1"))
SIDE_BY_SIDE = 3
REPLAY_S, RUN_S = 7.5, 11.0
"""How long the two usually take here; later than that there is nothing left to kill."""

PLAIN = """
name: short
nodes: {server: {role: server}, worker: {role: worker, count: 1}, noise: {role: host, count: 1}}
links:
  default: {up: {rate: 20 Mbit/s, queue: 50 ms, at: network}, down: {rate: 20 Mbit/s, queue: 50 ms}}
train: {task: digits, model: mlp, optimizer: {name: sgd, lr: 0.1}, pace: 20 ms, stop: {steps: 20}}
algorithms: [topk-0.15]
events:
  - {kind: step, links: [server], at: 100 ms, rate: 10 Mbit/s}
"""
PARTS = {
    "pause": "  - {kind: pause, nodes: [worker-0], at: 300 ms, for: 300 ms}\n",
    "racks": "racks:\n  a: {members: [worker, noise], up: {rate: 30 Mbit/s, queue: 50 ms},"
    " down: {rate: 30 Mbit/s, queue: 50 ms}}\n",
    "traffic": "traffic: [{name: bulk, from: noise-0, to: server, kind: tcp, at: 0 s, for: 60 s}]\n",
}
"""What a scenario may have besides, as lines that follow it in this order."""
CHOICES = ((), *((part,) for part in PARTS))


@dataclass(frozen=True)
class Kill:
    """What is started, whom SIGKILL hits, and when."""

    number: int
    verb: str
    parts: tuple[str, ...]
    whom: str
    after_s: float


def kills() -> list[Kill]:
    """Two of five are runs; every other one of those, and of the replays, has all ``PARTS``."""
    random = Random(SEED)
    chosen = []
    for number in range(KILLS):
        verb = "run" if number % 5 in {1, 3} else "replay"
        parts = tuple(PARTS) if number % 4 < 2 else random.choice(CHOICES)
        whom = random.choice(("testbed", "agent", "both", "session"))
        usual = REPLAY_S if verb == "replay" else RUN_S
        chosen.append(Kill(number, verb, parts, whom, random.uniform(0.0, usual)))
    return chosen


def scenario(parts: tuple[str, ...]) -> str:
    return PLAIN + "".join(PARTS[part] for part in parts)


@contextmanager
def private_host(folder: Path) -> Iterator[PrivateHost]:
    folder.mkdir()
    host = PrivateHost(folder)
    try:
        yield host
    finally:
        host.close()


def carry_out(kill: Kill, folder: Path) -> str:
    """Start, kill, clean; returns what is not as before, in words."""
    with private_host(folder / str(kill.number)) as host:
        before = host.state()
        (host.folder / "short.yaml").write_text(scenario(kill.parts))
        seconds = ["--seconds", "1"] if kill.verb == "replay" else []
        started = host.testbed(kill.verb, "short.yaml", "--quiet", *seconds)
        time.sleep(kill.after_s)
        strike(host, kill.whom, started)
        said = started.communicate(timeout=60)[0]
        cleaning = host.testbed("clean")
        cleaned = cleaning.communicate(timeout=60)[0]
        different = host.settle(before)
        if cleaning.returncode:
            different = f"`testbed clean` failed; {different}"
        if "Traceback" in said + cleaned:
            different = f"a traceback; {different}"
        return different and f"{kill}: {different}\nsaid: {said}\ncleaned: {cleaned}"


def strike(host: PrivateHost, whom: str, testbed: subprocess.Popen[str]) -> None:
    agents = host.processes("testbed.links.agent") if whom in {"agent", "both"} else []
    victims = agents if whom == "agent" and agents else [testbed.pid, *agents]
    for pid in victims if whom != "session" else [testbed.pid, *host.processes()]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_kills_hit_runs_with_everything() -> None:
    chosen = kills()
    runs = [kill for kill in chosen if kill.verb == "run"]
    assert KILLS < 10 or 3 * len(runs) >= KILLS
    assert KILLS < 10 or tuple(PARTS) in {kill.parts for kill in runs}


@pytest.mark.timeout(120 + 12 * KILLS)
def test_nothing_is_left_whenever_whoever_is_killed(tmp_path: Path) -> None:
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        failures = list(filter(None, pool.map(lambda kill: carry_out(kill, tmp_path), kills())))
    assert not failures, "\n\n".join(failures)


def test_what_a_run_makes_is_seen(tmp_path: Path) -> None:
    """The comparison above can fail: while a run is on, its host is not as before."""
    with private_host(tmp_path / "host") as host:
        before = host.state()
        assert host.settle(before, 1.0) == ""
        (host.folder / "short.yaml").write_text(scenario(tuple(PARTS)))
        started = host.testbed("replay", "short.yaml", "--quiet", "--seconds", "5")
        give_up = time.monotonic() + 60
        while "-switch" not in host.state() and time.monotonic() < give_up:
            time.sleep(0.1)
        assert "nw-" in host.settle(before, 0.2)
        started.terminate()
        said = started.communicate(timeout=60)[0]
        assert started.returncode == 1 and "interrupted" in said
        assert host.settle(before) == ""
