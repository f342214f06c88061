"""Runs in virtual time whose messages are recorded and sent again: the same bytes, and the time that links make of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from testbed.cli import main
from testbed.comm_trace.from_records import of_run
from testbed.comm_trace.trace import MessageTrace, TraceOperation, read, write
from testbed.errors import InputError
from testbed.records.run_directory import read_events, read_json
from testbed.runner.comm_replay import CommReplay
from testbed.runner.experiment import prepare
from testbed.runner.run import MESSAGES, replay_messages, run
from testbed.scenario.load import load

SCENARIO = """
name: played
nodes: {server: {role: server, count: SERVERS}, worker: {role: worker, count: 3}}
links:
  default: {up: {rate: RATE, queue: 50 ms}, down: {rate: RATE, queue: 50 ms}}
train: {task: digits, model: mlp, batch: 32, optimizer: {name: sgd, lr: 0.1}, pace: 100 ms,
  stop: {steps: 6}, gradients: none}
algorithms: [ALGORITHM]
dilation: DILATION
congestion: cubic
"""
BUCKETS = "{name: small, from: topk-0.1, bucket_bytes: 4 kB}"


def scenario(folder: Path, **changes: object) -> Path:
    given = {"RATE": "20 Mbit/s", "SERVERS": 1, "ALGORITHM": "none", "DILATION": 1, **changes}
    text = SCENARIO
    for name, value in given.items():
        text = text.replace(name, str(value))
    path = folder / f"{len(list(folder.iterdir()))}.yaml"
    path.write_text(
        text if given["ALGORITHM"] != BUCKETS else text.replace(", gradients: none", "")
    )
    return path


def trained(path: Path) -> dict[str, Any]:
    (entry,) = run(prepare(path), "sim", path.parent / "trained", quiet=True).runs
    return entry


def played(trace: MessageTrace, path: Path, *, timed: bool = False) -> dict[str, Any]:
    play = CommReplay(load(path), trace, timed=timed)
    return replay_messages(play, "sim", path.parent / "played", quiet=True)


@pytest.mark.parametrize(
    ("algorithm", "servers"),
    [("none", 1), ("none", 2), ("topk-0.1", 1), (BUCKETS, 1), ("ssgd", 1), ("ring", 1), ("ring-bf16", 1)],
)  # fmt: skip
def test_the_same_links_carry_the_same_bytes_in_the_same_time(
    tmp_path: Path, algorithm: str, servers: int
) -> None:
    path = scenario(tmp_path, ALGORITHM=algorithm, SERVERS=servers)
    was = trained(path)
    now = played(of_run(Path(was["dir"])), path)
    assert (now["bytes_up"], now["bytes_down"]) == (was["bytes_up"], was["bytes_down"])
    assert now["time_s"] == pytest.approx(was["time_s"], rel=0.03)
    assert now["steps"] == 6
    assert now["verdict"] == "valid"


def test_a_computation_begins_when_the_answer_was_read(tmp_path: Path) -> None:
    """A worker that took 10 ms to read every answer began 10 ms sooner to compute, and computed for so much longer."""
    directory = Path(trained(scenario(tmp_path))["dir"])

    def computed() -> list[float]:
        own = of_run(directory).operations["worker-0"]
        return [operation.seconds for operation in own if operation.kind == "compute"]

    before = computed()
    file = directory / "events" / "worker-0.jsonl"
    records = [json.loads(line) for line in file.read_text().splitlines()]
    for record in records:
        if record["kind"] == "step":
            record["decompress_s"] += 0.01
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    added = [after - was for after, was in zip(computed(), before, strict=True)]
    assert added == pytest.approx([0.0, *[0.01] * 6])


@pytest.mark.parametrize("algorithm", ["none", "ssgd", "ring"])
def test_what_compression_takes_is_before_the_messages_leave(
    tmp_path: Path, algorithm: str
) -> None:
    """Whether a worker took 10 ms of its step to compute or to compress: its messages left at the same time."""
    directory = Path(trained(scenario(tmp_path, ALGORITHM=algorithm))["dir"])
    before = of_run(directory)
    for file in directory.glob("events/worker-*.jsonl"):
        records = [json.loads(line) for line in file.read_text().splitlines()]
        for record in records:
            if record["kind"] == "step":
                record["compute_s"] -= 0.01
                record["compress_s"] += 0.01
        file.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert of_run(directory) == before


def test_workers_that_rest_take_in_the_answers(tmp_path: Path) -> None:
    path = scenario(tmp_path)
    changed = path.read_text().replace(", gradients: none", "")
    path.write_text(changed.replace("pace: 100 ms", "pace: 100 ms, participation: {workers: 2}"))
    was = trained(path)
    now = played(of_run(Path(was["dir"])), path)
    assert was["bytes_up"] * 3 == was["bytes_down"] * 2
    assert (now["bytes_up"], now["bytes_down"]) == (was["bytes_up"], was["bytes_down"])
    assert now["time_s"] == pytest.approx(was["time_s"], rel=0.03)


@pytest.mark.parametrize("algorithm", ["none", "ring"])
def test_slower_links_take_what_training_takes_on_them(tmp_path: Path, algorithm: str) -> None:
    fast, slow = (
        scenario(tmp_path, ALGORITHM=algorithm, RATE=rate) for rate in ("20 Mbit/s", "10 Mbit/s")
    )
    was, there = trained(fast), trained(slow)
    assert there["time_s"] > 1.15 * was["time_s"]
    now = played(of_run(Path(was["dir"])), slow)
    assert now["time_s"] == pytest.approx(there["time_s"], rel=0.03)


def test_a_link_of_half_the_rate_takes_twice_as_long(tmp_path: Path) -> None:
    size = 5_000_000
    trace = MessageTrace(
        {
            "worker-0": (TraceOperation("compute", seconds=1.0), TraceOperation("send", (0,), peer="worker-1", bytes=size)),
            "worker-1": (TraceOperation("receive", peer="worker-0", bytes=size), TraceOperation("compute", (0,), 0.5)),
        }
    )  # fmt: skip
    for rate in (20, 10):
        found = played(trace, scenario(tmp_path, RATE=f"{rate} Mbit/s"))
        assert found["time_s"] == pytest.approx(1.5 + 8 * size * 1.05 / (1e6 * rate), rel=0.05)


def test_dilation_is_in_wall_time_alone(tmp_path: Path) -> None:
    path = scenario(tmp_path, DILATION=4)
    was = trained(path)
    now = played(of_run(Path(was["dir"])), path)
    assert now["time_s"] == pytest.approx(was["time_s"], rel=0.03)
    assert now["wall_s"] == pytest.approx(4 * now["time_s"])


def test_by_time_messages_leave_when_they_did(tmp_path: Path) -> None:
    fast, slow = scenario(tmp_path), scenario(tmp_path, RATE="10 Mbit/s")
    was = trained(fast)
    trace = of_run(Path(was["dir"]))
    timed, waited = played(trace, slow, timed=True), played(trace, slow)
    assert timed["bytes_up"] == waited["bytes_up"] == was["bytes_up"]
    assert timed["time_s"] < 0.9 * waited["time_s"]
    sent = sorted(m["sent_s"] for m in read_events(Path(timed["dir"]))["message"])
    due = sorted(
        o.begin_s or 0.0 for own in trace.operations.values() for o in own if o.kind == "send"
    )
    assert sent == pytest.approx(due, abs=0.005)


def test_a_replay_leaves_a_run_directory_with_its_trace(tmp_path: Path) -> None:
    path = scenario(tmp_path)
    trace = of_run(Path(trained(path)["dir"]))
    directory = Path(played(trace, path)["dir"])
    assert read(directory / MESSAGES) == trace
    row = read_json(directory / "manifest.json")["algorithm"]
    assert row == {"name": "messages", "messages": 36, "source": trace.source, "timed": False}
    with pytest.raises(InputError, match=r"its messages\.jsonl is the trace"):
        of_run(directory)


@pytest.mark.parametrize(
    ("algorithm", "why"),
    [
        ("ssgd-multicast", "'multicast' cannot be recorded: one copy goes to several nodes"),
        ("none+overlap", "cannot be recorded: with overlap"),
    ],
)
def test_other_runs_are_refused_by_name(tmp_path: Path, algorithm: str, why: str) -> None:
    path = scenario(tmp_path, ALGORITHM=algorithm)
    path.write_text(path.read_text().replace(", gradients: none", ""))
    with pytest.raises(InputError, match=why):
        of_run(Path(trained(path)["dir"]))


@pytest.mark.parametrize(
    ("file", "changes", "why"),
    [
        ("manifest", {"algorithm": {"name": "job", "command": ["true"], "nproc": 1}}, "no record says"),
        ("manifest", {"algorithm": {"name": "replay"}}, "nothing was trained"),
        ("manifest", {"model": {"recorded_every": 3}}, "only one of 3 workers"),
        ("manifest", {"algorithm": {"name": "x", "exchange": "allreduce"}}, "a library's own connections"),
        ("summary", {"ended": False}, "was cut short"),
    ],
)  # fmt: skip
def test_runs_without_records_of_messages_are_refused(
    tmp_path: Path, file: str, changes: dict[str, Any], why: str
) -> None:
    directory = Path(trained(scenario(tmp_path))["dir"])
    path = directory / f"{file}.json"
    path.write_text(json.dumps({**read_json(path), **changes}))
    with pytest.raises(InputError, match=why):
        of_run(directory)


def test_a_scenario_with_nothing_to_train_will_do(tmp_path: Path) -> None:
    path = tmp_path / "links.yaml"
    path.write_text(SCENARIO[: SCENARIO.index("train:")].replace("RATE", "20 Mbit/s"))
    path.write_text(path.read_text().replace("server: {role: server, count: SERVERS}, ", ""))
    sent = TraceOperation("send", peer="worker-1", bytes=5000)
    got = TraceOperation("receive", peer="worker-0", bytes=5000)
    write(MessageTrace({"worker-0": (sent,), "worker-1": (got,)}), tmp_path / "one.jsonl")
    arguments = [str(tmp_path / "one.jsonl"), str(path), "--fabric", "sim", "--quiet"]
    with pytest.raises(SystemExit) as left:
        main(["messages", "replay", *arguments, "--out", str(tmp_path)])
    assert not left.value.code


def test_a_replay_needs_no_torch(tmp_path: Path) -> None:
    path = scenario(tmp_path)
    trace = MessageTrace(
        {
            "worker-0": (TraceOperation("send", peer="server", bytes=100),),
            "server": (TraceOperation("receive", peer="worker-0", bytes=100),),
        }
    )
    write(trace, tmp_path / "one.jsonl")
    code = (
        "import sys; from testbed.cli import main\n"
        "try: main(['messages', 'replay', 'one.jsonl', sys.argv[1], '--fabric', 'sim', '--quiet'])\n"
        "except SystemExit as ended: assert not ended.code, ended\n"
        "assert 'testbed.comm_trace.replay_role' in sys.modules and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], cwd=tmp_path, check=True, timeout=60)
