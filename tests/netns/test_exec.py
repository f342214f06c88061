"""``testbed exec`` as a user runs it: output, environment, records, failures, and an end on demand."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_rig import Command, ours, settle
from groups_rig import no_groups_left

from testbed.records.run_directory import read_events, read_jsonl

pytestmark = pytest.mark.timeout(180)
SCENARIO = """
name: some-job
nodes: {{worker: {{role: worker, count: 2}}}}
links:
  default: {{up: {{rate: 40 Mbit/s, queue: 50 ms}}, down: {{rate: 40 Mbit/s, queue: 50 ms}}}}
events: [{events}]
congestion: cubic
"""
REDUCE = """
import torch
import torch.distributed as dist
from testbed import mark
dist.init_process_group("gloo")
values = torch.ones(250_000)
mark.begin()
for number in range(10):
    dist.all_reduce(values)
    mark.step(loss=1 / (number + 1))
dist.destroy_process_group()
"""


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    before = ours()
    with no_groups_left():
        yield
        assert settle(before) == set()


def start(folder: Path, *arguments: str, events: str = "") -> Command:
    path = folder / "scenario.yaml"
    path.write_text(SCENARIO.format(events=events))
    end = arguments.index("--")
    return Command(folder, "exec", str(path), *arguments[:end], *arguments[end:])


def directory(folder: Path) -> Path:
    (found,) = (folder / "runs").iterdir()
    return found


def events_of(folder: Path, kind: str) -> list[dict[str, Any]]:
    return read_events(directory(folder)).get(kind, [])


def test_output_has_the_nodes_names_and_is_kept(tmp_path: Path) -> None:
    script = "echo I am $NARROWS_NODE, $LOCAL_RANK of $LOCAL_WORLD_SIZE, $RANK of $WORLD_SIZE; echo so >&2"
    command = start(tmp_path, "--nproc", "2", "--name", "hello", "--", "sh", "-c", script)
    out, _ = command.accept()
    said = sorted(line for line in out.splitlines() if "I am" in line)
    assert said == [
        "worker-0 | [0] I am worker-0, 0 of 2, 0 of 4",
        "worker-0 | [1] I am worker-0, 1 of 2, 1 of 4",
        "worker-1 | [0] I am worker-1, 0 of 2, 2 of 4",
        "worker-1 | [1] I am worker-1, 1 of 2, 3 of 4",
    ]
    kept = (directory(tmp_path) / "log" / "worker-1.log").read_text().splitlines()
    assert sorted(kept) == [
        "[0] I am worker-1, 0 of 2, 2 of 4", "[0] so",
        "[1] I am worker-1, 1 of 2, 3 of 4", "[1] so",
    ]  # fmt: skip
    manifest = json.loads((directory(tmp_path) / "manifest.json").read_text())
    assert manifest["algorithm"] == {"name": "hello", "command": ["sh", "-c", script], "nproc": 2}
    assert [record["status"] for record in events_of(tmp_path, "process")] == [0] * 4


@pytest.mark.judged
def test_a_jobs_bytes_are_on_its_links_and_the_history_waits_for_it(tmp_path: Path) -> None:
    script = tmp_path / "reduce.py"
    script.write_text(REDUCE)
    lower = "{kind: step, links: [all], at: 0.5 s, rate: 20 Mbit/s}"
    start(tmp_path, "--await-begin", "--", "python", str(script), events=lower).accept(120.0)
    samples = [s for s in read_jsonl(directory(tmp_path) / "links.jsonl") if s["kind"] == "sample"]
    for node in ("worker-0", "worker-1"):
        up = [s for s in samples if s["link"] == node and s["direction"] == "up"]
        payload = sum(s["delivered_bits"] / 8 - 66 * s["packets"] for s in up)
        assert payload == pytest.approx(10 * 4 * 250_000, rel=0.01)  # 2(n - 1)/n of it, and n = 2
    steps = [mark for mark in events_of(tmp_path, "mark") if mark["what"] == "step"]
    assert sorted((m["rank"], m["number"]) for m in steps) == [
        (rank, n + 1) for rank in range(2) for n in range(10)
    ]
    assert {m["number"]: m["values"]["loss"] for m in steps}[4] == 0.25
    begun = [m["time_s"] for m in events_of(tmp_path, "mark") if m["what"] == "begin"]
    assert len(begun) == 2 and all(time_s < 0 for time_s in begun)
    assert all(mark["time_s"] > 0 for mark in steps)
    changes = [c for c in read_jsonl(directory(tmp_path) / "links.jsonl") if c["kind"] == "change"]
    assert {(c["link"], c["due_s"], c["rate_bits"]) for c in changes} == {
        (node, 0.5, 20_000_000) for node in ("worker-0", "worker-1")
    }


def test_who_only_says_ready_is_heard(tmp_path: Path) -> None:
    script = "from testbed import mark; mark.begin()"
    command = start(tmp_path, "--await-begin", "--", sys.executable, "-c", script)
    command.accept(120.0)
    assert [mark["what"] for mark in events_of(tmp_path, "mark")] == ["begin", "begin"]


def test_the_environment_is_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What this program itself needs is not in it, and what its user wants is, whatever that does to Python."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "mine"))
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    names = ["OPENBLAS_NUM_THREADS", "NARROWS_ENVIRONMENT", "MORE", "PYTHONHASHSEED"]
    script = (
        "import os, testbed.mark; first, *others = os.environ['PYTHONPATH'].split(':'); "
        f"print('found', first, *map(os.listdir, others), *map(os.environ.get, {names}))"
    )
    more = ("--env", "MORE=a=b", "--env", "PYTHONHASHSEED=5")
    out, _ = start(tmp_path, *more, "--", sys.executable, "-B", "-c", script).accept()
    (line,) = {line.partition("found ")[2] for line in out.splitlines() if "found" in line}
    assert line == f"{tmp_path}/mine ['testbed'] None None a=b 5"


def test_the_first_to_fail_is_named_and_the_others_are_ended(tmp_path: Path) -> None:
    script = "if [ $RANK = 1 ]; then sleep 1; echo out of luck; exit 7; fi; sleep 300"
    code, _, err = start(tmp_path, "--", "sh", "-c", script).finish(90.0)
    assert code == 1
    assert "rank 1 on node 'worker-1' ended with status 7; its last output: out of luck" in err
    found = {record["rank"]: record for record in events_of(tmp_path, "process")}
    assert (found[1]["status"], found[1]["asked"]) == (7, False)
    assert (found[0]["status"], found[0]["asked"]) == (-signal.SIGTERM, True)
    summary = json.loads((directory(tmp_path) / "summary.json").read_text())
    assert summary["verdict"] == "invalid" and "status 7" in summary["reasons"][0]


def test_a_command_that_is_not_there(tmp_path: Path) -> None:
    code, _, err = start(tmp_path, "--", "no-such-command").finish()
    assert code == 1
    assert "status 127" in err and "no-such-command: No such file or directory" in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_job_is_ended_with_its_children(tmp_path: Path, number: int) -> None:
    script = "trap 'echo asked; exit 0' TERM; sleep 300 & echo begun; while :; do wait; done"
    command = start(tmp_path, "--", "sh", "-c", script)
    command.until(lambda: len(list(tmp_path.glob("runs/*/log/worker-*.log"))) == 2)
    command.process.send_signal(number)
    code, out, err = command.finish(60.0)
    assert code == 1 and "interrupted by SIG" in err and "records in" in err
    assert out.count("asked") == 2


@pytest.mark.judged
def test_what_the_scenario_does_to_nodes_is_no_failure(tmp_path: Path) -> None:
    happening = "{kind: pause, nodes: [worker-0], at: 500 ms, for: 1500 ms}, {kind: kill, nodes: [worker-1], at: 1 s}"
    script = "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 0.25; echo tick; done"
    out, _ = start(tmp_path, "--", "sh", "-c", script, events=happening).accept()
    assert out.count("worker-0 | tick") == 12 and out.count("worker-1 | tick") < 12
    ended = {record["node"]: record for record in events_of(tmp_path, "process")}
    assert ended["worker-0"]["ended_s"] > 4.0
    assert (ended["worker-1"]["status"], ended["worker-1"]["asked"]) == (-signal.SIGKILL, True)


@pytest.mark.judged
def test_a_time_limit_is_no_failure_and_a_paused_node_is_asked_to_end_as_others_are(
    tmp_path: Path,
) -> None:
    """Who does not end when asked is made to, 5 s later."""
    deaf = "trap '' TERM; while true; do sleep 1; done"
    script = f"if [ $RANK = 1 ]; then {deaf}; fi; trap 'echo asked; exit 0' TERM; sleep 300 & wait"
    away = "{kind: pause, nodes: [worker-0], at: 1 s, for: 9 s}"
    command = start(tmp_path, "--seconds", "2", "--", "sh", "-c", script, events=away)
    out, err = command.accept(50.0)
    assert "the time is up" in err
    assert out.splitlines() == ["worker-0 | asked"]
    ended = {record["node"]: record for record in events_of(tmp_path, "process")}
    assert ended["worker-0"]["status"] == 0 and ended["worker-1"]["status"] == -signal.SIGKILL
    assert ended["worker-0"]["ended_s"] < 10 and 7 <= ended["worker-1"]["ended_s"] < 15
    assert all(record["asked"] for record in ended.values())


@pytest.mark.judged
def test_a_time_limit_is_one_of_the_scenarios_time(tmp_path: Path) -> None:
    path = tmp_path / "scenario.yaml"
    path.write_text(SCENARIO.format(events="") + "dilation: 2\n")
    Command(tmp_path, "exec", str(path), "--seconds", "1", "--", "sleep", "60").accept(50.0)
    ended = [record["ended_s"] for record in events_of(tmp_path, "process")]
    assert len(ended) == 2 and all(2.0 <= end_s < 5.0 for end_s in ended)


@pytest.mark.judged
def test_hosts_make_the_scenarios_traffic_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "scenario.yaml"
    path.write_text(
        SCENARIO.format(events="{kind: kill, nodes: [guest-1], at: 1200 ms, restart_after: 400 ms}")
        + "traffic: [{name: noise, from: guest-0, to: guest-1, kind: tcp, on: 400 ms, off: 300 ms}]\n"
        + "racks: {left: {members: [worker-0, guest-0], up: {rate: 30 Mbit/s, queue: 50 ms}, "
        "down: {rate: 30 Mbit/s, queue: 50 ms}}}\n"
    )
    text = path.read_text().replace("count: 2}}", "count: 2}, guest: {role: host, count: 2}}")
    path.write_text(text)
    command = Command(tmp_path, "exec", str(path), "--", "sleep", "4")
    command.accept(90.0)
    bursts = list(read_jsonl(directory(tmp_path) / "traffic.jsonl"))
    sent = [record["bytes"] for record in bursts if record["kind"] == "sent"]
    assert len(sent) >= 3 and max(sent) > 500_000
    samples = [s for s in read_jsonl(directory(tmp_path) / "links.jsonl") if s["kind"] == "sample"]
    rack = [s for s in samples if (s["link"], s["direction"]) == ("left", "up")]
    assert sum(s["delivered_bits"] for s in rack) > 8 * max(sent)
