"""What an interval says of a paper's claim, and the page that is made of it."""

from __future__ import annotations

import json
from dataclasses import replace
from math import log
from pathlib import Path

import pytest
from scipy.stats import ttest_1samp

from analysis.papers import (
    LEVEL,
    Claim,
    Results,
    Row,
    Runs,
    above,
    as_much,
    between_marks,
    judge,
    keeps,
    no_loss,
    page,
    saves,
    times_as_fast,
    written,
)
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


def claim(*values: float, least: float = 0.0) -> Claim:
    return Claim("larger", "yes", values, "{:.2f}".format, least, least, least)


def test_one_claim_is_judged_by_its_own_p_value() -> None:
    values = (1.0, 1.2, 0.9, 1.1)
    expected = ttest_1samp(values, 0.5).pvalue
    assert claim(*values, least=0.5).p == pytest.approx(expected)
    (row,) = judge([claim(*values, least=0.5)])
    assert (row.measured, row.verdict) == ("1.05 [0.84, 1.26]", "holds")
    assert judge([claim(*values, least=2.0)])[0].verdict == "does not"
    assert judge([claim(-1.0, 1.2, 0.9)])[0].verdict == "not supported"
    assert judge([claim(1.0)])[0].verdict == judge([claim()])[0].verdict == "not supported"


def test_values_that_are_all_the_same_are_certain() -> None:
    assert claim(1.0, 1.0).p == 0.0
    assert claim(-1.0, -1.0).p == 0.0
    assert claim(0.0, 0.0).p == 1.0


def test_more_claims_need_smaller_p_values() -> None:
    values = (0.1, 0.9, 1.0)  # p = 0.14, not below 5 % even alone
    weak, strong = claim(0.5, 1.0, 0.8), claim(1.0, 1.01, 0.99)
    assert strong.p < weak.p < LEVEL < 3 * weak.p
    assert [row.verdict for row in judge([weak])] == ["holds"]
    verdicts = [row.verdict for row in judge([weak, strong, claim(*values), claim(0.0, 1.0)])]
    assert verdicts == ["not supported", "holds", "not supported", "not supported"]


def test_what_rules_were_chosen_by_is_not_said_to_hold() -> None:
    chosen = replace(claim(1.0, 1.1, 1.2), chosen=True)
    assert judge([chosen])[0].verdict == "by construction"
    assert judge([replace(chosen, values=(-1.0, -1.1))])[0].verdict == "does not"


def test_a_saving_reaches_the_number_and_is_above_half_of_it() -> None:
    half, whole = -log(1 - 0.1), -log(1 - 0.2)

    def verdict(*values: float) -> str:
        return judge([saves("less time", "20 %", values, 0.2)])[0].verdict

    assert verdict(whole, whole + 0.01) == "holds"
    assert verdict(half, half + 0.01) == verdict(-whole, -whole + 0.01) == "does not"
    assert verdict(0.0, 2 * whole + 0.1) == "not supported"
    row = judge([saves("less time", "20 %", (whole, whole), 0.2)])[0]
    assert row.measured == "20.0% [20.0%, 20.0%]"
    fast = times_as_fast("faster", "1.5×", (log(1.64), log(1.66)), 1.5)
    assert judge([fast])[0].verdict == "holds"
    assert fast.measured.startswith("1.65×")
    assert judge([keeps("accurate", "yes", (-0.001, -0.0011), 0.005)])[0].verdict == "holds"


def test_sections_replace_what_is_between_their_marks() -> None:
    text = "a\n<!-- one -->\nold\n<!-- end one -->\nb\n"
    made = between_marks(text, {"one": "new"})
    assert made == "a\n<!-- one -->\n\nnew\n\n<!-- end one -->\nb\n"
    assert between_marks(made, {"one": "new"}) == made
    with pytest.raises(InputError, match="end two"):
        between_marks(text, {"two": "new"})


def test_results_without_a_group() -> None:
    with pytest.raises(InputError, match="no runs of 'b'"):
        Results({"a": []}).runs("b")
