"""What an interval says of a paper's claim, and the page that is made of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from analysis.papers import Row, Runs, above, as_much, no_loss, page, written
from analysis.statistics import Interval
from testbed.errors import InputError

TIMES = {"none": (10.0, 12.0, 11.0), "fast": (5.0, 6.0, 5.5), "same": (10.1, 11.9, 11.0)}


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (Interval(0.3, 0.2, 0.4), "holds"),
        (Interval(-0.3, -0.4, -0.2), "does not"),
        (Interval(0.1, -0.1, 0.3), "not supported"),
        (Interval(0.3), "not supported"),
    ],
)
def test_above(found: Interval, verdict: str) -> None:
    assert above(found) == verdict


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (Interval(0.27, 0.25, 0.30), "holds"),
        (Interval(0.10, 0.01, 0.30), "not supported"),
        (Interval(0.29, 0.29, 0.29), "holds"),
        (Interval(0.40, 0.35, 0.45), "holds"),
        (Interval(0.20, 0.18, 0.22), "does not"),
        (Interval(-0.20, -0.22, -0.18), "does not"),
        (Interval(0.01, -0.02, 0.04), "does not"),
        (Interval(0.4), "not supported"),
    ],
)
def test_as_much_as_claimed(found: Interval, verdict: str) -> None:
    assert as_much(found, 0.29) == verdict


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (Interval(-0.003, -0.004, -0.002), "holds"),
        (Interval(-0.02, -0.03, -0.01), "does not"),
        (Interval(-0.005, -0.007, -0.003), "not supported"),
    ],
)
def test_no_loss_by_non_inferiority(found: Interval, verdict: str) -> None:
    assert no_loss(found) == verdict


@pytest.fixture
def comparison(tmp_path: Path) -> Path:
    """Runs as they lie on disk, times and densities made up; one is invalid."""
    entries = []
    for name, times in TIMES.items():
        for seed, time_s in enumerate(times, 1):
            directory = tmp_path / f"{name}-{seed}"
            directory.mkdir()
            invalid = name == "same" and seed == 3
            about = {"algorithm": name, "seed": seed, "time_s": time_s, "accuracy": 0.9}
            verdict = {"verdict": "invalid" if invalid else "valid", "dir": str(directory)}
            (directory / "summary.json").write_text(json.dumps({**about, **verdict}))
            manifest = {"dilation": 1.0, "scenario_hash": "0", "machine": {"commit": None}}
            (directory / "manifest.json").write_text(json.dumps(manifest))
            entries.append({"dir": str(directory)})
    (tmp_path / "comparison.json").write_text(json.dumps({"runs": entries}))
    return tmp_path


def test_savings_are_paired_and_invalid_runs_left_out(comparison: Path) -> None:
    runs = Runs.read(comparison)
    saved = runs.saved("fast", "none")
    assert (saved.mean, saved.low, saved.high) == pytest.approx((0.5, 0.5, 0.5))
    assert set(runs.values("same", "time_s")) == {1, 2}
    assert above(runs.saved("same", "none")) == "not supported"
    with pytest.raises(InputError, match="no sound run of 'other'"):
        runs.values("other", "time_s")


def test_page() -> None:
    row = Row("saves time", "29 %", written(Interval(0.3, 0.25, 0.35), "{:.0%}"), "holds")
    assert page([row]).splitlines()[-1] == "| saves time | 29 % | 30% [25%, 35%] | **holds** |"
