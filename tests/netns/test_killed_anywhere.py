"""SIGKILL in every state of set-up and run: after ``testbed clean`` the host is exactly as it was.

``NARROWS_KILLS`` is how many kills (by day one in each state, by night 30), ``NARROWS_KILLS_SEED`` chooses the rest of them.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
from groups_rig import groups_of
from private_host import PrivateHost
from unprivileged import USER

SEED = int(os.environ.get("NARROWS_KILLS_SEED", "1"))
SIDE_BY_SIDE = 3
REACHED_S, TRIES = 180.0, 3
"""Until a state is there; how often one is waited for that is over before it was seen."""
WITHIN_S = 0.15
"""After a state was seen, at most; not in those that end by themselves soon."""
JOB = ("sh", "-c", "exec sleep $((3600 + 1))")
"""Its command line is another than what the testbed was started with."""
AGENT, NODE = "testbed.links.agent.server", "testbed.fabric.fork_server"

PLAIN = """
name: short
nodes: {server: {role: server}, worker: {role: worker, count: 1}, noise: {role: host, count: 1}}
links:
  default: {up: {rate: 20 Mbit/s, queue: 50 ms, at: network}, down: {rate: 20 Mbit/s, queue: 50 ms}}
train: {task: digits, model: mlp, optimizer: {name: sgd, lr: 0.1}, pace: 20 ms, stop: {steps: STEPS}}
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


def written(host: PrivateHost, pattern: str) -> bool:
    """Whether there is such a file of a run, and something in it."""
    return any(path.stat().st_size for path in host.folder.glob(f"runs/*/{pattern}"))


def journal(host: PrivateHost) -> bool:
    return any(host.run.glob("narrows/*.journal"))


def started(host: PrivateHost) -> bool:
    return bool(host.processes("-m\0testbed\0"))


def nodes(host: PrivateHost) -> bool:
    """The process that they are forks of, and they."""
    return len(host.processes(NODE)) == 4


STATES: dict[str, Callable[[PrivateHost], bool]] = {
    "started": started,
    "journal begun": journal,
    "agent started": lambda host: bool(host.processes(AGENT)),
    "namespaces made": lambda host: any(host.run.glob("netns/nw-*-switch")),
    "nodes started": nodes,
    "nodes connected": lambda host: written(host, "scenario.yaml"),
    "links prepared": lambda host: written(host, "manifest.json"),
    "links carry": lambda host: written(host, "links.jsonl"),
    "training": lambda host: written(host, "events/worker-*.jsonl"),
    "nodes ended": lambda host: written(host, "links.jsonl") and not host.processes(NODE),
    "judged": lambda host: written(host, "summary.json"),
    "marks awaited": lambda host: any(host.run.glob("tmp/narrows-marks-*")),
    "job started": lambda host: len(host.processes("sleep\0003601")) == 2,
}
"""What is to be seen from outside, in the order in which it comes."""
MOMENTS = (
    ("replay", "started"),
    ("replay", "journal begun"),
    ("replay", "agent started"),
    ("replay", "namespaces made"),
    ("replay", "nodes started"),
    ("replay", "nodes connected"),
    ("replay", "links prepared"),
    ("replay", "links carry"),
    ("replay", "nodes ended"),
    ("run", "nodes connected"),
    ("run", "training"),
    ("run", "judged"),
    ("exec", "marks awaited"),
    ("exec", "job started"),
    ("exec as user", "marks awaited"),
    ("exec as user", "job started"),
)
BRIEF = ("nodes ended", "judged")
NO_AGENT = ("started", "journal begun", "marks awaited", *BRIEF)
"""States without an agent, or in which it may be gone at any moment."""
KILLS = int(
    os.environ.get("NARROWS_KILLS") or (30 if os.environ.get("NARROWS_NIGHTLY") else len(MOMENTS))
)


@dataclass(frozen=True)
class Kill:
    """What is started, in which state SIGKILL hits whom, and how long after it was seen."""

    number: int
    verb: str
    state: str
    parts: tuple[str, ...]
    whom: str
    after_s: float

    @property
    def as_user(self) -> bool:
        """Whether a user without any right starts it."""
        return self.verb.endswith("as user")


def kills() -> list[Kill]:
    """Of the first ones one in each state; every other one has all ``PARTS``."""
    random = Random(SEED)
    chosen = []
    for number in range(KILLS):
        verb, state = MOMENTS[number % len(MOMENTS)]
        parts = tuple(PARTS) if number % 2 == 0 else random.choice(CHOICES)
        parts = () if verb.startswith("exec") else parts
        agent = () if state in NO_AGENT else ("agent", "both")
        whom = random.choice(("testbed", "session", *agent))
        after_s = 0.0 if state in BRIEF else random.uniform(0.0, WITHIN_S)
        chosen.append(Kill(number, verb, state, parts, whom, after_s))
    return chosen


def scenario(parts: tuple[str, ...], steps: int = 20) -> str:
    return PLAIN.replace("STEPS", str(steps)) + "".join(PARTS[part] for part in parts)


@contextmanager
def private_host(folder: Path) -> Iterator[PrivateHost]:
    folder.mkdir()
    host = PrivateHost(folder)
    try:
        yield host
    finally:
        host.close()


def reached(host: PrivateHost, state: str, testbed: subprocess.Popen[str]) -> bool:
    """Whether the state is there; False when the command has ended before it was seen."""
    give_up = time.monotonic() + REACHED_S
    while not STATES[state](host):
        if testbed.poll() is not None:
            return False
        assert time.monotonic() < give_up, f"never reached: {state}"
        time.sleep(0.01)
    return True


def carry_out(kill: Kill, folder: Path) -> str:
    """Start, kill, clean; returns what is not as before, in words."""
    for attempt in range(TRIES):
        # a user must reach his folder, which is not in that of root's tests
        with TemporaryDirectory(prefix="narrows-killed-", dir="/srv") as home:
            own = Path(home) if kill.as_user else folder
            with private_host(own / f"{kill.number}-{attempt}") as host:
                if kill.as_user:
                    for path in (own, host.folder):
                        os.chown(path, USER, USER)
                if (different := struck(kill, host)) is not None:
                    return different
    return f"{kill}: it was over before it was seen, {TRIES} times"


def struck(kill: Kill, host: PrivateHost) -> str | None:
    """None where the state was over too soon."""
    before = host.state()
    steps = 20 if kill.state in BRIEF else 500  # who is to be hit in training must not have ended
    (host.folder / "short.yaml").write_text(scenario(kill.parts, steps))
    if kill.as_user:
        os.chown(host.folder / "short.yaml", USER, USER)
    more = {"replay": ["--seconds", "1"], "run": []}.get(kill.verb, ["--", *JOB])
    verb = kill.verb.partition(" ")[0]
    testbed = host.testbed(verb, "short.yaml", "--quiet", *more, user=kill.as_user)
    if not reached(host, kill.state, testbed):
        said = testbed.communicate()[0]
        assert testbed.returncode in (0, 1) and "Traceback" not in said, said
        return None
    time.sleep(kill.after_s)
    hit = strike(host, kill.whom, testbed)
    said = testbed.communicate(timeout=120)[0]
    if hit and kill.whom == "agent":
        hit = testbed.returncode == 1  # it has noticed
    elif hit:
        hit = testbed.returncode == -signal.SIGKILL
    else:
        return None
    tags = set(re.findall(r"\bnw-([0-9a-f]+)-", host.state()))
    cleaning = host.testbed("clean", user=kill.as_user)
    cleaned = cleaning.communicate(timeout=120)[0]
    different = host.settle(before)
    if groups := groups_of(tags):
        different = f"control groups {groups}; {different}"
    if not hit:
        different = f"it was not hit: {testbed.returncode}; {different}"
    if cleaning.returncode:
        different = f"`testbed clean` failed; {different}"
    if "Traceback" in said + cleaned:
        different = f"a traceback; {different}"
    return different and f"{kill}: {different}\nsaid: {said}\ncleaned: {cleaned}"


def strike(host: PrivateHost, whom: str, testbed: subprocess.Popen[str]) -> bool:
    """Whether everybody was there who is named."""
    agents = host.processes(AGENT) if whom in {"agent", "both"} else []
    if whom == "session":
        # the command is not the child of anybody who could start another process meanwhile
        victims = [testbed.pid, *(pid for pid in host.processes() if pid != testbed.pid)]
    else:
        victims = [*agents, *([testbed.pid] if whom != "agent" else [])]
    if testbed.poll() is not None or (whom in {"agent", "both"} and not agents):
        return False
    for pid in victims:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            if pid in (testbed.pid, *agents):
                return False
    return True


@pytest.mark.timeout(300 + 12 * KILLS)
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
        said = started.communicate(timeout=120)[0]
        assert started.returncode == 1 and "interrupted" in said
        assert host.settle(before) == ""
