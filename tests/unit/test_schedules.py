"""Densities that follow time alone, or nothing: schedules, warm-up, script, random walk."""

from __future__ import annotations

from itertools import pairwise
from math import exp, log
from statistics import fmean, pstdev
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.compatibility import resolve
from testbed.control.base import Controller, Observation, controllers
from testbed.control.schedules import DensitySchedule, DgcWarmup, RandomWalk, Script, reflected
from testbed.errors import InputError


def course(controller: Controller, epochs: list[int]) -> list[float]:
    """Densities of steps in these epochs, each asked for before the step is seen."""
    densities = []
    for step, epoch in enumerate(epochs):
        densities.append(controller.density())
        controller.observe(Observation(step, epoch, 0.1, 0.5, 1000, densities[-1]))
    return densities


def row(name: str) -> Controller:
    algorithm = resolve(name)
    return controllers.get(algorithm.controller)(seed=1, **algorithm.options)


def test_linear() -> None:
    controller = DensitySchedule(seed=0, **{"from": 0.5, "to": 0.1, "steps": 4})
    assert course(controller, [1] * 7) == pytest.approx([0.5, 0.4, 0.3, 0.2, 0.1, 0.1, 0.1])


def test_exponential() -> None:
    controller = DensitySchedule(
        seed=0, **{"form": "exponential", "from": 1, "to": 0.01, "steps": 2}
    )
    assert course(controller, [1] * 4) == pytest.approx([1.0, 0.1, 0.01, 0.01])
    up = DensitySchedule(seed=0, **{"form": "exponential", "from": 0.01, "to": 1, "steps": 1})
    assert course(up, [1] * 2) == [0.01, 1.0]


@pytest.mark.parametrize(("name", "middle"), [("topk-linear", 0.1455), ("topk-exponential", (0.29 * 0.001) ** 0.5)])  # fmt: skip
def test_rows_of_schedules(name: str, middle: float) -> None:
    assert (resolve(name).selector, resolve(name).memory) == ("topk", "feedback")
    densities = course(row(name), [1] * 220)
    assert (densities[0], set(densities[200:])) == (0.29, {0.001})
    assert densities[100] == pytest.approx(middle)
    assert sorted(densities, reverse=True) == densities


def test_warm_up_of_dgc() -> None:
    """An epoch is heard of after its first step, which has the density of the epoch before."""
    assert (resolve("dgc-warmup").selector, resolve("dgc-warmup").memory) == ("dgc", "dgc")
    densities = course(row("dgc-warmup"), [1, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6])
    assert densities == [0.25] * 4 + [0.0625] * 2 + [0.015625] * 2 + [0.004] * 2 + [0.001] * 3


def test_epochs_count_from_the_first_seen() -> None:
    controller = DgcWarmup(seed=0, densities=[0.5, 0.4, 0.3])
    assert course(controller, [7, 8, 8, 9, 9]) == [0.5, 0.5, 0.4, 0.4, 0.3]


def test_script() -> None:
    controller = Script(seed=0, densities=[0.3, 1, 0.2])
    assert course(controller, [1] * 5) == [0.3, 1.0, 0.2, 0.2, 0.2]


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("schedule", {"form": "square"}, "form: .*'linear' or 'exponential'"),
        ("schedule", {"from": 0.0}, "from: .*greater than 0"),
        ("schedule", {"from_": 0.1}, "unknown option 'from_'.*from .0.29."),
        ("schedule", {"steps": 0}, "steps: "),
        ("dgc-warmup", {"densities": []}, "densities: .*at least 1"),
        ("script", {"densities": [0.1, 2.0]}, "densities: .*less than or equal to 1, got 2.0"),
        ("script", {"densities": 0.1}, "densities: .*valid list"),
        ("random-walk", {"k_min": 0.5}, "k_min 0.5 is above k_max 0.29"),
        ("random-walk", {"mean": 0.75}, "mean 0.75 with spread 2.0 has an upper limit of 1.386"),
        ("random-walk", {"spread": 1.0}, "spread: .*greater than 1"),
        ("random-walk", {"step": -1.0}, "step: "),
    ],
)  # fmt: skip
def test_wrong_options(name: str, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=f"controller '{name}': {sentence}"):
        controllers.get(name)(seed=0, **options)


def test_steps_of_the_walk() -> None:
    """Far from its limits: normal steps of log k of deviation 0.05."""
    walk = RandomWalk(seed=4, k_min=1e-300, k_max=1.0)
    walk.load({**walk.state(), "k": 1e-150})
    logs = [log(density) for density in course(walk, [1] * 4000)]
    steps = [after - before for before, after in pairwise(logs)]
    assert fmean(steps) == pytest.approx(0.0, abs=0.003)
    assert pstdev(steps) == pytest.approx(0.05, rel=0.04)


def test_walk_starts_at_its_upper_limit() -> None:
    walk = RandomWalk(seed=0)
    densities = course(walk, [1] * 3000)
    assert densities[0] == 0.29
    assert 0.001 <= min(densities) < 0.05 < max(densities[1000:]) <= 0.29
    assert course(RandomWalk(seed=1), [1] * 9) != densities[:9]


def test_walk_has_the_mean_that_is_asked_for() -> None:
    """Long steps, so that places are soon independent: the standard error is about 0.3 %."""
    walks = [RandomWalk(seed=seed, mean=0.116, step=0.5) for seed in range(40)]
    assert {walk.density() for walk in walks} == {0.116}
    low, high = walks[0].options.limits
    assert (low, high) == pytest.approx((0.4621 * 0.116, 1.8484 * 0.116), rel=1e-4)
    assert high / low == pytest.approx(4.0)
    densities = [course(walk, [1] * 3000) for walk in walks]
    assert all(low <= density <= high for one in densities for density in one)
    assert fmean(map(fmean, densities)) == pytest.approx(0.116, rel=0.01)
    assert resolve("random-walk").options == {"mean": 0.116}


def test_walk_between_equal_limits() -> None:
    walk = RandomWalk(seed=0, k_min=0.1, k_max=0.1)
    assert course(walk, [1] * 5) == pytest.approx([0.1] * 5)


@given(st.floats(-1e6, 1e6), st.floats(-10, 10), st.floats(0, 10))
def test_reflection_stays_inside(place: float, low: float, width: float) -> None:
    inside = reflected(place, low, low + width)
    assert low - 1e-9 <= inside <= low + width + 1e-9


def test_reflection() -> None:
    places = [0.5, 1.25, -0.25, 2.5, 3.75, -1.75]
    assert [reflected(place, 0.0, 1.0) for place in places] == [0.5, 0.75, 0.25, 0.5, 0.25, 0.25]
    assert exp(reflected(log(0.4), log(0.1), log(0.2))) == pytest.approx(0.1)
