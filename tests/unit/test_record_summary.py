"""Summaries from files alone, against runs whose figures are known; every field documented."""

from __future__ import annotations

import json
from dataclasses import fields
from itertools import permutations
from pathlib import Path

import pytest
from synthetic_run import PACE_S, WORKERS, Recipe, make_run

from testbed.errors import InputError
from testbed.fidelity.completion import measure_groups
from testbed.fidelity.run_checks import frames_disagree
from testbed.fidelity.service_curve import groups
from testbed.fidelity.summary import ENTRY, _ended_s, entry, summarise
from testbed.fidelity.verdict import Verdict
from testbed.records import events
from testbed.records.link_log import LinkLog
from testbed.records.run_directory import SUMMARY, read_events, read_json, read_jsonl

DOCS = Path(__file__).parents[2] / "docs" / "reference"
PAGES = ("records-and-metrics.md", "node-records.md")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = Recipe(steps=20, verdict=Verdict("degraded", ["because"], {"m": {"deviation": 1}}))
    return make_run(tmp_path_factory.mktemp("out"), made)


def test_the_entry_has_exactly_the_agreed_keys(run: Path) -> None:
    found = entry(read_json(run / SUMMARY))
    assert list(found) == [
        "dir", "algorithm", "seed", "verdict", "time_s", "steps", "accuracy", "bytes_up", "bytes_down", "mean_k",
    ]  # fmt: skip
    assert tuple(found) == ENTRY


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_a_run_ends_with_the_last_step_of_any_worker(order: tuple[int, ...]) -> None:
    """Whichever node's file comes last, and whether it sent in that step or rested."""
    ended = [{"end_s": 4.0}, {"end_s": 9.0}, {"end_s": 7.0}]
    records = [ended[at] for at in order]
    assert (
        _ended_s({"step": records}) == _ended_s({"step": records[:1], "rest": records[1:]}) == 9.0
    )
    applied = [{"applied_s": record["end_s"] - 1.0} for record in records]
    assert _ended_s({"step": records, "gradient": applied}) == 8.0, "the asynchronous server's"
    assert _ended_s({}) == 0.0


def test_figures_come_from_the_records(run: Path) -> None:
    found, steps = summarise(run), read_events(run)["step"]
    assert found["time_s"] == max(step["end_s"] for step in steps)
    assert found["steps"] == 20
    assert found["bytes_up"] == 20 * len(WORKERS) * 600_048
    assert found["mean_k"] == 1.0
    assert found["accuracy"] == read_events(run)["evaluation"][-1]["accuracy"]
    assert found["phases_s"]["apply"] == pytest.approx(0.002)
    assert (found["verdict"], found["reasons"]) == ("degraded", ["because"])
    assert 0 < found["communication_share"] < 1


@pytest.mark.parametrize("stall_s", [None, 0.0, 0.05])
def test_communication_is_the_delay_and_the_stalls_within_the_computation(
    tmp_path: Path, stall_s: float | None
) -> None:
    """None: records of before there were stalls."""
    run = make_run(tmp_path, Recipe(steps=6))
    waited_s = took_s = 0.0
    for worker in (run / "events").glob("worker-*.jsonl"):
        lines = [json.loads(line) for line in worker.read_text().splitlines()]
        for line in lines:
            del line["stall_s"]
            if stall_s is not None:
                line["stall_s"] = stall_s * line["step"]
                line["compute_s"] -= line["stall_s"]
            waited_s += line["delay_s"] + (stall_s or 0.0) * line["step"]
            took_s += line["end_s"] - line["start_s"]
        worker.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = summarise(run)
    assert found["communication_share"] == pytest.approx(waited_s / took_s)
    assert found["phases_s"]["stall"] == pytest.approx(2.5 * (stall_s or 0.0))


def test_bytes_of_who_was_away_are_counted(tmp_path: Path) -> None:
    run = make_run(tmp_path, Recipe(steps=5))
    before = summarise(run)
    times = {"asked_s": 1.0, "arrived_s": 1.1, "end_s": 1.2}
    away = events.AwayRecord("worker-0", 2, 4, 0.5, **times, bytes_down=30, bytes_up=7)
    with (run / "events" / "worker-0.jsonl").open("a") as file:
        file.write(json.dumps(away.to_json()) + "\n")
    found = summarise(run)
    more = [found[key] - before[key] for key in ("bytes_up", "bytes_down")]
    assert more == [7, 30]


def test_means_of_what_was_sent_and_of_passes_over_it(tmp_path: Path) -> None:
    path = make_run(tmp_path, Recipe("laplace-0.01", 0.01, steps=4))
    for index, worker in enumerate(sorted((path / "events").glob("worker-*.jsonl"))):
        lines = [json.loads(line) for line in worker.read_text().splitlines()]
        for line in lines:
            line["sent_count"] = 1500 + 30 * index
            how = {"passes": 1.0 + line["step"], "threshold": 0.5, "ties": 0}
            line["selection"] = how if index else None  # one worker's selector tells nothing
        worker.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = summarise(path)
    assert found["mean_k"] == pytest.approx(0.01)
    assert found["mean_achieved_k"] == pytest.approx((1500 + 1530 + 1560 + 1590) / 4 / 150_000)
    assert found["mean_passes"] == pytest.approx((1 + 2 + 3 + 4) / 4)
    assert list(found).index("mean_achieved_k") == list(found).index("mean_k") + 1


def test_where_no_selector_tells_there_are_no_passes(run: Path) -> None:
    found = summarise(run)
    assert (found["mean_achieved_k"], found["mean_passes"]) == (1.0, None)


def test_the_expected_step_time_is_pace_and_bits(run: Path) -> None:
    found = summarise(run)
    # Besides pace and wire a step has 3 ms of aggregation, 3 ms of applying and up to 0.7 ms to compress.
    assert found["step_s"] - found["expected_step_s"] == pytest.approx(0.0065, abs=0.002)
    assert found["expected_step_s"] > PACE_S


def test_messages_that_follow_the_rates_complete_on_time(run: Path) -> None:
    events, history = read_events(run), LinkLog(read_jsonl(run / "links.jsonl"))
    peers = {rank + 1: name for rank, name in enumerate(WORKERS)}
    found = measure_groups(groups(events["round"], events["step"], peers), history.bits)
    assert found["judged"] == 40
    assert found["used"]["max"] < 0.01
    assert frames_disagree(events["step"], events["round"]) == []


def test_model_time_is_wall_time_over_dilation(run: Path, tmp_path: Path) -> None:
    one = summarise(run)
    ten = summarise(make_run(tmp_path, Recipe(steps=20, dilation=10.0)))
    assert ten["wall_s"] == one["wall_s"]
    for key in ("time_s", "step_s", "expected_step_s"):
        assert ten[key] == pytest.approx(one[key] / 10)
    assert ten["communication_share"] == one["communication_share"]


def test_a_run_cut_short_is_summed_up_as_far_as_it_came(tmp_path: Path) -> None:
    path = make_run(tmp_path, Recipe(steps=5))
    (path / SUMMARY).unlink()
    records = path / "events" / "worker-3.jsonl"
    records.write_bytes(records.read_bytes()[:-40])
    found = summarise(path)
    assert (found["steps"], found["accuracy"], found["verdict"]) == (4, None, "invalid")
    assert "cut short" in found["reasons"][0]


def test_a_run_killed_before_its_first_step(tmp_path: Path) -> None:
    path = make_run(tmp_path, Recipe(steps=1))
    (path / SUMMARY).unlink()
    for records in (path / "events").iterdir():
        records.unlink()
    found = summarise(path)
    assert (found["steps"], found["time_s"], found["mean_k"], found["step_s"]) == (
        0,
        0.0,
        None,
        None,
    )


def test_without_a_manifest_there_is_no_summary(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"manifest\.json"):
        summarise(tmp_path)


def test_every_field_is_documented(run: Path) -> None:
    text = "".join((DOCS / page).read_text() for page in PAGES)
    kinds = [
        kind for kind in vars(events).values()
        if isinstance(kind, type) and issubclass(kind, events.Event) and kind is not events.Event
    ]  # fmt: skip
    assert len(kinds) >= 6
    for kind in kinds:
        assert f"`{kind.kind}`" in text
        missing = [field.name for field in fields(kind) if f"`{field.name}`" not in text]
        assert missing == [], kind
    for name in (*read_json(run / "manifest.json"), *read_json(run / SUMMARY)):
        assert f"`{name}`" in text, name
