"""``bench agreement``: its scenarios, its two halves, and the arithmetic of its verdict."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from testbed.bench import sim_agreement
from testbed.bench.sim_agreement import (
    CONDITION_NAMES,
    MEASURED,
    RATES,
    RESULT,
    WORKERS,
    AgreementCell,
    Pair,
    cells,
    misfit,
    pairs,
    run,
    verdict,
)
from testbed.errors import InputError
from testbed.runner.experiment import prepare
from testbed.scenario.link_state import LinkDirection

JUDGING = AgreementCell("static", 8, 100)


def test_both_halves_have_some_of_everything() -> None:
    every = list(cells())
    assert len(every) == len(CONDITION_NAMES) * len(WORKERS) * len(RATES) == 45
    for half in (True, False):
        chosen = [cell for cell in every if cell.calibrates is half]
        assert len(chosen) >= 22
        assert {cell.condition for cell in chosen} == set(CONDITION_NAMES)
        assert {cell.workers for cell in chosen} == set(WORKERS)
        assert {cell.rate for cell in chosen} == set(RATES)
    assert not JUDGING.calibrates


def test_scenarios_are_sound(tmp_path: Path) -> None:
    for cell, path in sim_agreement.write(tmp_path, cells(), 5, ["none"]).items():
        experiment = prepare(path)
        assert sum(spec.role == "worker" for spec in experiment.specs) == cell.workers
        highest = experiment.timeline.highest_rates()[LinkDirection("server", "up")]
        assert highest == pytest.approx(cell.rate * 10**6, rel=0.02)


def pair(algorithm: str, measured: float, simulated: float, cell: AgreementCell = JUDGING) -> Pair:
    return Pair(cell, algorithm, measured, 0.01, simulated)


def test_an_error_is_simulated_over_measured() -> None:
    found = pairs({JUDGING: {"none": [1.0, 3.0]}}, {JUDGING: {"none": [2.2]}})
    assert [(each.measured_s, each.error) for each in found] == [(2.0, pytest.approx(0.1))]
    assert found[0].half_s == pytest.approx(1.96 * 2**0.5 / 2**0.5)
    assert misfit(found) == pytest.approx((1.0, 0.1))


@pytest.mark.parametrize(
    ("found", "met"),
    [
        ([pair("none", 1.0, 1.04), pair("topk", 0.5, 0.49)], [True, True, True, True]),
        ([pair("none", 1.0, 1.06), pair("topk", 0.5, 0.49)], [False, True, True, True]),
        ([pair("none", 1.0, 1.20), pair("topk", 0.5, 0.50)], [False, False, False, True]),
        ([pair("none", 1.0, 0.96), pair("topk", 0.95, 0.97)], [True, True, True, False]),
        ([pair("none", 1.0, 0.97), pair("topk", 0.99, 0.98)], [True, True, True, True]),
    ],
)
def test_limits(found: list[Pair], met: list[bool]) -> None:
    assert [check.met for check in verdict(found, {}).checks] == met


def test_the_half_that_calibrates_does_not_judge() -> None:
    calibrating = next(cell for cell in cells() if cell.calibrates)
    suite = verdict([pair("none", 1.0, 9.0, calibrating), pair("none", 1.0, 1.0)], {})
    assert suite.met and len(suite.rows) == 2


def test_measurements_can_be_used_again(tmp_path: Path) -> None:
    told = {
        "steps": 4,
        "verdicts": {},
        "runs": sim_agreement.to_json({JUDGING: {"topk-0.1": [0.5, 0.6]}}),
    }
    (tmp_path / MEASURED).write_text(json.dumps(told))
    directory, suite = run([], tmp_path, lambda _: None, steps=9, again=tmp_path)
    (row,) = suite.rows
    assert directory == tmp_path and (tmp_path / RESULT).exists()
    assert row["algorithm"] == "topk-0.1", "what was measured is simulated"
    assert row["measured_s"] == pytest.approx(0.55) and 0.15 < row["simulated_s"] < 2.0


def test_what_are_no_measurements_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="these are no measurements"):
        run([], tmp_path, lambda _: None, steps=9, again=tmp_path)
