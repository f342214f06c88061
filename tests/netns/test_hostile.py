"""What somebody hostile, or only careless, may put in the way of root's runs: nothing of it is taken for ours."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from command_rig import Command, descendants, process_name
from verdict_rig import accepted_runs

from testbed.process import environment
from testbed.runner.exec.mark_listener import MOST_WAITING

pytestmark = pytest.mark.timeout(200)
PLANTED = ("json.py", "torch.py", "testbed.py", "pyroute2.py", "ctypes.py", "sitecustomize.py")
SMALL = """
name: small
nodes: {server: {role: server}, worker: {role: worker, count: 1}}
links: {default: {up: {rate: 40 Mbit/s, queue: 50 ms}, down: {rate: 40 Mbit/s, queue: 50 ms}}}
train: {task: digits, model: mlp, optimizer: {name: sgd, lr: 0.1}, pace: 400 ms, stop: {steps: 3}}
algorithms: [none]
"""
PROGRAM = """
import os
with open({found!r}, "a") as file:
    file.write(f"{{__file__}} as {{os.geteuid()}}\\n")
raise SystemExit("planted")
"""

FLOOD = """
import os, socket
if os.fork():
    os.fork()
one = socket.socket(socket.AF_UNIX)
one.connect(os.environ["NARROWS_MARKS"])
one.sendall(b'{"what": "hello", "rank": 0, "local_rank": 0}\\n')
while True:
    one.sendall(b'{"what": "end", "ns": 5}\\n' * 1000)
"""


@pytest.fixture
def testbed(tmp_path: Path) -> list[str]:
    """The command as it is installed, which finds its modules by itself."""
    return [str(Path(sys.executable).parent / "testbed")]


@pytest.mark.parametrize(
    "arguments",
    [
        # all that a replay starts, a run starts as well
        pytest.param(
            ["replay", "trace.csv", "--seconds", "3", "--no-figures"], marks=pytest.mark.nightly
        ),
        pytest.param(["run", "small.yaml", "--no-figures"], marks=pytest.mark.judged),
        ["exec", "small.yaml", "--", "true"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_no_module_is_taken_from_the_working_directory(
    arguments: list[str], testbed: list[str], tmp_path: Path, nothing_left: set[str]
) -> None:
    here, found = tmp_path / "here", tmp_path / "found"
    here.mkdir()
    for name in PLANTED:
        (here / name).write_text(PROGRAM.format(found=str(found)))
    (here / "trace.csv").write_text("time_s,rate_mbit_s\n0,20\n1,10\n")
    (here / "small.yaml").write_text(SMALL)
    own = {name: text for name, text in environment().items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [*testbed, *arguments],
        cwd=here, env=own, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    runs = [*here.glob("runs/*")]
    assert len(runs) == 1, done.stderr
    accepted_runs(runs, done.returncode)
    assert not found.exists(), found.read_text()


def test_nodes_have_no_secrets_of_whoever_starts_them(
    testbed: list[str], tmp_path: Path, nothing_left: set[str]
) -> None:
    (tmp_path / "small.yaml").write_text(SMALL.replace("steps: 3", "steps: 3000"))
    secret = "do-not-tell"
    with subprocess.Popen(
        [*testbed, "run", str(tmp_path / "small.yaml"), "--no-figures", "--out", str(tmp_path)],
        env={**environment(), "CLOUD_SECRET": secret}, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        try:
            give_up, nodes = time.monotonic() + 60, []
            while len(nodes) < 2:
                assert time.monotonic() < give_up and process.poll() is None
                nodes = [
                    p for p in descendants(process.pid) if process_name(p) in ("server", "worker-0")
                ]
                time.sleep(0.05)
            assert secret in Path(f"/proc/{process.pid}/environ").read_text()
            for pid in nodes:
                assert secret not in Path(f"/proc/{pid}/environ").read_text()
                memory = Path(f"/proc/{pid}/cmdline").read_text()
                assert "token" not in memory.lower()
        finally:
            process.terminate()
            process.wait()


@pytest.mark.timeout(100)
@pytest.mark.parametrize("more", [[], ["--await-begin"]])
def test_a_job_that_marks_without_end_is_still_ended(
    more: list[str], tmp_path: Path, nothing_left: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NARROWS_BEGIN_S", "3")
    (tmp_path / "small.yaml").write_text(SMALL)
    (tmp_path / "flood.py").write_text(FLOOD)
    job = ["--", "python", str(tmp_path / "flood.py")]
    command = Command(tmp_path, "exec", str(tmp_path / "small.yaml"), "--seconds", "2", *more, *job)
    try:
        code, _, err = command.finish(60)
    finally:
        command.process.kill()
    if more:
        assert code == 1, err
    else:
        accepted_runs(command.runs(), code)
    assert ("never called mark.begin()" in err) == bool(more), err
    files = [path for run in command.runs() for path in (run / "events").glob("*.jsonl")]
    taken = sum(len(path.read_bytes().splitlines()) for path in files)
    assert more or "came too fast, were left out" in err or 0 < taken < MOST_WAITING, err
