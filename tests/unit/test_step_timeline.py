"""From records of buckets and passes to spans, tracks, and the trace that Perfetto opens."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from bucket_rig import LAYERS, Plan, make_bucket_run
from command_here import call
from synthetic_run import Recipe, make_run
from trace_format import problems

from analysis.load import Run, load
from analysis.timeline import (
    Span,
    bucket_names,
    bucket_spans,
    chain,
    chosen,
    middle,
    rows,
    timeline,
    tracks,
)
from analysis.trace_events import trace
from testbed.cli.report import bounds
from testbed.errors import InputError

STEPS = 5


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def path(out: Path) -> Path:
    return make_bucket_run(out, Plan(steps=STEPS))


@pytest.fixture(scope="module")
def run(path: Path) -> Run:
    return load(path)


@pytest.fixture(scope="module")
def plain(out: Path) -> Run:
    """Without records of buckets."""
    return load(make_run(out, Recipe("topk-0.15", 0.15, steps=4)))


command = partial(call, "timeline")


def test_a_buckets_way_has_no_gap(run: Run) -> None:
    record = next(
        r for r in run.events["bucket"] if (r["node"], r["step"], r["bucket"]) == ("worker-1", 3, 7)
    )
    way = [s for s in timeline(run, [3]).of("worker-1") if s.bucket == 7]
    assert [span.activity for span in way] == [
        "compress", "send", "wait", "receive", "decompress", "held", "apply",
    ]  # fmt: skip
    assert way[-1].from_s == record["applying_s"]
    assert (way[0].from_s, way[-1].to_s) == (record["ready_s"], record["applied_s"])
    assert all(one.to_s == other.from_s for one, other in pairwise(way))
    assert way[1].facts == {"bytes": record["bytes_up"]}


def test_layers_are_computed_in_the_order_of_the_passes(run: Run) -> None:
    spans = [s for s in timeline(run, [2]).of("worker-0") if s.bucket is None]
    assert [s.layer for s in spans if s.activity == "forward"] == LAYERS
    assert [s.layer for s in spans if s.activity == "backward"] == LAYERS[::-1]
    assert "compute" not in {s.activity for s in spans}


def test_waiting_for_parameters_is_between_a_backward_pass_and_the_next_forward(run: Run) -> None:
    assert [s for s in timeline(run, [1]).spans if s.activity == "stall"] == []
    for node in ("worker-0", "worker-2"):
        (stall, *_) = [s for s in timeline(run, [2]).of(node) if s.activity == "stall"]
        backward = max(s.to_s for s in timeline(run, [1]).of(node) if s.activity == "backward")
        applied = next(
            r["applied_s"] for r in run.events["bucket"]
            if (r["node"], r["step"]) == (node, 1) and f"{LAYERS[0]}.weight" in r["parts"]
        )  # fmt: skip
        assert (stall.from_s, stall.to_s, stall.layer) == (backward, applied, LAYERS[0])


def test_a_server_gathers_adds_up_and_replies(run: Run) -> None:
    served = next(r for r in run.events["served"] if (r["step"], r["bucket"]) == (4, 0))
    spans = {s.activity: s for s in timeline(run, [4]).of("server") if s.bucket == 0}
    assert list(spans) == ["gather", "aggregate", "reply"]
    assert spans["gather"].from_s == min(m["first_s"] for m in served["messages"])
    assert spans["gather"].to_s == spans["aggregate"].from_s == served["complete_s"]
    assert spans["reply"].to_s == served["send_end_s"]
    assert spans["gather"].facts["messages"] == 3


def test_what_waits_to_be_compressed_or_sent_is_in_a_queue(out: Path) -> None:
    found = timeline(
        load(make_bucket_run(out, Plan(steps=2, compress_s=0.02, hand_over_s=0.05))), [2]
    )
    queued = [s.bucket for s in found.of("worker-0") if s.activity == "queue"]
    assert sorted(b for b in queued if b is not None) == sorted([*range(1, 12)] * 2)
    assert all(s.to_s > s.from_s for s in found.spans)


def test_buckets_are_decoded_one_after_the_other_or_together() -> None:
    times = {
        "ready_s": 0.0,
        "pack_s": 0.0,
        "packed_s": 0.0,
        "start_s": 0.0,
        "sent_s": 0.0,
        "first_s": 0.0,
    }
    facts = {"density": 1.0, "sent_count": 1, "size": 1, "bytes_up": 1, "bytes_down": 1}

    def decoded(*done: tuple[float, float]) -> list[tuple[float, float]]:
        records = [
            {"node": "w", "step": 1, "bucket": b, **times, **facts, "last_s": last_s, "decoded_s": end_s,
             "applied_s": end_s}
            for b, (last_s, end_s) in enumerate(done)
        ]  # fmt: skip
        spans = [s for s in bucket_spans(records, 1.0) if s.activity == "decompress"]
        return [(s.from_s, s.to_s) for s in spans]

    assert decoded((1.0, 2.0), (1.5, 3.0), (4.0, 5.0)) == [(1.0, 2.0), (2.0, 3.0), (4.0, 5.0)]
    assert decoded((3.0, 4.0), (1.0, 2.0)) == [(3.0, 4.0), (1.0, 2.0)]
    assert decoded((1.0, 4.0), (3.0, 4.0)) == [(3.0, 4.0), (3.0, 4.0)]


def test_older_records_say_only_when_a_bucket_was_applied(run: Run) -> None:
    record = dict(next(r for r in run.events["bucket"] if r["bucket"] == 7))
    del record["applying_s"]
    *_, last = bucket_spans([record], 1.0)
    assert (last.activity, last.from_s, last.to_s) == (
        "held", record["decoded_s"], record["applied_s"],
    )  # fmt: skip


def test_times_are_of_the_model(out: Path, run: Run) -> None:
    slow = timeline(load(make_bucket_run(out, Plan(steps=STEPS, dilation=10.0))), range(1, 6))
    fast = timeline(run, range(1, 6))
    assert len(slow.spans) == len(fast.spans)
    for one, other in zip(slow.spans, fast.spans, strict=True):
        assert (one.from_s, one.to_s) == pytest.approx((other.from_s, other.to_s))


def test_a_step_that_travelled_whole_has_phases(plain: Run) -> None:
    found = timeline(plain, [2])
    assert found.names == {}
    assert found.nodes == (*(f"worker-{rank}" for rank in range(4)), "server")
    record = next(
        r for r in plain.events["step"] if r["step"] == 2 and r["node"] == "worker-3"
    )  # fmt: skip
    spans = found.of("worker-3")
    assert [s.activity for s in spans] == [
        "compute", "compress", "send", "wait", "receive", "decompress", "apply",
    ]  # fmt: skip
    assert spans[0].from_s == record["start_s"]
    assert spans[-1].to_s == pytest.approx(record["end_s"], abs=2e-3)
    assert [s.activity for s in found.of("server")] == ["gather", "aggregate", "reply"]


def test_buckets_are_named_by_their_layers(out: Path, run: Run) -> None:
    assert bucket_names(run) == dict(enumerate(reversed(LAYERS)))
    joined = load(make_bucket_run(out, Plan(steps=1, joined=3)))
    assert bucket_names(joined)[0] == "layer9 … head"
    assert [*bucket_names(joined)] == [0, 1, 2, 3]


def test_times_that_run_backwards_take_no_time() -> None:
    assert list(chain([1.0, 0.9, 2.0, 2.0], ["a", "b", "c"])) == [("b", 1.0, 2.0)]


def test_spans_that_overlap_are_on_tracks_of_their_own() -> None:
    def span(from_s: float, to_s: float) -> Span:
        return Span("server", 0, "gather", 1, from_s, to_s)

    spans = [span(0, 4), span(4, 6), span(3, 5), span(5, 7), span(3.5, 3.6)]
    assert tracks(spans) == [[span(0, 4), span(4, 6)], [span(3, 5), span(5, 7)], [span(3.5, 3.6)]]
    assert list(rows([replace(spans[0], bucket=b) for b in (3, None, 0)])) == [None, 0, 3]


@pytest.mark.parametrize("kind", ["run", "plain"])
def test_the_trace_keeps_the_rules_of_its_format(kind: str, request: pytest.FixtureRequest) -> None:
    own: Run = request.getfixturevalue(kind)
    steps = [int(step) for step in own.steps]
    found = json.loads(json.dumps(trace(own, steps), allow_nan=False))
    assert problems(found) == []
    complete = [e for e in found["traceEvents"] if e["ph"] == "X"]
    assert len(complete) == len(timeline(own, steps).spans)
    assert {e["args"]["step"] for e in complete} == set(steps)
    assert any(e["ph"] == "C" for e in found["traceEvents"])


def test_the_trace_has_a_process_for_every_node_and_a_thread_for_every_row(run: Run) -> None:
    events = trace(run, [3])["traceEvents"]
    names = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert names == ["worker-0", "worker-1", "worker-2", "server"]
    threads = [e["args"]["name"] for e in events if e["name"] == "thread_name" and e["pid"] == 1]
    assert threads == ["computation", *(f"{n}: {name}" for n, name in enumerate(LAYERS[::-1]))]
    (first,) = [e for e in events if e["name"] == "forward layer0" and e["pid"] == 1]
    span = next(s for s in timeline(run, [3]).of("worker-0") if s.activity == "forward")
    assert first["ts"] == pytest.approx(1e6 * span.from_s, abs=1e-3)
    assert first["dur"] == pytest.approx(2000, abs=1e-3)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"dur": -1.0}, "less than no time"),
        ({"dur": 3000.0}, "crosses"),
        ({"tid": 99}, "no name"),
        ({"ph": "Z"}, "unknown phase"),
        ({"ts": "soon"}, "ts is a time"),
    ],
)
def test_the_check_of_the_format_finds(run: Run, change: dict[str, Any], said: str) -> None:
    found = trace(run, [3])
    event = next(e for e in found["traceEvents"] if e["name"] == "forward layer0")
    event |= change
    assert any(said in problem for problem in problems(found))


def test_steps_are_chosen(run: Run) -> None:
    assert middle(run) == 3
    assert chosen(run, 2, 4) == [2, 3, 4]
    assert chosen(run, None, None) == [1, 2, 3, 4, 5]
    with pytest.raises(InputError, match="steps 1 to 5"):
        chosen(run, 7, 9)


@pytest.mark.parametrize(
    ("text", "found"), [("3", (3, 3)), ("3:6", (3, 6)), ("3:", (3, None)), (":6", (None, 6))]
)
def test_ranges_of_steps(text: str, found: tuple[int | None, int | None]) -> None:
    assert bounds(text) == found


@pytest.mark.parametrize("text", ["", ":", "a", "3-6", "1:2:3", "-1"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="no range of steps"):
        bounds(text)


def test_the_verb_writes_trace_and_figure(path: Path, tmp_path: Path) -> None:
    file, picture = tmp_path / "t.json", tmp_path / "t.png"
    result = command(path, "--steps", "2:3", "--out", file, "--figure", picture, "--json")
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    found = json.loads(file.read_text())
    assert (said["steps"], said["buckets"]) == ([2, 3], True)
    assert said["events"] == len(found["traceEvents"])
    assert problems(found) == []
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_verb_says_what_is_not_there(path: Path, plain: Run, tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    result = command(plain.path, "--out", file)
    assert "no record of buckets" in result.stdout
    assert problems(json.loads(file.read_text())) == []
    refused = command(path, "--steps", "9", "--out", file)
    assert "has steps 1 to 5" in str(refused.exception)
    assert isinstance(command(path, "--figure", "t.doc").exception, InputError)
    (tmp_path / "comparison.json").write_text("{}")
    assert "one of its runs" in str(command(tmp_path).exception)
    assert "no manifest.json" in str(command(tmp_path.parent).exception)
