"""Control groups of nodes on this kernel: real processes that would take the machine, and cannot."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from groups_rig import OwnRuns, groups_of

from testbed import cgroups
from testbed.cgroups import ControlGroup, find, make
from testbed.errors import MachineError
from testbed.fabric.netns import run_tag
from testbed.journal import Journal
from testbed.links.network import namespaces
from testbed.process import environment
from testbed.topology import Limits

pytestmark = pytest.mark.timeout(60)
MIB = 1 << 20
LIMITS = Limits(processes=20, memory_bytes=64 * MIB, tmp_bytes=MIB)
BOMB = """
import os, sys, time
sys.stdin.readline()
while True:
    try:
        if os.fork() == 0:
            continue
    except OSError:
        time.sleep(0.01)
"""
HOG = """
import sys
sys.stdin.readline()
kept = []
while True:
    kept.append(b"x" * (1 << 20))
"""
FILL = """
import sys
sys.stdin.readline()
print(len(b"x" * (16 << 20)), flush=True)
"""


@pytest.fixture(scope="module", autouse=True)
def possible() -> None:
    try:
        find()
    except MachineError as why:
        pytest.skip(str(why))


@pytest.fixture
def group() -> Iterator[ControlGroup]:
    made = make(find(), f"test-{os.getpid()}", "worker-0", LIMITS)
    yield made
    made.remove()
    assert not any(folder.parent.exists() for folder in made.folders)


Start = Callable[[ControlGroup, str], "subprocess.Popen[str]"]


@pytest.fixture
def started(group: ControlGroup) -> Iterator[Start]:
    """Starts a process that is in a group before it does anything."""
    with ExitStack() as processes:

        def start(where: ControlGroup, script: str) -> subprocess.Popen[str]:
            process = processes.enter_context(
                subprocess.Popen(
                    [sys.executable, "-S", "-c", script],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                )
            )  # fmt: skip
            processes.callback(process.kill)
            where.enter(process.pid)
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
            return process

        yield start
        group.remove()


def members(group: ControlGroup) -> set[int]:
    return {int(pid) for pid in (group.folders[0] / "cgroup.procs").read_text().split()}


def test_a_fork_bomb_is_bounded_and_ends(group: ControlGroup, started: Start) -> None:
    process = started(group, BOMB)
    while len(members(group)) < LIMITS.processes:
        assert process.poll() is None
    for _ in range(20):
        assert len(members(group)) <= LIMITS.processes
        time.sleep(0.01)
    bombs = members(group)
    group.remove()
    process.wait(10)
    assert not any(_runs(pid) for pid in bombs)


def test_who_takes_too_much_memory_is_killed_and_others_are_not(
    group: ControlGroup, started: Start
) -> None:
    hog = started(group, HOG)
    assert hog.wait(30) == -signal.SIGKILL
    output, _ = started(group, FILL).communicate(timeout=30)
    assert output.split() == [str(16 * MIB)]


def test_what_a_member_starts_is_a_member(group: ControlGroup, started: Start) -> None:
    process = started(
        group, "import subprocess, sys; sys.stdin.readline(); subprocess.run(['sleep', '300'])"
    )
    while len(members(group)) < 2:
        assert process.poll() is None
    group.remove()
    assert process.wait(10) == -signal.SIGKILL


def test_a_process_enters_by_itself(group: ControlGroup) -> None:
    pid = os.fork()
    if pid == 0:
        group.enter()
        os._exit(0 if os.getpid() in members(group) else 1)
    assert os.waitpid(pid, 0)[1] == 0


def test_two_nodes_have_limits_of_their_own(group: ControlGroup, started: Start) -> None:
    other = make(find(), f"test-{os.getpid()}", "worker-1", LIMITS)
    bomb, idle = started(group, BOMB), started(other, FILL)
    while len(members(group)) < LIMITS.processes:
        assert bomb.poll() is None
    assert idle.communicate(timeout=30)[0].split() == [str(16 * MIB)]
    other.remove()
    assert len(members(group)) == LIMITS.processes


def test_the_groups_of_a_run_are_gone_with_its_last_node() -> None:
    run = f"test-{os.getpid()}"
    made = [make(find(), run, f"worker-{n}", LIMITS) for n in range(2)]
    tags = {run_tag(run)}
    assert len(groups_of(tags)) == 3 * len(made[0].folders)
    made[0].remove()
    assert len(groups_of(tags)) == 2 * len(made[0].folders), "the other has its own"
    made[1].remove()
    made[1].remove()
    assert groups_of(tags) == []


def test_what_is_left_of_own_runs_is_seen_and_of_others_not() -> None:
    own, others = (f"test{os.getpid()}x{n}" for n in range(2))
    runs = OwnRuns()
    made = [make(find(), run, "worker-0", LIMITS) for run in (own, others)]
    try:
        name = namespaces.NAMED / f"nw-{run_tag(own)}-switch"
        name.touch()
        name.unlink()
        assert runs.tags() == {run_tag(own)}
        assert {Path(group).name for group in runs.groups()} == {f"narrows-{own}", "worker-0"}
        for folder in made[0].folders:
            folder.rmdir()
        assert {Path(group).name for group in runs.groups()} == {f"narrows-{own}"}, "an empty group"
    finally:
        runs.close()
        for group in made:
            group.remove()


def test_a_killed_run_leaves_nothing_after_clean(tmp_path: Path) -> None:
    state = environment(NARROWS_STATE=str(tmp_path))
    run = f"test-{os.getpid()}"
    script = (
        "import os, signal; from testbed.cgroups import *; from testbed.topology import Limits\n"
        "from testbed.journal import Journal\n"
        f"group = make(find(), {run!r}, 'worker-0', Limits(20, {64 * MIB}, 1), Journal.open({run!r}))\n"
        "if os.fork() == 0:\n    os.dup2(os.open(os.devnull, os.O_RDWR), 1)\n    os.dup2(1, 2); group.enter(); os.execvp('sleep', ['sleep', '300.5'])\n"
        "print(*group.folders, flush=True)\n"
        "while len(open(group.folders[0] / 'cgroup.procs').read().split()) < 1: pass\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run(
        [sys.executable, "-c", script], env=state, capture_output=True, text=True, check=False
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    left = [Path(folder) for folder in killed.stdout.split()]
    (sleeper,) = (left[0] / "cgroup.procs").read_text().split()
    done = subprocess.run(
        [sys.executable, "-m", "testbed", "clean"], env=state, capture_output=True, text=True, check=True
    )  # fmt: skip
    assert all(f"control group {folder}" in done.stdout for folder in left)
    assert not any(folder.parent.exists() for folder in left)
    assert not _runs(int(sleeper)) and not list(tmp_path.glob("*.journal"))


def test_the_journal_knows_before_a_group_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NARROWS_STATE", str(tmp_path))
    journal = Journal.open("some-run")
    group = make(find(), f"test-{os.getpid()}", "worker-0", LIMITS, journal)
    try:
        assert [entry["path"] for entry in journal.entries] == list(map(str, group.folders))
        assert [cgroups.clean(entry) for entry in journal.entries] == [
            [f"control group {folder}"] for folder in group.folders
        ]
        assert cgroups.clean(journal.entries[0]) == []
        for folder, entry in zip(group.folders, journal.entries, strict=True):
            folder.parent.mkdir()  # as one that is killed before it makes the node's leaves it
            assert cgroups.clean(entry) == [f"control group {folder.parent}"]
            assert not folder.parent.exists()
    finally:
        group.remove()
        journal.close()


def _runs(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False
