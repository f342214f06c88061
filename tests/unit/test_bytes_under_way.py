"""Bytes that are under way, by worker and direction, as counters of a trace."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from bucket_rig import LAYERS, Plan, make_bucket_run
from synthetic_run import Recipe, make_run

from analysis.load import load
from analysis.timeline import under_way

STEPS = 5


def test_bytes_are_under_way_from_the_first_sent_to_the_last_come(tmp_path: Path) -> None:
    run = load(make_bucket_run(tmp_path, Plan(steps=STEPS)))
    found = under_way(run, [2])
    assert set(found) == {(f"worker-{rank}", way) for rank in range(3) for way in ("up", "down")}
    bytes_up = sum(
        r["bytes_up"] for r in run.events["bucket"] if (r["node"], r["step"]) == ("worker-0", 2)
    )
    points = found["worker-0", "up"]
    totals = [total for _, total in points]
    assert min(totals) == totals[-1] == 0
    assert sum(max(0, b - a) for a, b in pairwise([0, *totals])) <= bytes_up
    assert max(totals) >= 48 + 0.6 * 13_000
    times = [time_s for time_s, _ in points]
    assert times == sorted(set(times))


def test_bytes_of_a_whole_step_are_under_way_at_once(tmp_path: Path) -> None:
    plain = load(make_run(tmp_path, Recipe("topk-0.15", 0.15, steps=4)))
    step = next(r for r in plain.events["step"] if (r["node"], r["step"]) == ("worker-0", 1))
    totals = [total for _, total in under_way(plain, [1])["worker-0", "up"]]
    assert totals == [step["bytes_up"], 0]


def test_a_server_that_knows_of_no_buckets_replies_to_one_message(tmp_path: Path) -> None:
    whole = load(make_bucket_run(tmp_path, Plan(steps=2, joined=len(LAYERS))))
    rounds = {kind: records for kind, records in whole.events.items() if kind != "served"}
    found = under_way(replace(whole, events=rounds), [2])
    record = next(
        r for r in whole.events["bucket"] if (r["node"], r["step"]) == ("worker-1", 2)
    )  # fmt: skip
    (served,) = [r for r in whole.events["served"] if r["step"] == 2]
    begun, come = (served["send_start_s"], record["bytes_down"]), (record["arrived_s"], 0)
    assert found["worker-1", "down"] == [begun, come]


def test_a_reply_to_a_resting_worker_is_under_way_as_well(tmp_path: Path) -> None:
    run = load(make_run(tmp_path, Recipe("topk-0.15", 0.15, steps=3)))
    (round_,) = (r for r in run.events["round"] if r["step"] == 1)
    arrived_s = round_["send_end_s"] + 0.01
    rests = [
        {"node": "worker-3", "step": step, "arrived_s": arrived_s + step, "bytes_down": 1000 * step}
        for step in (1, 2)
    ]
    steps = [r for r in run.events["step"] if r["node"] != "worker-3"]
    points = under_way(replace(run, events={**run.events, "step": steps, "rest": rests}), [1])
    expected = [(round_["send_start_s"], 1000), (arrived_s + 1, 0)]
    assert points["worker-3", "down"] == expected


@pytest.mark.parametrize("first", [0, 1])
def test_replies_of_several_servers_are_under_way_from_the_first(
    tmp_path: Path, first: int
) -> None:
    """A worker's record is of the whole step: its bytes come from all of them."""
    run = load(make_run(tmp_path, Recipe("topk-0.15", 0.15, steps=3)))
    begun_s = next(r for r in run.events["round"] if r["step"] == 1)["send_start_s"]
    rounds = [
        {**record, "node": f"server-{number}", "send_start_s": record["send_start_s"] - early_s}
        for record in run.events["round"]
        for number, early_s in enumerate((0.01, 0.0) if first == 0 else (0.0, 0.01))
    ]
    points = under_way(replace(run, events={**run.events, "round": rounds}), [1])
    step = next(r for r in run.events["step"] if (r["node"], r["step"]) == ("worker-0", 1))
    assert points["worker-0", "down"] == [
        (begun_s - 0.01, step["bytes_down"]),
        (step["arrived_s"], 0),
    ]
