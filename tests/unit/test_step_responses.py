"""``bench control``: what a response is, the programme against exhaustive search, and a small call of all of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import product
from math import ceil, log
from pathlib import Path
from random import Random

import pytest
from one_by_one import one_by_one

from testbed.bench import waveforms as simulating
from testbed.bench.controllers import (
    PLAYED,
    PROGRAMME,
    RESULT,
    Curve,
    ResponsePlan,
    ResponseResult,
    arrival,
    bound,
    moving_median,
    overshoot,
    response,
    run,
    target,
)
from testbed.bench.waveforms import CHANGE_S, REFERENCES, WAVEFORMS, RunClock, earliest, fit, write
from testbed.errors import InputError
from testbed.runner.experiment import prepare
from testbed.scenario.link_state import LinkDirection


def curve(
    density: Sequence[float], step_s: float = 0.1, evaluated: Sequence[tuple[float, float, float]] = ()
) -> Curve:  # fmt: skip
    starts = [i * step_s for i in range(len(density))]
    return Curve(starts, [start + step_s for start in starts], density, evaluated)


STILL = curve([0.1] * 100)
NOT_REACHED = dict.fromkeys(["target", "time_s", "regret_fixed", "regret_programme", "best_fixed"])


def answer(after: Sequence[float], reference: Curve = STILL) -> tuple[object, ...]:
    """Response to a change at 2 s, after 20 steps of 0.1 s like the reference's."""
    found = response(curve([*reference.density[:20], *after]), reference, 2.0)
    assert found is not None
    return found.responds, found.response_s, found.overshoot


def test_a_jump_is_answered_when_the_median_has_jumped() -> None:
    assert answer([0.1] * 10 + [0.01] * 70) == (True, pytest.approx(1.0), 0.0)


def test_a_single_step_aside_is_no_answer() -> None:
    assert answer([0.1] * 10 + [0.01] + [0.1] * 69) == (False, None, None)


def test_a_change_below_a_tenth_is_none() -> None:
    assert answer([0.109] * 80)[0] is False
    assert answer([0.111] * 80)[0] is True


def test_a_slow_answer_has_arrived_within_a_fifth_of_the_way() -> None:
    # a straight line in log k over 20 steps: 80 % of the way at its 16th
    line = [0.1 * 10 ** (-i / 20) for i in range(20)] + [0.01] * 60
    assert answer(line) == (True, pytest.approx(1.6), 0.0)


def test_an_excursion_beyond_the_settled_level() -> None:
    # a decade down, half of a decade further for 10 steps
    beyond = [0.01 * 10**-0.5] * 10 + [0.01] * 70
    responds, time_s, over = answer(beyond)
    assert (responds, over) == (True, pytest.approx(0.5))
    # the medians of the last two of the ten and of the first two after them are of both: it is 3 of 5
    assert time_s == pytest.approx(1.0)


def test_what_swings_to_the_end_has_not_settled() -> None:
    swing = ([0.05] * 10 + [0.005] * 10) * 4
    assert answer(swing)[:2] == (True, None)


def test_what_declines_anyway_is_not_taken_for_an_answer() -> None:
    falling = curve([0.3 * 0.96**i for i in range(100)])
    assert answer(falling.density[20:], falling) == (False, None, None)
    halved = [k / 2 for k in falling.density[20:]]
    assert answer(halved, falling) == (True, pytest.approx(0.0), pytest.approx(0.0))


def test_runs_that_end_too_soon_have_no_response() -> None:
    assert response(curve([0.1] * 22), STILL, 2.0) is None
    assert response(curve([0.1] * 30), STILL, 0.0) is None


def test_the_parts_of_a_response() -> None:
    assert moving_median([1, 9, 2, 3, 8]) == [2, 2.5, 3, 5.5, 3]
    assert arrival([False, True, False, True, True]) == 3
    assert arrival([True, True]) == 0
    assert arrival([True, False]) is None
    assert overshoot([0.0, -1.2, -1.0], 0.0, -1.0) == pytest.approx(0.2)
    assert overshoot([0.0, -0.9], 0.0, -1.0) == 0.0


def test_a_level_is_reached_between_two_evaluations() -> None:
    seen = curve([1.0], evaluated=[(5, 1.0, 0.4), (10, 3.0, 0.6), (15, 4.0, 0.55), (20, 5.0, 0.8)])
    assert seen.reached(0.5) == pytest.approx((7.5, 2.0))
    assert seen.reached(0.3) == (5, 1.0)
    assert seen.reached(0.7) == pytest.approx((18.0, 4.6))
    assert seen.reached(0.9) is None


def test_the_target_is_what_every_controller_and_two_fixed_densities_reach() -> None:
    def up_to(level: float) -> Curve:
        return curve([1.0], evaluated=[(5, 1.0, level)])

    fixed = {"x": up_to(0.86), "y": up_to(0.95), "z": up_to(0.3)}
    assert target({**fixed, "a": up_to(0.95)}, fixed) == 0.85
    assert target({**fixed, "a": up_to(0.95), "b": up_to(0.55)}, fixed) == 0.5
    assert target({**fixed, "b": up_to(0.4)}, fixed) is None
    assert target({"y": up_to(0.95), "a": up_to(0.95)}, fixed) is None


def test_demand_is_fitted_by_least_squares() -> None:
    found = fit({k: 30 + 0.2 / k for k in (0.001, 0.01, 0.1, 1.0)})
    assert (found.n0, found.c) == pytest.approx((30, 0.2))
    assert found.worst == pytest.approx(0.0, abs=1e-9)
    assert found.steps(0.5) == pytest.approx(30.4)
    # steps that fall with 1/k: no rule with n0, c ≥ 0 follows them
    assert fit({0.01: 10.0, 1.0: 20.0}).worst > 0.3


def test_a_clock_follows_its_run() -> None:
    clock = RunClock([0.0, 1.0, 2.0, 4.0], [1.0, 2.0, 4.0, 8.0])
    assert clock.after(0.0, 1) == 1.0
    assert clock.after(1.5, 1) == 3.0
    assert clock.after(3.0, 0.25) == 3.5
    tail_s = 2.0
    assert clock.after(8.0, 1) == 8.0 + tail_s
    assert clock.after(6.0, 1) == 8.0 + tail_s / 2


def exhaustive(steps: Mapping[float, float], clocks: Mapping[float, RunClock]) -> float:
    """The least time over all sequences of densities, whole steps but for the last."""
    longest = ceil(max(steps.values()))
    times = []
    for sequence in product(steps, repeat=longest):
        done, time_s = 0.0, 0.0
        for k in sequence:
            share = min(1.0, (1 - done) * steps[k])
            time_s = clocks[k].after(time_s, share)
            done += share / steps[k]
            if done >= 1 - 1e-9:
                break
        times.append(time_s)
    return min(times)


@pytest.mark.parametrize("seed", range(5))
def test_the_programme_finds_what_exhaustive_search_finds(seed: int) -> None:
    random = Random(seed)
    # every 1/N is a whole number of parts of the grid: nothing is rounded
    steps = {0.01: 8.0, 0.1: 5.0, 1.0: 4.0}
    clocks = {}
    for k, most in zip(steps, (1.0, 2.0, 3.0), strict=True):
        bounds = [0.0]
        for _ in range(12):
            bounds.append(bounds[-1] + random.uniform(0.2, most))
        clocks[k] = RunClock(bounds[:-1], bounds[1:])
    plan = earliest(steps, clocks, grid=40)
    assert plan.time_s == pytest.approx(exhaustive(steps, clocks))
    at, done = 0.0, 0.0
    for start, k in zip(plan.starts_s, plan.densities, strict=True):
        assert start == pytest.approx(at)
        share = min(1.0, (1 - done) * steps[k])
        at, done = clocks[k].after(at, share), done + share / steps[k]
    assert at == pytest.approx(plan.time_s)


def test_on_a_constant_link_the_programme_takes_one_density() -> None:
    step_s = {0.01: 0.1, 0.1: 0.15, 1.0: 0.5}
    steps = {0.01: 100.0, 0.1: 50.0, 1.0: 40.0}
    clocks = {k: RunClock([0.0, d], [d, 2 * d]) for k, d in step_s.items()}
    plan = earliest(steps, clocks)
    assert set(plan.densities) == {0.1}
    assert plan.time_s == pytest.approx(7.5) == pytest.approx(steps[0.1] * step_s[0.1])


def test_a_bound_of_runs_on_a_constant_link_is_the_best_of_them() -> None:
    def straight(step_s: float, needed: int) -> Curve:
        seen = [(n, n * step_s, 0.9 * n / needed) for n in range(5, needed + 1, 5)]
        return curve([0.1] * needed, step_s, seen)

    curves = {"topk-0.01": straight(0.1, 120), "topk-0.1": straight(0.2, 50)}
    found = bound(curves, {"topk-0.01": 0.01, "topk-0.1": 0.1}, 0.9)
    assert found is not None and found.best == "topk-0.1"
    assert found.plan.time_s == pytest.approx(10.0, rel=0.01)
    assert log(found.demand.steps(0.01) / 120) == pytest.approx(0.0, abs=1e-6)
    assert bound(curves, {"topk-0.01": 0.01}, 0.9) is None


@pytest.mark.parametrize("name", [*WAVEFORMS, *REFERENCES])
def test_nothing_moves_before_the_change(name: str, tmp_path: Path) -> None:
    waveform = {**WAVEFORMS, **REFERENCES}[name]
    timeline = prepare(write(tmp_path, waveform, 20, ["none"])).timeline
    for end in (LinkDirection("server", "up"), LinkDirection("server", "down")):
        before = {timeline.rate_at(end, CHANGE_S - 0.01 * i) for i in range(1, 600)}
        assert before == {waveform.before * 10**6}
        moved = any(timeline.rate_at(end, CHANGE_S + 0.5 + i) not in before for i in range(8))
        assert moved is (name in WAVEFORMS)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ResponseResult]:
    plan = ResponsePlan(
        ["adatopk", "topk-linear"],
        ["step-up", "trace"],
        {"topk-0.01": 0.01, "topk-0.1": 0.1},
        steps=14,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulating, "side_by_side", one_by_one)
        return run(plan, tmp_path_factory.mktemp("control"), lambda _: None, level=0.3)


def test_a_small_call_of_all_of_it(small: tuple[Path, ResponseResult]) -> None:
    directory, found = small
    written = json.loads((directory / RESULT).read_text())
    assert written["rows"] == found.suite.to_json()["rows"]
    names = ["adatopk", "topk-linear", PROGRAMME, PLAYED]
    assert [row["algorithm"] for row in found.suite.rows] == names * 2
    up = {row["algorithm"]: row for row in found.suite.rows if row["waveform"] == "step-up"}
    # a schedule over steps does not look at the link
    assert up["topk-linear"]["responds"] is False
    assert up["topk-linear"]["factor"] == 1.0
    assert up[PROGRAMME]["time_s"] == pytest.approx(up[PLAYED]["time_s"], rel=0.5)
    assert up[PROGRAMME]["regret_fixed"] < 0.05
    assert set(written["bounds"]) == {"step-up", "trace"}
    assert written["rates"]["step-up"] == [[0.0, 20e6], [pytest.approx(6.0), 100e6]]
    assert all(r["responds"] is None for r in written["rows"][4:6])


def test_figures_are_drawn(small: tuple[Path, ResponseResult]) -> None:
    from testbed.bench.figures import draw_control

    directory, found = small
    paths = draw_control(directory, found.to_json())
    stems = {path.stem for path in paths}
    assert stems == {"control_adatopk", "control_topk-linear", "control_regrets"}
    assert all(path.stat().st_size > 500 for path in paths)
    table = (directory / "control_adatopk.csv").read_text().splitlines()
    assert table[0] == "waveform,series,time_s,value"
    assert sum(line.startswith("step-up,k,") for line in table) == 14


def test_runs_can_be_judged_again(
    small: tuple[Path, ResponseResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulating, "side_by_side", one_by_one)
    directory, found = small
    ignored = ResponsePlan([], [])
    again, judged = run(ignored, directory, lambda _: None, level=1.0, again=directory)
    assert again == directory
    first = next(iter(found.suite.rows))
    assert {**first, **NOT_REACHED} == next(iter(judged.suite.rows))
    assert len(judged.suite.rows) == 4


def test_what_is_no_earlier_call_is_said(tmp_path: Path) -> None:
    (tmp_path / "runs.json").write_text('{"runs": {}}')
    with pytest.raises(InputError, match="these are no runs"):
        run(ResponsePlan([], []), tmp_path, lambda _: None, again=tmp_path)
