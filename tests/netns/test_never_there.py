"""Jobs that never say that they are ready, nodes that do not come back, and what cannot be removed: a sentence each."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from crossed_rig import write
from test_exec import SCENARIO as JOB

from testbed.process import environment

pytestmark = pytest.mark.timeout(280)
ONE_IS_READY = """
import os, time
from testbed import mark
if os.environ["RANK"] == "0":
    mark.begin()
time.sleep(300)
"""
NOT_AGAIN = """
import sys
from testbed.cli import main
from testbed.fabric import netns
from testbed.runner import session
begin, there = netns.NetnsFabric.restart, set()
def restart(self, name):
    if name in there:
        session.START_S = 2.0
        {change}
    there.add(name)
    begin(self, name)
    vars(self).pop("_netns", None)
netns.NetnsFabric.restart = restart
main(sys.argv[1:])
"""
"""``testbed`` on a machine where no node can be started for a second time."""


def called(*arguments: str, program: str = "", **variables: str) -> tuple[int, str]:
    """Exit code and standard error."""
    start = ["-c", program] if program else ["-m", "testbed"]
    done = subprocess.run(
        [sys.executable, *start, *arguments],
        capture_output=True, text=True, timeout=250, check=False, env=environment(**variables),
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, " ".join(done.stderr.split())


@pytest.fixture
def job(tmp_path: Path, nothing_left: set[str]) -> list[str]:
    path = tmp_path / "job.yaml"
    path.write_text(JOB.format(events=""))
    return ["exec", str(path), "--await-begin", "--out", str(tmp_path), "--"]


def test_a_job_that_is_never_ready_ends_in_its_time(tmp_path: Path, job: list[str]) -> None:
    script = [sys.executable, "-c", ONE_IS_READY]
    begun = time.monotonic()
    code, said = called(*job, *script, NARROWS_BEGIN_S="8")
    assert code == 1 and time.monotonic() - begun >= 8
    # rank 0 has the time to say it
    assert "--await-begin: ranks 1 never called mark.begin() within 8 s" in said
    (run,) = tmp_path.glob("runs/*")
    assert json.loads((run / "summary.json").read_text())["verdict"] == "invalid"


def test_a_job_that_ends_before_it_is_ready_is_not_waited_for(job: list[str]) -> None:
    begun = time.monotonic()
    code, said = called(*job, "true", NARROWS_BEGIN_S="10000")
    assert code == 1 and time.monotonic() - begun < 200
    assert re.search(r"--await-begin: ranks 0, 1 never called mark.begin\(\)(?! within)", said)


def test_a_host_that_cannot_be_started_again_ends_the_run_and_is_named(
    tmp_path: Path, nothing_left: set[str]
) -> None:
    event = "{kind: kill, nodes: [noise-1], at: 500 ms, restart_after: 200 ms}"
    path = write(tmp_path, events=event, steps=4000)
    program = NOT_AGAIN.format(change="self._netns = lambda _: '/run/netns/nw-not-there'")
    code, said = called("run", path, "--out", str(tmp_path), program=program)
    assert code == 1
    assert re.search(r"'noise-1': restart: a node could not be isolated: .*nw-not-there", said), (
        said
    )
    (run,) = tmp_path.glob("runs/*")
    records = [json.loads(line) for line in (run / "links.jsonl").read_text().splitlines()]
    actions = [record["action"] for record in records if record["kind"] == "node"]
    assert actions == ["kill"]


def test_a_host_that_never_says_it_is_back_ends_the_next_run_in_its_time(
    tmp_path: Path, nothing_left: set[str]
) -> None:
    event = "{kind: kill, nodes: [noise-1], at: 500 ms}"
    path = write(tmp_path, events=event, steps=15, algorithms="none, topk-0.15")
    program = NOT_AGAIN.format(change="netns.CONTROL_PORT = 9  # where nobody listens")
    code, said = called("run", path, "--out", str(tmp_path), program=program)
    assert code == 1 and "not back: noise-1" in said, said
    summaries = sorted(tmp_path.glob("runs/*/summary.json"))
    assert [json.loads(file.read_text())["steps"] for file in summaries][:1] == [15]


@pytest.fixture
def stuck(tmp_path: Path, state: Path) -> Iterator[Path]:
    """A dead run's folder that cannot go, since something is mounted in it, and one that can."""
    busy = tmp_path / "folders" / "narrows-busy"
    (busy / "mounted").mkdir(parents=True)
    (tmp_path / "folders" / "narrows-idle").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(busy / "mounted")], check=True)
    state.mkdir(exist_ok=True)
    for run, names in (("aaa", ["narrows-idle"]), ("bbb", ["narrows-busy"]), ("ccc", [])):
        head = {"run": run, "pid": 1, "start": "another boot/1", "began": 0}
        entries = [{"kind": "folder", "path": str(tmp_path / "folders" / name)} for name in names]
        if run == "bbb":
            besides = tmp_path / "folders" / "narrows-besides"
            besides.mkdir()
            entries.insert(0, {"kind": "folder", "path": str(besides)})
        lines = [json.dumps(line) + "\n" for line in [head, *entries]]
        (state / f"{run}.journal").write_text("".join(lines))
    yield busy
    subprocess.run(["umount", str(busy / "mounted")], check=False, capture_output=True)


def test_what_cannot_be_removed_is_named_and_stays_in_the_journal(stuck: Path, state: Path) -> None:
    for _ in range(2):
        code, said = called("clean")
        assert code == 3
        assert f"of run 'bbb' not removed: folder {stuck}" in said and "busy" in said.lower()
        assert "Run `testbed clean` with the privileges" in said
        assert [path.name for path in state.glob("*.journal")] == ["bbb.journal"]
        # all else is gone, of this run and of others
        assert [path.name for path in stuck.parent.iterdir()] == ["narrows-busy"]
    subprocess.run(["umount", str(stuck / "mounted")], check=True)
    assert called("clean")[0] == 0
    assert not stuck.exists() and not list(state.glob("*.journal"))
    assert list(stuck.parent.iterdir()) == []
