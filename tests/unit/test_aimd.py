"""Additive increase, multiplicative decrease: steps worked out by hand, and no limit that absorbs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.compatibility import resolve
from testbed.control.aimd import AimdBdp, AimdDelay
from testbed.control.base import Controller, Observation
from testbed.errors import ExperimentError, InputError

RULES = [AimdDelay, AimdBdp]
rules = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)


def seen(delay_s: float, bytes_sent: int = 1000, step_s: float | None = None) -> Observation:
    return Observation(0, 1, delay_s, 0.5, bytes_sent, 0.1, step_s=step_s)


def course(controller: Controller, steps: list[Observation]) -> list[float]:
    """Densities after each step."""
    densities = []
    for step in steps:
        controller.observe(step)
        densities.append(controller.density())
    return densities


def delays(controller: Controller, *delays_s: float) -> list[float]:
    return course(controller, [seen(delay_s) for delay_s in delays_s])


@rules
def test_constants_and_rows(rule: Any) -> None:
    own = {AimdDelay: {"weight": 0.1}, AimdBdp: {"window_s": 5.0, "share": 0.9}}[rule]
    common = {"initial_k": 0.75, "k_max": 1.0, "k_min": 0.005, "increase": 0.001, "decrease": 0.95}
    assert rule(seed=0).options.model_dump() == {**common, **own}
    row = resolve(rule.name)
    assert (row.selector, row.memory, row.controller) == ("topk", "feedback", rule.name)


def test_delay() -> None:
    controller = AimdDelay(seed=0)
    # s: 1.0; 0.9 (down); 0.89 (down); 0.901 (up); 0.901 (equal)
    assert delays(controller, 1.0, 0.0, 0.8, 1.0) == pytest.approx(
        [0.75, 0.751, 0.752, 0.752 * 0.95]
    )
    smoothed = controller.state()["smoothed"]
    assert smoothed == pytest.approx(0.901)
    assert delays(controller, smoothed) == pytest.approx([0.752 * 0.95**2])


def test_bandwidth_delay_product() -> None:
    controller = AimdBdp(seed=0)
    # alone, a message is its own product: 1000 > 900
    assert course(controller, [seen(1.0, 1000)]) == pytest.approx([0.75 * 0.95])
    assert controller.bdp() == 1000.0
    # 4000 B/s · 0.5 s = 2000 B: 2000 > 1800
    assert course(controller, [seen(0.5, 2000)]) == pytest.approx([0.75 * 0.95**2])
    assert controller.bdp() == 2000.0
    # 1800 of 2000 B is not above
    assert course(controller, [seen(0.6, 1800)]) == pytest.approx([0.75 * 0.95**2 + 0.001])
    assert course(controller, [seen(0.6, 1801)]) == pytest.approx([(0.75 * 0.95**2 + 0.001) * 0.95])


def test_window_is_five_seconds_of_model_time() -> None:
    controller = AimdBdp(seed=0)
    steps = [seen(0.5, 4000, 1.0), *[seen(0.5, 1000, 1.0)] * 5, seen(0.5, 1000, 0.1)]
    products = []
    for step in steps:
        controller.observe(step)
        products.append(controller.bdp())
    # the first was taken in at 1 s: at 6 s it is 5 s old, at 6.1 s it is gone
    assert products == [4000.0] * 6 + [1000.0]


def test_time_is_that_of_delays_where_steps_have_none() -> None:
    controller = AimdBdp(seed=0, window_s=1.0)
    course(controller, [seen(0.6, 4000), seen(0.6, 1000)])
    assert controller.bdp() == 4000.0
    course(controller, [seen(0.6, 1000)])
    assert controller.bdp() == pytest.approx(1000.0)
    assert controller.state()["now_s"] == pytest.approx(1.8)


def test_a_step_longer_than_the_window_is_its_own_product() -> None:
    controller = AimdBdp(seed=0)
    course(controller, [seen(1.0, 9000, 20.0), seen(1.0, 500, 20.0)])
    assert controller.bdp() == 500.0
    assert controller.density() == pytest.approx(0.75 * 0.95**2)


def test_no_bandwidth_in_no_time() -> None:
    controller = AimdBdp(seed=0)
    assert course(controller, [seen(0.0)]) == [0.75]
    assert controller.state()["samples"] == []


def test_dense_does_not_absorb_delay() -> None:
    """At k = 1 it still measures: while delay falls it stays, the first rise of delay brings it down."""
    controller = AimdDelay(seed=0, initial_k=1.0)
    assert delays(controller, *[2.0 - 0.1 * n for n in range(10)]) == [1.0] * 10
    assert delays(controller, 5.0, 5.0) == pytest.approx([0.95, 0.9025])
    assert delays(controller, 0.1)[-1] == pytest.approx(0.9035)


def test_dense_does_not_absorb_bdp() -> None:
    controller = AimdBdp(seed=0, initial_k=1.0)
    fast = seen(0.1, 10_000, 0.1)
    course(controller, [fast])
    few = course(controller, [seen(0.1, 1000, 0.1)] * 49)
    assert few[-1] == pytest.approx(0.999)
    assert course(controller, [seen(0.1, 1000, 0.1)])[-1] == 1.0
    assert course(controller, [fast])[-1] == 0.95


@rules
def test_the_least_density_does_not_absorb(rule: Any) -> None:
    controller = rule(seed=0)
    slower = [seen(1.0 + n, 1000 * (n + 1), 0.1) for n in range(400)]
    assert course(controller, slower)[-1] == 0.005
    assert course(controller, [seen(0.2, 100, 0.1)])[-1] > 0.005


def test_a_link_that_never_changes_is_taken_for_full() -> None:
    """Equal delays do not fall, and a message is its own product: both rules end at k_min."""
    for rule in RULES:
        assert course(rule(seed=0), [seen(0.25)] * 200)[-1] == 0.005


@rules
@settings(max_examples=examples(40), deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.floats(0, 1e6), st.integers(0, 10**9), st.none() | st.floats(0, 100)),
        max_size=60,
    ),
    initial_k=st.floats(0.005, 1),
)
def test_density_stays_within_its_limits(
    rule: Any, steps: list[tuple[float, int, float | None]], initial_k: float
) -> None:
    controller = rule(seed=1, initial_k=initial_k)
    for density in course(controller, [seen(*step) for step in steps]):
        assert 0.005 <= density <= 1.0
    json.dumps(controller.state(), allow_nan=False)


@rules
def test_refusals(rule: Any) -> None:
    with pytest.raises(ExperimentError, match=f"'{rule.name}': step 0 .*must be finite"):
        rule(seed=0).observe(seen(float("inf")))
    with pytest.raises(InputError, match=r"initial_k 0.001 is outside \[k_min 0.005, k_max 1.0\]"):
        rule(seed=0, initial_k=0.001)
    with pytest.raises(InputError, match=r"decrease: .*less than 1"):
        rule(seed=0, decrease=1.0)
