"""``testbed run`` as a user runs it: real processes in namespaces, and whatever may go wrong."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.root, pytest.mark.timeout(180)]

SCENARIO = """
name: small
nodes: {{server: {{role: server}}, worker: {{role: worker, count: 2}}}}
links:
  default: {{up: {{rate: 40 Mbit/s, queue: 50 ms}}, down: {{rate: 40 Mbit/s, queue: 50 ms}}}}
events: [{{kind: step, links: [server], at: 1 s, rate: 20 Mbit/s}}]
train:
  task: digits
  model: mlp
  optimizer: {{name: sgd, lr: 0.1}}
  pace: 60 ms
  stop: {{steps: {steps}}}
  evaluate_every: 10
algorithms: [{algorithms}]
congestion: cubic
"""


class Command:
    """A running ``testbed`` command in a directory of its own."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-m", "testbed", *arguments, "--out", str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def finish(self, timeout_s: float = 90.0) -> tuple[int, str, str]:
        """Exit code, standard output, standard error."""
        out, err = self.process.communicate(timeout=timeout_s)
        return self.process.returncode, out, err

    def steps(self) -> list[dict[str, Any]]:
        """Step records on disk now."""
        return [
            event
            for path in self.folder.glob("runs/*/events/worker-*.jsonl")
            for event in map(json.loads, path.read_text().splitlines())
            if event["kind"] == "step"
        ]

    def until(self, condition: Callable[[], object], timeout_s: float = 60.0) -> None:
        give_up = time.monotonic() + timeout_s
        while not condition():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < give_up
            time.sleep(0.05)

    def node(self, name: str) -> int:
        """Process id of a node of this run."""
        children = descendants(self.process.pid)
        return next(pid for pid in children if f"--name\0{name}\0" in command_line(pid))

    def agent(self) -> int:
        """Process id of this run's links agent."""
        children = descendants(self.process.pid)
        return next(pid for pid in children if "testbed.links.agent" in command_line(pid))


def descendants(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [grand for child in map(int, children) for grand in [child, *descendants(child)]]


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def ours() -> set[str]:
    """Namespaces and host links of ours, and processes of nodes and agents."""
    namespaces = {path.name for path in Path("/run/netns").glob("nw-*")}
    links = {path.name for path in Path("/sys/class/net").iterdir() if path.name.startswith("nw")}
    processes = {
        path.name
        for path in Path("/proc").iterdir()
        if path.name.isdigit()
        and re.search(r"testbed\.(session\.node|links\.agent)", command_line(int(path.name)))
    }
    return namespaces | links | processes


def settle(before: set[str], timeout_s: float = 10.0) -> set[str]:
    """What there is more than before; processes that are ending get some time for it."""
    give_up = time.monotonic() + timeout_s
    while (left := ours() - before) and time.monotonic() < give_up:
        time.sleep(0.1)
    return left


@pytest.fixture
def nothing_left() -> Iterator[set[str]]:
    before = ours()
    yield before
    assert settle(before) == set()


@pytest.fixture
def scenario(tmp_path: Path) -> Callable[..., str]:
    def write(steps: int = 25, algorithms: str = "topk-0.15") -> str:
        path = tmp_path / "small.yaml"
        path.write_text(SCENARIO.format(steps=steps, algorithms=algorithms))
        return str(path)

    return write


Write = Callable[..., str]


def test_a_run_prints_its_json_and_leaves_its_records(
    tmp_path: Path, scenario: Write, nothing_left: set[str]
) -> None:
    code, out, err = Command(
        tmp_path, "run", scenario(algorithms="none, adatopk"), "--json"
    ).finish()
    runs = json.loads(out)["runs"]
    assert [run["algorithm"] for run in runs] == ["none", "adatopk"], err
    assert set(runs[0]) == {
        "dir", "algorithm", "seed", "verdict", "time_s", "steps", "accuracy", "bytes_up",
        "bytes_down", "mean_k",
    }  # fmt: skip
    assert code == (1 if "invalid" in {run["verdict"] for run in runs} else 0)
    for run in runs:
        directory = Path(run["dir"])
        summary = json.loads((directory / "summary.json").read_text())
        assert run["steps"] == 25 and run["accuracy"] > 0.3
        assert summary["measures"]["byte_identity"]["state"] == "valid", summary["reasons"]
        assert summary["measures"]["frame_identity"]["state"] == "valid", summary["reasons"]
        manifest = json.loads((directory / "manifest.json").read_text())
        assert manifest["congestion"] == "cubic" and manifest["fabric"] == "netns"
        assert {(link["link"], link["direction"]) for link in manifest["links"]} == {
            (node, way) for node in ("server", "worker-0", "worker-1") for way in ("up", "down")
        }
    figures = {path.suffix for path in tmp_path.glob("comparisons/*/figures/*")}
    assert figures == {".png", ".pdf", ".csv"}
    replayed = subprocess.run(
        [sys.executable, "-m", "testbed", "replay-controller", runs[1]["dir"]], check=False
    )
    assert replayed.returncode == 0


def test_the_same_seed_sends_the_same_payloads(
    tmp_path: Path, scenario: Write, nothing_left: set[str]
) -> None:
    payloads = []
    for name in ("first", "second"):
        command = Command(tmp_path / name, "run", scenario(steps=12), "--quiet")
        command.finish()
        payloads.append({(s["node"], s["step"]): s["payload_crc"] for s in command.steps()})
    assert len(payloads[0]) == 24
    assert payloads[0] == payloads[1]


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
    assert re.search(r"node 'worker-1' was lost at step \d+: killed by signal 9", err), err
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
