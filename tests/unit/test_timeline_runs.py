"""Timelines and layers of runs that were carried out: buckets with and without overlap, in virtual time."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from trace_format import problems
from virtual_run import carried_out

from analysis.figures import figures_of, layers, timeline
from analysis.load import Run, load
from analysis.report import write_report
from analysis.series import layer_phase_shares
from analysis.timeline import bucket_names, middle
from analysis.timeline import timeline as of_run
from analysis.trace_events import trace
from testbed.transport.frame import HEADER_BYTES

SCENARIO = """
name: layers
nodes: {server: {role: server}, worker: {role: worker, count: 3}}
links:
  default: {up: {rate: 20 Mbit/s, queue: 50 ms}, down: {rate: 20 Mbit/s, queue: 50 ms}}
train: {task: digits, model: cnn, batch: 8, optimizer: {name: sgd, lr: 0.1}, pace: 60 ms,
  stop: {steps: 5}, evaluate_every: 5}
algorithms:
  - topk-0.05
  - {name: parted, from: topk-0.05, buckets: layer, bucket_bytes: 4 kB}
  - {name: overlapped, from: topk-0.05, buckets: layer, bucket_bytes: 4 kB, overlap: true}
seeds: [1]
dilation: 2
"""
MOST_TABLE = 32
"""Bytes in a bucket of one layer that say where its parameters' payloads are."""
ALGORITHMS = ("topk-0.05", "parted", "overlapped")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    made = carried_out(tmp_path_factory.mktemp("sim"), SCENARIO).runs
    found = [load(Path(entry["dir"])) for entry in made]
    return {run.algorithm: run for run in found}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_trace_of_a_run_keeps_the_rules(runs: dict[str, Run], algorithm: str) -> None:
    run = runs[algorithm]
    found = json.loads(json.dumps(trace(run, [int(s) for s in run.steps])))
    assert problems(found) == []
    names = [e["args"]["name"] for e in found["traceEvents"] if e["name"] == "process_name"]
    assert names == ["worker-0", "worker-1", "worker-2", "server"]


@pytest.mark.parametrize("algorithm", ["parted", "overlapped"])
def test_ways_are_recorded_in_the_order_in_which_they_happen(
    runs: dict[str, Run], algorithm: str
) -> None:
    times = (
        "ready_s", "pack_s", "packed_s", "start_s", "sent_s", "first_s", "last_s", "decoded_s", "applying_s",
        "applied_s",
    )  # fmt: skip
    records = runs[algorithm].events["bucket"]
    assert len(records) == 3 * 5 * len(bucket_names(runs[algorithm]))
    for record in records:
        assert all(record[one] <= record[other] for one, other in pairwise(times))


def test_only_overlap_sends_before_the_computation_ends(runs: dict[str, Run]) -> None:
    def sent_early(run: Run) -> bool:
        spans = of_run(run, [middle(run)]).of("worker-1")
        done_s = max(s.to_s for s in spans if s.activity in ("compute", "backward"))
        return min(s.from_s for s in spans if s.activity == "send") < done_s

    assert {name: sent_early(run) for name, run in runs.items()} == {
        "topk-0.05": False, "parted": False, "overlapped": True,
    }  # fmt: skip


def test_the_computation_of_a_step_takes_its_pace(runs: dict[str, Run]) -> None:
    """Of the model's time, although the run is dilated."""
    spans = [s for s in of_run(runs["overlapped"], [3]).of("worker-2") if s.bucket is None]
    passes = [s.to_s - s.from_s for s in spans if s.activity in ("forward", "backward")]
    assert sum(passes) == pytest.approx(0.06, rel=1e-3)
    assert sum(s.activity == "forward" for s in spans) == len(passes) / 2


def test_bytes_of_layers_are_those_of_the_steps(runs: dict[str, Run]) -> None:
    for algorithm in ("parted", "overlapped"):
        own = layer_phase_shares(runs[algorithm])
        assert own is not None
        step = next(r for r in runs[algorithm].events["step"] if r["step"] == 2)
        left = step["bytes_up"] - float(own.bytes_up[:, 1].sum())
        assert HEADER_BYTES <= left / len(set(own.buckets)) <= HEADER_BYTES + MOST_TABLE
        assert float(own.sent[:, 1].sum()) == pytest.approx(step["sent_count"])
        assert np.all(own.density >= 0.049)


def test_the_report_has_both_figures(runs: dict[str, Run], tmp_path: Path) -> None:
    assert figures_of([*runs.values()])[-2:] == [timeline, layers]
    paths = write_report([run.path for run in runs.values()], tmp_path)
    assert {"layers.csv", "timeline.png", "layers.png"} <= {path.name for path in paths}
