"""Runs on a swarm of three engines, each with a clock of its own: the same results as in virtual time; what dies is named; nothing is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from lab import CLOCKS, Lab, child
from processes_rig import KINDS, namespace, status_of
from rights_rig import Container, Row, RunningCommand, assert_documented, run_in
from verdict_rig import accepted_run, accepted_runs

from testbed.process import environment
from testbed.records.run_directory import read_events, read_json, read_jsonl

pytestmark = [pytest.mark.root, pytest.mark.docker, pytest.mark.timeout(900)]

SCENARIO = """
name: spread
nodes: {{server: {{role: server}}, worker: {{role: worker, count: 3}}}}
links:
  default: {{up: {{rate: 40 Mbit/s, queue: 50 ms}}, down: {{rate: 40 Mbit/s, queue: 50 ms}}}}
events: [{{kind: step, links: [server], at: 1 s, rate: 20 Mbit/s}}]
train:
  task: digits
  model: mlp
  optimizer: {{name: sgd, lr: 0.1}}
  pace: 300 ms
  stop: {{steps: {steps}}}
  evaluate_every: 5
algorithms: [topk-0.15]
congestion: cubic
"""
MANY = """
name: many
nodes: {{server: {{role: server}}, worker: {{role: worker, count: 24}}}}
links:
  default: {{up: {{rate: 10 Mbit/s, queue: 50 ms}}, down: {{rate: 10 Mbit/s, queue: 50 ms}}}}
train:
  task: digits
  model: mlp
  gradients: none
  pace: 3 s
  stop: {{steps: {steps}}}
algorithms: [topk-0.15]
congestion: cubic
"""
CROSSED = (
    SCENARIO.replace("count: 3}}", "count: 3}}, noise: {{role: host, count: 2}}")
    + """
traffic: [{{name: bulk, from: noise-0, to: noise-1, kind: tcp, at: 0 s}}]
"""
)
DISTURBED = """
name: disturbed
nodes: {{server: {{role: server}}, worker: {{role: worker, count: 3}}, noise: {{role: host, count: 2}}}}
racks:
  a: {{members: [worker-1, worker-2, noise-1], up: {{rate: 30 Mbit/s, queue: 50 ms}}, down: {{rate: 50 Mbit/s, queue: 50 ms}}}}
links:
  default: {{up: {{rate: 40 Mbit/s, queue: 50 ms}}, down: {{rate: 40 Mbit/s, queue: 50 ms}}}}
events:
  - {{kind: pause, nodes: [worker-1], at: 1 s, for: 1 s}}
  - {{kind: kill, nodes: [noise-1], at: 1500 ms, restart_after: 800 ms}}
  - {{kind: step, links: [a], direction: up, at: 3 s, rate: 20 Mbit/s}}
  - {{kind: kill, nodes: [worker-2], at: 4 s}}
traffic: [{{name: steady, from: noise-1, to: noise-0, kind: udp, rate: 4 Mbit/s, at: 0 s}}]
train:
  task: digits
  model: mlp
  optimizer: {{name: sgd, lr: 0.1}}
  pace: 300 ms
  stop: {{steps: {steps}}}
algorithms: [backup-1]
seeds: [1, 2]
congestion: cubic
"""
BARE = """
name: bare
nodes: {worker: {role: worker, count: 3}}
links: {default: {up: {rate: 40 Mbit/s, queue: 50 ms}, down: {rate: 40 Mbit/s, queue: 50 ms}}}
congestion: cubic
"""
JOB = """
import os, pathlib, torch
import torch.distributed as dist
from testbed import mark
dist.init_process_group("gloo")
values = torch.ones(250_000)
mark.begin()
for _ in range(6):
    values = torch.ones(250_000)
    dist.all_reduce(values)
    mark.step(total=float(values[0]))
dist.destroy_process_group()
print(pathlib.Path("data/word.txt").read_text(), os.environ["WORLD_SIZE"], int(values.sum()))
pathlib.Path(os.environ["NARROWS_OUTPUT"], "weights").write_bytes(bytes([os.getuid() % 256]))
print("of thread", os.environ["OMP_NUM_THREADS"], "in", os.environ["NARROWS_NODE"])
"""
OWNER = 4711
"""Owns the folder of a job: nobody is root in a task."""
FAILS = """
echo $RANK > $NARROWS_OUTPUT/rank
mkfifo /tmp/go
read go < /tmp/go
echo begun
test $RANK = 2 && exit 7
sleep 300
"""
"""A job that waits until somebody writes to the pipe in its /tmp."""
STEPS = 14
REACHED_S, NAMED_S, ENDED_S = 300.0, 10.0, 300.0
"""Where something hangs: beside other tests three engines and a run of half a minute have taken over 90 s."""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab(3) as made:
        yield made


class SwarmRun:
    """``testbed run`` on the first host."""

    def __init__(
        self,
        lab: Lab,
        folder: Path,
        fabric: str,
        steps: int,
        *options: str,
        text: str = SCENARIO,
    ) -> None:
        self.folder = folder
        folder.mkdir()
        scenario = folder / "scenario.yaml"
        scenario.write_text(text.format(steps=steps))
        command = [
            sys.executable,
            "-m",
            "testbed",
            "run",
            str(scenario),
            "--fabric",
            fabric,
            "--no-figures",
            *options,
        ]
        self.process = subprocess.Popen(
            lab.manager.command(*command, "--out", str(folder)),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment(), cwd=folder,
        )  # fmt: skip

    def ended(self, within_s: float = REACHED_S) -> str:
        return self.process.communicate(timeout=within_s)[0]

    @property
    def directory(self) -> Path:
        (directory,) = (self.folder / "runs").iterdir()
        return directory

    def await_steps(self) -> None:
        give_up = time.monotonic() + REACHED_S
        while not any(
            path.stat().st_size for path in self.folder.glob("runs/*/events/worker-*.jsonl")
        ):
            assert self.process.poll() is None, self.ended()
            assert time.monotonic() < give_up
            time.sleep(0.1)

    def trained(self) -> dict[str, Any]:
        """Payloads of every step, and accuracies."""
        events = read_events(self.directory)
        steps = {(e["node"], e["step"]): e["payload_crc"] for e in events["step"]}
        accuracy = [(e["node"], e["step"], e["accuracy"]) for e in events["evaluation"]]
        return {"payloads": steps, "accuracy": sorted(accuracy)}


def rights(lab: Lab, pid: int, verb: str, folder: Path) -> list[tuple[str, Row]]:
    """Rights of the processes of a run in ``folder``. ``pid``: of the command, on the first host."""
    users = {"0": "root", str(OWNER): "the folder's owner"}
    of_the_lab = {kind: namespace(lab.manager.pid, kind) for kind in KINDS}
    return RunningCommand(
        pid, run_in(folder, "stack.yaml"), verb, folder, users,
        given=of_the_lab, containers=partial(containers_of, lab),
    ).rows()  # fmt: skip


def containers_of(lab: Lab, run: str) -> Iterator[Container]:
    """A run's containers on all hosts."""
    shown = ["--no-trunc", "--format", "{{.ID}} {{.Names}}"]
    for host in lab.hosts:
        listed = host.run("docker", "ps", *shown, "--filter", f"label=narrows.run={run}")
        for identity, name in map(str.split, listed.splitlines()):
            yield Container(name, first_process(identity), host.pid)


def first_process(container: str) -> int:
    """The process that is number 1 in a container, whichever engine has made it."""
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile
            number = status_of(path.name)["NSpid"][-1]
            if number == "1" and container in (path / "cgroup").read_text():
                return int(path.name)
    raise AssertionError(f"no process in container {container}")


@pytest.mark.parametrize("other", ["sim", pytest.param("docker", marks=pytest.mark.nightly)])
def test_a_swarm_trains_as_virtual_time_and_one_engine_do(
    lab: Lab, tmp_path: Path, other: str
) -> None:
    spread = SwarmRun(lab, tmp_path / "swarm", "swarm", STEPS)
    said = spread.ended()
    assert spread.process.returncode in (0, 1), said
    accepted_run(spread.directory, spread.process.returncode)
    assert lab.await_nothing_left() == []
    single = SwarmRun(lab, tmp_path / other, other, STEPS)
    said = single.ended()
    assert single.process.returncode in ((0, 1) if other == "docker" else (0,)), said
    assert spread.trained() == single.trained()
    assert len(spread.trained()["payloads"]) == 3 * STEPS
    _check_hosts(spread.directory)


def _check_hosts(directory: Path) -> None:
    """Nodes are on three hosts, whose clocks are as far apart as they were made."""
    hosts = read_json(directory / "manifest.json")["hosts"]
    assert [host["name"] for host in hosts] == ["h1", "h2", "h3"]
    assert sorted(len(host["nodes"]) for host in hosts) == [1, 1, 2]
    for host, ahead_s in zip(hosts, CLOCKS, strict=True):
        assert abs(host["clock"]["ahead_ns"] - ahead_s * 1e9) <= host["clock"]["error_ns"] < 5e6
    looks = [each for each in read_jsonl(directory / "links.jsonl") if each["kind"] == "host_clock"]
    assert {each["host"] for each in looks} == {"h1", "h2", "h3"}
    certified = read_json(directory / "certificate.json")["hosts"]
    for first, last in zip(hosts, certified, strict=True):
        # a busy machine answers late, and knows how inexact that makes it
        known_ns = first["clock"]["error_ns"] + last["clock"]["error_ns"]
        assert last["clock"]["moved_ns"] <= known_ns
    assert all(
        min(look["error_ns"] for look in looks if look["host"] == name) < 5e6
        for name in ("h1", "h2", "h3")
    )
    assert certified[1]["underlay"]["overhead_bytes"] == 50
    assert 0 < certified[1]["emulated_share"] < 0.7


# every day tests/docker/test_containers_run.py has such events, and tests/unit/test_swarm_tasks.py the first process of a task
@pytest.mark.nightly
def test_nodes_in_a_rack_are_paused_killed_and_started_again_by_the_agent_of_their_host(
    lab: Lab, tmp_path: Path
) -> None:
    """The second run has the worker again that the first one lost, in the same rack."""
    run = SwarmRun(lab, tmp_path / "disturbed", "swarm", 26, text=DISTURBED)
    said = run.ended()
    assert run.process.returncode in (0, 1), said
    directories = sorted((run.folder / "runs").iterdir())
    assert len(directories) == 2, said
    accepted_runs(directories, run.process.returncode, ["worker-2"])
    for directory in directories:
        assert read_json(directory / "summary.json")["lost"] == ["worker-2"], said
        changes = [e for e in read_jsonl(directory / "links.jsonl") if e["kind"] == "node"]
        done = [(each["node"], each["action"]) for each in changes]
        assert done == [("worker-1", "pause"), ("noise-1", "kill"), ("worker-1", "resume"),
                        ("noise-1", "restart"), ("worker-2", "kill")]  # fmt: skip
        sent = [e for e in read_jsonl(directory / "traffic.jsonl") if e["kind"] == "sent"]
        assert max(each["start_s"] for each in sent) >= 2.0  # by the host that came back
        events = read_events(directory)["step"]
        ends = sorted(e["end_s"] for e in events if e["node"] == "worker-1")
        assert max(late - early for early, late in pairwise(ends)) > 0.9
        assert max(e["end_s"] for e in events if e["node"] == "worker-2") < 4.5
        _check_rack(directory, ["worker-1", "worker-2", "noise-1"])
    assert lab.await_nothing_left() == []


def _check_rack(directory: Path, members: list[str]) -> None:
    """All on one host; what they send to others has passed their shared link."""
    hosts = read_json(directory / "manifest.json")["hosts"]
    assert [set(members) <= set(host["nodes"]) for host in hosts].count(True) == 1
    links = read_json(directory / "evidence.json")["links"]
    sent = {link["link"]: link["class_bytes"] for link in links if link["direction"] == "up"}
    assert sent["a"] > 500_000
    assert sent["a"] == pytest.approx(sum(sent[member] for member in members), rel=0.02)


def executed(
    lab: Lab,
    folder: Path,
    *command: str,
    scenario: str = BARE,
    meanwhile: Callable[[subprocess.Popen[str]], None] | None = None,
    stands: bool = False,
) -> tuple[subprocess.CompletedProcess[str], Path]:
    """``testbed exec`` on the first host, in a folder of its own; also the run's directory."""
    (folder / "scenario.yaml").write_text(scenario)
    os.chown(folder, OWNER, OWNER)
    here = ["env", "-C", str(folder), sys.executable, "-m"]  # nsenter begins at the root
    options = [*here, "testbed", "exec", "scenario.yaml", "--fabric", "swarm"]
    line = lab.manager.command(*options, *command)
    with subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment()
    ) as process:
        try:
            if meanwhile is not None:
                meanwhile(process)
            said = process.communicate(timeout=REACHED_S)[0]
        finally:
            process.kill()
    done = subprocess.CompletedProcess(line, process.returncode, said)
    if stands:
        assert len({line.split()[0] for line in lab.left()}) == 3, done.stdout
        lab.manager.run(sys.executable, "-m", "testbed", "clean", "--all", cwd=folder)
    assert lab.await_nothing_left() == []
    assert (folder / "runs").exists(), done.stdout
    (directory,) = (folder / "runs").iterdir()
    return done, directory


def test_a_command_of_ones_own_runs_on_three_hosts(lab: Lab, tmp_path: Path) -> None:
    """With the files of its folder; its marks are of every host's own clock."""
    (tmp_path / "job.py").write_text(JOB)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "word.txt").write_text("narrow")
    done, directory = executed(lab, tmp_path, "--await-begin", "--", "python", "job.py")
    assert done.returncode in (0, 1), done.stdout
    accepted_run(directory, done.returncode)
    for rank in range(3):
        log = (directory / "log" / f"worker-{rank}.log").read_text()
        with tarfile.open(directory / "output" / f"worker-{rank}.tar") as kept:
            weights = kept.extractfile("weights")
            assert weights is not None
            assert weights.read() == bytes([4711 % 256])
        assert log.splitlines()[-2:] == ["narrow 3 750000", f"of thread 2 in worker-{rank}"]
    events = read_events(directory)
    assert [event["status"] for event in events["process"]] == [0, 0, 0]
    steps = sorted(
        (e["node"], e["number"], e["time_s"]) for e in events["mark"] if e["what"] == "step"
    )
    assert [each[:2] for each in steps] == [
        (f"worker-{n}", s) for n in range(3) for s in range(1, 7)
    ]
    for number in range(6):  # nobody has a step's sum before all have taken part in it
        ends = [steps[6 * rank + number][2] for rank in range(3)]
        assert max(ends) - min(ends) < 0.5
        assert 0 < min(ends) < 60
    sent = [e for e in events["socket"] if e["interface"] == "data"]
    assert {e["peer_node"] for e in sent} == {"worker-0", "worker-1", "worker-2"}
    assert all(e["ended_s"] is None or -60 < e["ended_s"] < 60 for e in sent)
    assert sum(e["bytes_sent"] for e in sent) > 6 * 4_000_000 * 0.9
    hosts = read_json(directory / "manifest.json")["hosts"]
    assert [len(host["nodes"]) for host in hosts] == [1, 1, 1]


def test_a_rank_that_fails_on_another_host_is_named_with_its_status(
    lab: Lab, tmp_path: Path
) -> None:
    """And what it has written is there, also while its task is left standing.

    Until then all processes have the rights that are documented.
    """
    (tmp_path / "job.sh").write_text(FAILS)
    rows = []

    def meanwhile(process: subprocess.Popen[str]) -> None:
        pipes: list[Path] = []
        give_up = time.monotonic() + REACHED_S
        while len(pipes) < 3:
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < give_up
            time.sleep(0.2)
            if list(tmp_path.glob("runs/*/stack.yaml")):
                firsts = [each.first for each in containers_of(lab, run_in(tmp_path, "stack.yaml"))]
                tops = [Path(f"/proc/{first}/root/tmp/go") for first in firsts]
                pipes = [pipe for pipe in tops if pipe.exists()]
        rows.extend(rights(lab, child(process.pid), "exec", tmp_path))
        for pipe in pipes:
            pipe.write_text("go\n")

    done, directory = executed(
        lab, tmp_path, "--keep", "--", "sh", "job.sh", meanwhile=meanwhile, stands=True
    )
    assert_documented(rows, "swarm", "exec")
    assert done.returncode == 1
    assert "rank 2 on node 'worker-2' ended with status 7; its last output: begun" in done.stdout
    ended = {e["node"]: (e["status"], e["asked"]) for e in read_events(directory)["process"]}
    term = (-signal.SIGTERM, True)
    assert ended == {"worker-0": term, "worker-1": term, "worker-2": (7, False)}
    with tarfile.open(directory / "output" / "worker-2.tar") as kept:
        assert kept.extractfile("rank").read() == b"2\n"  # type: ignore[union-attr]


@pytest.mark.nightly
def test_clean_removes_what_a_killed_controller_left_on_every_host(
    lab: Lab, tmp_path: Path
) -> None:
    """Until then all processes have the rights that are documented."""
    run = SwarmRun(lab, tmp_path / "killed", "swarm", 1000, text=CROSSED)
    run.await_steps()
    rows = rights(lab, child(run.process.pid), "run", run.folder)
    assert len({line.split()[0] for line in lab.left()}) == 3
    os.kill(child(run.process.pid), signal.SIGKILL)
    run.ended()
    cleaned = lab.manager.run(sys.executable, "-m", "testbed", "clean", "--json", cwd=tmp_path)
    (removed,) = json.loads(cleaned)["runs"]
    assert sum("secret" in thing for thing in removed["removed"]) == 1
    assert lab.await_nothing_left() == []
    assert_documented(rows, "swarm", "run")


@pytest.mark.nightly
def test_a_cut_cable_is_named_and_the_host_is_clean_once_it_is_back(
    lab: Lab, tmp_path: Path
) -> None:
    run = SwarmRun(lab, tmp_path / "cut", "swarm", 1000)
    run.await_steps()
    lab.hosts[2].cable("down")
    cut = time.monotonic()
    try:
        while not (run.directory / "certificate.json").exists():
            assert time.monotonic() - cut < NAMED_S, "nobody has noticed"
            time.sleep(0.05)
        said = run.ended(ENDED_S)
    finally:
        lab.hosts[2].cable("up")
    assert run.process.returncode == 1
    assert "host h3" in said
    assert lab.await_nothing_left() == []


@pytest.mark.nightly
def test_twenty_four_workers_on_three_hosts_are_started_and_observed(
    lab: Lab, tmp_path: Path
) -> None:
    run = SwarmRun(lab, tmp_path / "many", "swarm", 10, "--observe", text=MANY)
    run.await_steps()
    scraped = "http://127.0.0.1:9090/api/v1/query?query=count(up==1)"
    script = f"from urllib.request import urlopen; print(urlopen({scraped!r}).read().decode())"
    give_up = time.monotonic() + REACHED_S
    while run.process.poll() is None:
        answer = json.loads(lab.manager.run(sys.executable, "-c", script))
        up = [int(each["value"][1]) for each in answer["data"]["result"]]
        if up == [1 + 24 + 1]:  # server, workers, session
            break
        assert time.monotonic() < give_up, up
        time.sleep(0.5)
    else:
        pytest.fail(f"not all were scraped: {run.ended()}")
    said = run.ended()
    accepted_run(run.directory, run.process.returncode)
    payloads = read_events(run.directory)["step"]
    assert Counter(step["node"] for step in payloads) == {f"worker-{n}": 10 for n in range(24)}, (
        said
    )
    hosts = read_json(run.directory / "manifest.json")["hosts"]
    assert [len(host["nodes"]) for host in hosts] == [9, 8, 8]
    assert lab.await_nothing_left() == []


@pytest.mark.nightly
def test_a_host_that_dies_is_named_with_its_nodes(lab: Lab, tmp_path: Path) -> None:
    run = SwarmRun(lab, tmp_path / "dies", "swarm", 1000)
    run.await_steps()
    hosts = read_json(run.directory / "manifest.json")["hosts"]
    victim = next(host for host in hosts if host["name"] == "h3")
    lab.hosts[2].kill()
    died = time.monotonic()
    while not (run.directory / "certificate.json").exists():
        assert time.monotonic() - died < NAMED_S, "nobody has noticed"
        time.sleep(0.05)
    said = run.ended(ENDED_S)
    assert run.process.returncode == 1
    assert "host h3" in said
    assert victim["nodes"]
    assert any(node in said for node in victim["nodes"])
    assert lab.await_nothing_left() == []
