"""Counters of links, steps of jobs, and a profiler's own trace, in one trace on the run's clock."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from command_here import carried_out_in
from synthetic_job import Job, make_job
from synthetic_run import Recipe, make_run
from torch.profiler import ProfilerActivity, profile, record_function
from trace_format import problems

from analysis.load import Run, load
from analysis.trace_events import ProfilerTrace, bounds_s, profiler_trace, trace, unix_t0_ns
from testbed.errors import InputError
from testbed.runner.node_events import clock_record

T0_NS = 1_790_000_000_123_456_789
BASE_NS = 1_789_000_000_000_000_000


def kineto(path: Path, rank: int | None = 0) -> Path:
    """A file as the profiler writes it: an operator from 0.5 s to 0.75 s after t0, a flow, a span of its own."""
    start_us = (T0_NS - BASE_NS) / 1000 + 500_000
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": 77, "tid": 0, "ts": start_us, "args": {"name": "python"}},
        {"ph": "M", "name": "thread_name", "pid": 77, "tid": 78, "ts": start_us, "args": {"name": "thread 78"}},
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 77, "tid": 78, "ts": start_us, "dur": 250_000.5, "args": {}},
        {"ph": "s", "id": 3, "cat": "fwdbwd", "name": "fwdbwd", "pid": 77, "tid": 78, "ts": start_us},
        {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans", "tid": "PyTorch Profiler", "ts": start_us, "dur": 9},
    ]  # fmt: skip
    whole: dict[str, Any] = {"schemaVersion": 1, "baseTimeNanoseconds": BASE_NS, "traceEvents": events}  # fmt: skip
    if rank is not None:
        whole["distributedInfo"] = {"backend": "gloo", "rank": rank, "world_size": 2}
    path.write_text(json.dumps(whole))
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return load(make_run(tmp_path_factory.mktemp("runs"), Recipe(steps=6, dilation=2.0)))


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Run:
    path = make_job(tmp_path_factory.mktemp("jobs"), Job(steps=4, dilation=2.0))
    with (path / "links.jsonl").open("a") as links:
        links.write(json.dumps({"v": 1, "kind": "clock", "unix_ns": T0_NS}) + "\n")
    return load(path)


def counters(events: list[dict[str, Any]], pid: int, name: str) -> Iterator[tuple[float, dict[str, float]]]:  # fmt: skip
    return ((e["ts"], e["args"]) for e in events if e["ph"] == "C" and (e["pid"], e["name"]) == (pid, name))  # fmt: skip


def test_links_have_counters_of_rates_and_queue_in_model_time(run: Run) -> None:
    found = trace(run, [int(step) for step in run.steps])
    assert problems(found) == []
    pid = next(e["pid"] for e in found["traceEvents"] if e["args"].get("name") == "server")
    from_s, to_s = bounds_s(run, [int(step) for step in run.steps])
    samples = [
        r for r in run.links
        if r["kind"] == "sample" and (r["link"], r["direction"]) == ("server", "down")
        and r["to_s"] / 2 >= from_s and r["from_s"] / 2 <= to_s
    ]  # fmt: skip
    rates = list(counters(found["traceEvents"], pid, "down Mbit/s"))
    assert [ts for ts, _ in rates] == pytest.approx([5e5 * r["from_s"] for r in samples], abs=1e-3)
    for (_, values), record in zip(rates, samples, strict=True):
        length_s = (record["to_s"] - record["from_s"]) / 2
        for key, bits in (("requested", "asked_bits"), ("delivered", "delivered_bits")):
            assert values[key] == pytest.approx(record[bits] / length_s / 1e6, rel=1e-6, abs=1e-6)
    queues = [values["bytes"] for _, values in counters(found["traceEvents"], pid, "down queue")]
    assert queues == [record["backlog_bytes"] for record in samples]


def test_a_part_of_the_steps_has_their_counters_alone(run: Run) -> None:
    from_s, to_s = bounds_s(run, [2])
    events = trace(run, [2])["traceEvents"]
    times = [e["ts"] / 1e6 for e in events if e["ph"] == "C" and e["name"].endswith("Mbit/s")]
    assert times and from_s - 0.06 <= min(times) and max(times) <= to_s


def test_a_job_has_the_steps_that_its_processes_marked(job: Run) -> None:
    found = trace(job, [])
    assert problems(found) == []
    steps = [e for e in found["traceEvents"] if e["ph"] == "X"]
    assert [(e["pid"], e["args"]["step"]) for e in steps] == [(p, n) for p in (1, 2) for n in range(1, 5)]  # fmt: skip
    last = job.known.steps[-1]
    assert steps[-1]["ts"] + steps[-1]["dur"] == pytest.approx(5e5 * last.end_s, abs=1e-2)
    assert steps[0]["args"]["loss"] == 1.0


def test_a_job_without_marks_has_the_steps_that_are_known(tmp_path: Path) -> None:
    own = load(make_job(tmp_path, Job(steps=20, marked=False)))
    found = trace(own, [])
    assert problems(found) == []
    steps = [e for e in found["traceEvents"] if e["ph"] == "X"]
    assert len(steps) == len(own.known.steps) > 10
    assert {e["pid"] for e in steps} == {len(own.manifest["nodes"]) + 1}


def test_a_profilers_events_are_on_the_runs_clock(job: Run, tmp_path: Path) -> None:
    file = kineto(tmp_path / "k.json", rank=1)
    found = trace(job, [], [profiler_trace(job, str(file)), ProfilerTrace("worker-0", file)])
    first, second = (e for e in found["traceEvents"] if e["name"] == "aten::mm")
    assert (first["ts"], first["dur"]) == pytest.approx((250_000, 125_000.25), abs=1e-2)
    names = {e["pid"]: e["args"]["name"] for e in found["traceEvents"] if e["name"] == "process_name"}  # fmt: skip
    assert names[first["pid"]] == "worker-1: python 77" and names[second["pid"]] == "worker-0: python 77"  # fmt: skip
    assert len({e["id"] for e in found["traceEvents"] if e["ph"] == "s"}) == 2
    assert all(isinstance(e[key], int) for e in found["traceEvents"] for key in ("pid", "tid") if key in e)  # fmt: skip


def test_the_node_of_a_profile_is_told_or_given(job: Run, tmp_path: Path) -> None:
    nodes = list(job.manifest["nodes"])
    assert profiler_trace(job, str(kineto(tmp_path / "a.json", rank=1))).node == nodes[1]
    plain = kineto(tmp_path / "b.json", rank=None)
    assert profiler_trace(job, f"{nodes[0]}={plain}") == ProfilerTrace(nodes[0], plain)
    for text in (str(plain), str(kineto(tmp_path / "c.json", rank=9))):
        with pytest.raises(InputError, match="does not tell the node"):
            profiler_trace(job, text)


def test_a_node_of_several_processes_has_the_profiles_of_each(job: Run, tmp_path: Path) -> None:
    algorithm = {**job.manifest["algorithm"], "nproc": 2}
    own = Run(
        job.path, {**job.manifest, "algorithm": algorithm}, job.summary, job.events, job.links
    )
    first, second = job.manifest["nodes"]
    for rank, node in enumerate((first, first, second, second)):
        assert profiler_trace(own, str(kineto(tmp_path / "k.json", rank))).node == node
    with pytest.raises(InputError, match="does not tell the node"):
        profiler_trace(own, str(kineto(tmp_path / "k.json", rank=4)))


def test_the_ranks_of_a_job_count_its_servers_first(job: Run, tmp_path: Path) -> None:
    """Every node but hosts has one, in the order of peers."""
    first, second = job.manifest["nodes"]
    nodes = {
        first: {"role": "worker", "rank": 0, "peer": 1},
        second: {"role": "worker", "rank": 1, "peer": 2},
        "apart": {"role": "host", "rank": 0, "peer": 3},
        "server": {"role": "server", "rank": 0, "peer": 0},
    }
    own = replace(job, manifest={**job.manifest, "nodes": nodes})
    for rank, node in enumerate(("server", first, second)):
        assert profiler_trace(own, str(kineto(tmp_path / "k.json", rank))).node == node
    for rank in (3, -1, None):
        with pytest.raises(InputError, match="does not tell the node"):
            profiler_trace(own, str(kineto(tmp_path / "k.json", rank)))
    del nodes[second], nodes["apart"]
    with pytest.raises(InputError, match="does not tell the node"):
        profiler_trace(own, str(kineto(tmp_path / "k.json", None)))


def test_what_cannot_be_merged_is_refused(job: Run, run: Run, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not say when t0 was"):
        unix_t0_ns(run)
    (tmp_path / "else.json").write_text('{"traceEvents": []}')
    with pytest.raises(InputError, match="lacks traceEvents or baseTimeNanoseconds"):
        trace(job, [], [ProfilerTrace("worker-0", tmp_path / "else.json")])
    steps = carried_out_in(tmp_path, "timeline", str(job.path), "--steps", "3")
    assert steps.returncode == 2 and "no phases of ours" in steps.stderr
    ended = carried_out_in(tmp_path, "timeline", str(job.path), "--kineto", str(kineto(tmp_path / "k.json")))  # fmt: skip
    assert ended.returncode == 0 and "events of the job" in ended.stdout
    assert "aten::mm" in (tmp_path / "timeline.json").read_text()


def test_t0_is_read_from_both_clocks() -> None:
    wall_ns, now_ns = time.time_ns(), time.monotonic_ns()
    record = clock_record(now_ns + 5_000_000_000).to_json()
    assert record["kind"] == "clock"
    assert abs(record["unix_ns"] - wall_ns - 5_000_000_000) < 10_000_000_000


def test_what_the_profiler_writes_is_set_beside_the_run(job: Run, tmp_path: Path) -> None:
    """Its own file, whose times are Unix time: 5 s are far beyond its error, and far below a wrong base's."""
    file = tmp_path / "own.json"
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        before_ns = time.time_ns()
        with record_function("in the middle"):
            torch.ones(64, 64) @ torch.ones(64, 64)
        after_ns = time.time_ns()
    profiler.export_chrome_trace(str(file))
    clock = [{**r, "unix_ns": before_ns} if r["kind"] == "clock" else r for r in job.links]
    own = Run(job.path, job.manifest, job.summary, job.events, clock)
    events = trace(own, [], [ProfilerTrace("worker-1", file)])["traceEvents"]
    (span,) = (e for e in events if e["name"] == "in the middle" and e["ph"] == "X")
    latest_us = (after_ns - before_ns) / 1000 / job.dilation
    assert -5e6 < span["ts"] <= span["ts"] + span["dur"] < latest_us + 5e6
    assert any(e["name"] == "aten::mm" for e in events)


@pytest.mark.optional
def test_holistic_trace_analysis_reads_the_merged_trace(job: Run, tmp_path: Path) -> None:
    """An independent reader: Meta's analysis of PyTorch traces, which asks for a rank."""
    analysis = pytest.importorskip(
        "hta.trace_analysis",
        reason="reads with HolisticTraceAnalysis, which the tests do not install",
    )
    whole = trace(job, [], [profiler_trace(job, str(kineto(tmp_path / "k.json")))])
    file = tmp_path / "merged.json"
    file.write_text(json.dumps(whole | {"distributedInfo": {"rank": 0}}))
    table = analysis.TraceAnalysis(trace_files={0: str(file)}, trace_dir=str(tmp_path)).t
    events, names = table.get_trace(0), table.symbol_table.sym_table
    spans = events.assign(name=[names[number] for number in events["name"]])
    complete = [e for e in whole["traceEvents"] if e["ph"] == "X" and e["cat"] != "Trace"]
    assert sorted(spans[spans["dur"] >= 0]["name"]) == sorted(e["name"] for e in complete)
    shift = float(spans[spans["name"] == "aten::mm"]["ts"].iloc[0]) - 250_000
    own = sorted(float(ts) - shift for ts in spans[spans["name"] == "step"]["ts"])
    assert own == pytest.approx(sorted(e["ts"] for e in complete if e["name"] == "step"), abs=1.5)
