"""What ``testbed bench coded`` derives: shares, paces, scenarios, savings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from testbed.bench.coded import Variant, pace_s, rows
from testbed.bench.results import locate_files

BASE: dict[str, Any] = {
    "name": "paper",
    "train": {"optimizer": {"name": "sgd", "lr": 0.1}, "pace": "50 ms", "stop": {"steps": 30},
              "evaluate_every": 30},
    "algorithms": ["ssgd"],
}  # fmt: skip


def test_a_pace_makes_the_share() -> None:
    pace = pace_s(0.05, 0.95)
    assert pace / (pace + 0.95) == pytest.approx(0.05)


def test_a_variant_changes_what_it_says_and_nothing_else() -> None:
    made = Variant(
        "c5-asgd", ("asgd",), steps=400, accuracy=0.8, every=2, pace_s=0.0475, rate=0.05
    ).of(BASE)
    assert made["train"]["stop"] == {"steps": 400, "accuracy": 0.8}
    assert made["train"]["pace"] == "47500 us" and made["train"]["optimizer"]["lr"] == 0.05
    assert made["algorithms"] == ["asgd"] and made["name"] == "paper-c5-asgd"
    assert BASE["train"]["pace"] == "50 ms" and BASE["train"]["optimizer"]["lr"] == 0.1
    assert Variant("x", ("ssgd",)).of(BASE)["train"]["evaluate_every"] == 30


def test_a_scenario_may_leave_its_training_to_the_defaults() -> None:
    variant = Variant("x", ("ssgd",), steps=3, rate=0.05)
    for base in ({"name": "paper", "train": {"batch": 8}}, {"name": "paper"}):
        assert variant.of(base)["train"]["optimizer"] == {"lr": 0.05}


def test_copies_of_a_scenario_name_its_files(tmp_path: Path) -> None:
    content: dict[str, Any] = {
        "events": [{"kind": "trace", "file": "../walk.csv"}, {"kind": "flap"}],
        "train": {
            "pace": "50 ms",
            "paces": {"slow": {"name": "file", "file": "times.csv"}},
            "profile": "v100-resnet18",
            "data": "/data",
        },
    }
    locate_files(content, tmp_path / "folder")
    assert content["events"] == [
        {"kind": "trace", "file": str(tmp_path / "walk.csv")},
        {"kind": "flap"},
    ]
    train = content["train"]
    assert train["paces"]["slow"]["file"] == str(tmp_path / "folder" / "times.csv")
    assert (train["pace"], train["profile"], train["data"]) == ("50 ms", "v100-resnet18", "/data")
    train["profile"] = "times.json"
    locate_files(content, tmp_path / "folder")
    assert train["profile"] == str(tmp_path / "folder" / "times.json")


def test_savings_are_of_the_time_to_the_accuracy() -> None:
    step = {"verdict": "valid", "bytes_up": 3e6, "steps": 30, "saturated": 0}
    timed = {"ssgd-multicast": {**step, "step_s": 1.0}, "replicated-r5": {**step, "step_s": 0.4}}
    known = {
        "steps": 50,
        "plan": {"share": 0.05},
        "steps_real": timed,
        "async_real": {"time_s": 40.0},
        "virtual": {"0.5": {"steps": timed, "async_s": None}},
    }
    real, virtual = list(rows(known))[:3], list(rows(known))[3:]
    assert [row["scheme"] for row in real] == ["ssgd-multicast", "replicated-r5", "asgd"]
    assert real[1]["saved_ssgd"] == pytest.approx(0.6) and real[1]["saved_asgd"] == pytest.approx(
        0.5
    )
    assert real[1]["time_s"] == pytest.approx(20.0) and real[1]["sent_mb_step"] == pytest.approx(
        0.1
    )
    assert real[2]["saved_ssgd"] == pytest.approx(0.2)
    assert (
        virtual[1]["c"] == 0.5 and virtual[1]["saved_asgd"] is None and virtual[2]["time_s"] is None
    )
