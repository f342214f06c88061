"""A whole comparison as one object, its sentences and its table, from summaries that are known."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
from synthetic_run import Recipe, make_run

from analysis.comparison import Compared, compared
from analysis.statistics import time_to
from analysis.tables import algorithm_rows, algorithm_table, to_csv
from testbed.fidelity.summary import entry
from testbed.records.run_directory import read_events, read_json, to_json

KEYS = {
    "algorithm", "time_s", "speedup", "accuracy", "inferiority", "bytes_up", "bytes_down", "mean_k", "verdicts",
}  # fmt: skip


def summary(
    algorithm: str, seed: int, time_s: float, accuracy: float | None, verdict: str = "valid", **reached: float
) -> dict[str, Any]:  # fmt: skip
    return {
        "dir": f"runs/{algorithm}-{seed}", "algorithm": algorithm, "seed": seed, "verdict": verdict,
        "time_s": time_s, "steps": 10, "accuracy": accuracy, "bytes_up": 1000, "bytes_down": 10, "mean_k": 1.0,
        "time_to_accuracy_s": {f"0.{level[1:]}": at for level, at in reached.items()},
    }  # fmt: skip


def of(summaries: list[dict[str, Any]], **how: Any) -> Compared:
    entries = [entry(each) for each in summaries]
    return compared("demo", Path("comparisons/x"), entries, summaries, **how)


RUNS = [
    summary("none", 1, 10.0, 0.90, _5=4.0, _9=10.0),
    summary("none", 2, 12.0, 0.92, _5=5.0, _9=11.0),
    summary("fast", 1, 5.0, 0.90, _5=2.0, _9=5.0),
    summary("fast", 2, 6.0, 0.91, _5=2.5),
    summary("fast", 3, 1.0, 0.10, "invalid"),
]


def test_the_object_has_the_agreed_keys() -> None:
    said = of(RUNS).to_json()
    assert set(said) == {
        "scenario", "baseline", "margin", "algorithms", "targets", "paired", "runs", "directory",
    }  # fmt: skip
    none, fast = said["algorithms"]
    assert set(none) == set(fast) == KEYS
    assert none["speedup"] == {"mean": 1.0, "low": 1.0, "high": 1.0}
    assert fast["speedup"]["mean"] == pytest.approx(2.0)
    assert fast["speedup"]["low"] == pytest.approx(2.0)
    assert (none["time_s"]["mean"], fast["time_s"]["mean"]) == (11.0, 5.5)
    assert fast["verdicts"] == {"valid": 2, "invalid": 1}
    assert (fast["bytes_up"], fast["mean_k"]) == (1000, 1.0)
    assert len(said["runs"]) == 5 and said["directory"] == "comparisons/x"


def test_with_one_seed_there_are_no_ends_and_never_nan() -> None:
    runs = [summary("none", 1, 10.0, None), summary("fast", 1, 5.0, None)]
    text = to_json(of(runs).to_json())
    assert "NaN" not in text and "Infinity" not in text
    fast = json.loads(text)["algorithms"][1]
    assert fast["speedup"] == {"mean": 2.0, "low": None, "high": None}
    assert fast["accuracy"] == {"mean": None, "low": None, "high": None}
    assert fast["inferiority"] is None
    assert any("one pair: no interval" in sentence for sentence in of(runs).sentences())


def test_nothing_but_invalid_runs_is_no_result() -> None:
    found = of([summary("none", 1, 10.0, 0.9), summary("fast", 1, 0.0, None, "invalid")])
    fast = found.to_json()["algorithms"][1]
    assert fast["time_s"]["mean"] is None and fast["speedup"]["mean"] is None
    assert fast["bytes_up"] is None and fast["mean_k"] is None
    assert next(iter(found.sentences())).startswith("1 of 2 runs")
    assert algorithm_table(found).row_count == 2


def test_without_a_target_levels_are_those_that_all_runs_of_both_reached() -> None:
    said = of(RUNS).to_json()["targets"]
    assert set(said["none"]) == {"0.5", "0.9"} and set(said["fast"]) == {"0.5"}
    assert said["fast"]["0.5"] == {
        "reached": 2, "seeds": 2, "pairs": 2,
        "speedup": {"mean": pytest.approx(2.0), "low": pytest.approx(2.0), "high": pytest.approx(2.0)},
        "time_s": ANY, "difference": ANY,
    }  # fmt: skip
    time_s, difference = said["fast"]["0.5"]["time_s"], said["fast"]["0.5"]["difference"]
    assert time_s["mean"] == 2.25 and time_s["low"] < 2.25 < time_s["high"]
    assert difference["low"] < difference["mean"] == -2.25 < difference["high"]
    assert of(RUNS).target == 0.5


def test_a_target_that_some_do_not_reach_is_said() -> None:
    found = of(RUNS, asked_targets=[0.9])
    fast = found.to_json()["targets"]["fast"]["0.9"]
    assert (fast["reached"], fast["seeds"], fast["pairs"]) == (1, 2, 1)
    assert fast["speedup"] == {"mean": pytest.approx(2.0), "low": None, "high": None}
    assert "fast, accuracy 0.9: reached by 1 of 2 seeds" in found.sentences()


def test_another_baseline_and_margin() -> None:
    found = of(RUNS, baseline="fast", margin=0.2)
    none, fast = found.to_json()["algorithms"]
    assert fast["speedup"]["mean"] == 1.0
    assert none["speedup"]["mean"] == pytest.approx(0.5)
    assert none["inferiority"] == "not inferior"
    assert of(RUNS).to_json()["algorithms"][1]["inferiority"] == "not decided"


def test_any_target_comes_from_the_evaluations(tmp_path: Path) -> None:
    path = make_run(tmp_path, Recipe("none", 1.0, 1, 60, dilation=2.0))
    found, seen = read_json(path / "summary.json"), read_events(path)["evaluation"]
    between = (seen[1]["accuracy"] + seen[2]["accuracy"]) / 2
    assert time_to(found, between) == seen[2]["time_s"] / 2.0
    assert time_to(found, 0.9999) is None
    assert time_to(found, 0.5) == found["time_to_accuracy_s"]["0.5"]


def test_a_row_per_algorithm() -> None:
    none, fast = csv.DictReader(to_csv(algorithm_rows(of(RUNS))).splitlines())
    assert (none["algorithm"], fast["algorithm"]) == ("none", "fast")
    assert float(fast["speedup"]) == pytest.approx(2.0)
    assert (fast["target"], fast["seeds_reached"], fast["valid"], fast["invalid"]) == (
        "0.5", "2", "2", "1",
    )  # fmt: skip
    assert fast["time_to_target_s"] == "2.25"
