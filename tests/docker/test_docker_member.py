"""The docker fabric as a user whose only right is to be a member of the group docker: the shaper does what root would."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from processes_rig import keeping_mounts, kept_namespace, status_of
from rights_rig import RunningCommand, assert_documented, run_in
from standing import assert_gone
from unprivileged import USER, as_user
from verdict_rig import accepted_run

from testbed.process import environment

pytestmark = [pytest.mark.root, pytest.mark.docker, pytest.mark.timeout(240)]

NO_HOME = Path("/nonexistent")
"""Jobs are not started in a user's home."""
SOCKET = Path("/var/run/docker.sock")
TRACE = "time_s,rate_bits\n0,20000000\n1,40000000\n2,30000000\n"
SCENARIO = """
name: member
nodes: {server: {role: server}, worker: {role: worker, count: 1}}
links:
  default:
    up: {rate: 40 Mbit/s, queue: 50 ms, at: network}
    down: {rate: 40 Mbit/s, queue: 50 ms}
events: [{kind: trace, links: [worker-0], file: tiny.csv, at_end: loop}]
EXTRA
congestion: CONGESTION
"""
WAITS = "touch here-$RANK; sleep 300 & wait"


class Member:
    """That user, with a folder of his own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        (home / "tiny.csv").write_text(TRACE)
        self.write()
        os.chown(home, USER, USER)

    def write(self, congestion: str = "cubic", extra: str = "", rate: str = "40 Mbit/s") -> None:
        text = SCENARIO.replace("CONGESTION", congestion).replace("EXTRA", extra)
        (self.home / "member.yaml").write_text(text.replace("40 Mbit/s", rate))

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "testbed", *arguments]
        return subprocess.Popen(
            as_user(
                NO_HOME,
                *keeping_mounts(self.home / "mounts", *command),
                group=SOCKET.stat().st_gid,
            ),
            env=environment(NARROWS_STATE=str(self.home / "state"), TMPDIR=str(self.home)),
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def replay(self, *options: str) -> subprocess.Popen[str]:
        options = ("--no-figures", *options)
        return self.start("replay", "member.yaml", "--fabric", "docker", *options)

    def running(self, process: subprocess.Popen[str]) -> RunningCommand:
        """A command of his, which ``as_user`` has started without new privileges and with mounts of its own."""
        caller = {**status_of("self"), "NoNewPrivs": ["1"]}
        users, given = {"0": "root", str(USER): "the user"}, kept_namespace(self.home / "mounts")
        run = run_in(self.home)
        return RunningCommand(process.pid, run, "exec", self.home, users, caller, given)

    def record(self, name: str) -> dict[str, Any]:
        (found,) = self.home.glob(f"runs/*/{name}")
        read: dict[str, Any] = json.loads(found.read_text())
        return read

    def journals(self) -> list[Path]:
        return list((self.home / "state").glob("*.journal"))


@pytest.fixture
def member(image: str) -> Iterator[Member]:
    """Nothing of what he did may be left."""
    with tempfile.TemporaryDirectory(prefix="narrows-member-") as folder:
        Path(folder).chmod(0o755)
        made = Member(Path(folder))
        yield made
        assert not made.journals()
        if list(made.home.glob("runs/*/compose.yaml")):
            assert_gone(run_in(made.home))


def until(
    process: subprocess.Popen[str], condition: Callable[[], object], timeout_s: float = 150.0
) -> None:
    """Wait while the process runs."""
    give_up = time.monotonic() + timeout_s
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < give_up
        time.sleep(0.05)


def intermediates() -> set[str]:
    return {path.name for path in Path("/sys/class/net").glob("nwi*")}


@pytest.mark.timed
@pytest.mark.judged
def test_the_shaper_shapes_and_leaves_nothing(member: Member) -> None:
    before = intermediates()
    process = member.replay("--seconds", "2.5", "--json")
    out, err = process.communicate(timeout=120)
    report = json.loads(out)
    (run,) = member.home.glob("runs/*")
    assert accepted_run(run, process.returncode) == report["verdict"], err
    for link in member.record("certificate.json")["links"]:
        assert link["watch"]["mismatches"] == [] and link["watch"]["failure"] is None
    held = {
        (link["link"], link["direction"]): link for link in member.record("manifest.json")["links"]
    }
    for name in ("server", "worker-0"):
        assert held[name, "up"]["at"] == "network"
        assert held[name, "up"]["device"].startswith("nwi")
    for link in report["links"]:
        assert link["busy_ratio"] == pytest.approx(1, abs=0.15)
    assert "narrows.shaper" in next(member.home.glob("runs/*/compose.yaml")).read_text()
    assert intermediates() == before and not member.journals()


def test_clean_removes_what_a_killed_shaper_left(member: Member) -> None:
    """Until then all processes have the rights that are documented."""
    before = intermediates()
    options = ("exec", "member.yaml", "--fabric", "docker", "--seconds", "60", "--quiet")
    with member.start(*options, "--", "sh", "-c", WAITS) as process:
        until(process, lambda: len(list(member.home.glob("here-*"))) == 2)
        rows = member.running(process).rows()
        process.send_signal(signal.SIGSTOP)  # neither may hear of the other's end
        shaper = f"narrows-{run_in(member.home)}-narrows.shaper"
        subprocess.run(["docker", "kill", shaper], check=True, capture_output=True)
        process.send_signal(signal.SIGKILL)
    left = intermediates() - before
    assert left
    cleaned = member.start("clean")
    said = "".join(cleaned.communicate(timeout=120))
    assert cleaned.returncode == 0, said
    assert intermediates() == before and not member.journals()
    assert all(f"device {name}" in said for name in left), said
    assert_documented(rows, "member", "exec")


def test_what_does_not_fit_is_refused_before_anything_is_made(member: Member) -> None:
    member.write(rate="100 Gbit/s")
    process = member.replay("--seconds", "3")
    _, err = process.communicate(timeout=150)
    assert process.returncode == 3
    assert "100.00 Gbit/s" in err and ("dilation" in err or "Ask for lower rates" in err)
    assert not (member.home / "runs").exists()
