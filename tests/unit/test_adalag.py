"""AdaLag on made-up networks whose best density is known."""

from __future__ import annotations

from itertools import pairwise
from math import sqrt
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.control.adalag import AdaLag, intercept, lower_hull
from testbed.control.base import Observation
from testbed.errors import ExperimentError, InputError

LAG, WEIGHT = 0.32, 0.25


def observation(
    step: int, k: float, *, per_k_s: float, empty_s: float = 0.0, compute_s: float = 0.05
) -> Observation:
    """A step in which bytes take ``per_k_s`` for each unit of density, and mass waits LAG/k steps."""
    delay_s = empty_s + per_k_s * k
    return Observation(
        step=step,
        epoch=1,
        delay_s=delay_s,
        accuracy=0.5,
        bytes_sent=round(1e6 * k),
        density=k,
        step_s=compute_s + delay_s,
        bytes_received=round(2e6 * k),
        held=LAG / k,
        sent=1.0,
    )


def played(controller: AdaLag, steps: int, *, first: int = 1, **network: float) -> list[float]:
    densities = []
    for step in range(first, first + steps):
        densities.append(controller.density())
        controller.observe(observation(step, densities[-1], **network))
    return densities


@pytest.mark.parametrize("empty_s", [0.0, 0.04, 0.4])
@pytest.mark.parametrize("per_k_s", [0.05, 1.0, 20.0])
def test_it_comes_to_the_root_whatever_part_of_delay_is_not_bytes(
    per_k_s: float, empty_s: float
) -> None:
    played_k = played(AdaLag(seed=0), 200, per_k_s=per_k_s, empty_s=empty_s)
    for n in (50, 199):
        root = sqrt(WEIGHT * LAG * (0.05 + empty_s) / (n * per_k_s))
        assert played_k[n] == pytest.approx(min(max(root, 0.001), 0.29), rel=0.02)


def test_bytes_that_become_dearer_lower_k_by_the_root_of_it() -> None:
    controller = AdaLag(seed=0)
    before = played(controller, 200, per_k_s=1.0, empty_s=0.02)[-1]
    after = played(controller, 30, first=201, per_k_s=4.0, empty_s=0.02)
    assert after[4] == pytest.approx(before, rel=0.02), "five slow steps of nine are no median yet"
    assert after[-1] == pytest.approx(before / 2 * sqrt(200 / 229), rel=0.05)


@pytest.mark.parametrize("noise", [0.0, 0.05])
@pytest.mark.parametrize("faster", [5.0, 10.0])
def test_a_link_that_becomes_faster_is_noticed(faster: float, noise: float) -> None:
    """As on a link that was as fast from the start, but for what was decided before."""
    rng, changed, steady = Random(4), AdaLag(seed=0), AdaLag(seed=0)
    for step in range(1, 141):
        for controller, price in ((changed, 2.0 if step <= 100 else 2.0 / faster), (steady, 2.0)):
            per_k_s = price * (1 + noise * rng.uniform(-1, 1))
            seen = observation(step, controller.density(), per_k_s=per_k_s, empty_s=0.01)
            controller.observe(seen)
    assert changed.density() / steady.density() == pytest.approx(sqrt(faster), rel=0.15)


def test_where_bytes_cost_nothing_k_is_as_large_as_it_may_be() -> None:
    assert played(AdaLag(seed=0), 60, per_k_s=0.0, empty_s=0.02)[-1] == 0.29


def test_k_changes_by_half_at_most() -> None:
    played_k = played(AdaLag(seed=0, initial_k=0.29), 20, per_k_s=100.0)
    ratios = [new / old for old, new in pairwise(played_k)]
    assert min(ratios) == pytest.approx(1 / 1.5)


def test_a_pause_does_not_move_it() -> None:
    """A step that waits for a node that stands still says nothing of bytes."""
    calm, disturbed = AdaLag(seed=0), AdaLag(seed=0)
    played(calm, 100, per_k_s=1.0, empty_s=0.02)
    played(disturbed, 50, per_k_s=1.0, empty_s=0.02)
    played(disturbed, 2, first=51, per_k_s=1.0, empty_s=3.0)
    played(disturbed, 48, first=53, per_k_s=1.0, empty_s=0.02)
    assert disturbed.density() == pytest.approx(calm.density(), rel=0.02)


def test_the_oracle_takes_rates_in_place_of_delays() -> None:
    """Delays are noise here; the links' rates are known."""
    oracle, rng = AdaLag(seed=0, bytes_take="known"), Random(1)
    assert oracle.watches == {"memory", "path"} and AdaLag(seed=0).watches == {"memory"}
    per_k_s = 8 * (1e6 / 40e6 + 2e6 / 80e6)
    for step in range(1, 201):
        k = oracle.density()
        seen = observation(step, k, per_k_s=per_k_s)
        noisy = {"delay_s": rng.random(), "step_s": 0.05 + per_k_s * k}
        rates = {"share_up_bits": 40e6, "share_down_bits": 80e6} if step > 3 else {}
        fields = {name: getattr(seen, name) for name in Observation.__slots__}
        oracle.observe(Observation(**{**fields, **noisy, **rates}))
        if step <= 3:
            assert oracle.density() == 0.1, "no rates, no choice"
    assert oracle.density() == pytest.approx(sqrt(WEIGHT * LAG * 0.05 / (200 * per_k_s)), rel=0.02)


def test_records_without_what_it_watches_leave_k_alone() -> None:
    controller = AdaLag(seed=0)
    for step in range(30):
        controller.observe(Observation(step, 1, 0.1, 0.5, 1000, controller.density()))
    assert controller.density() == 0.1


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=60), st.floats(0, 1e9))
def test_k_stays_within_its_limits(delays: list[float], held: float) -> None:
    controller = AdaLag(seed=0)
    for step, delay_s in enumerate(delays):
        seen = Observation(
            step, 1, delay_s, 0.5, 100 + step % 7, controller.density(), held=held, sent=1.0
        )
        controller.observe(seen)
        assert 0.001 <= controller.density() <= 0.29


def test_delays_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(ExperimentError, match="step 3 took inf s"):
        AdaLag(seed=0).observe(Observation(3, 1, float("inf"), 0.5, 1, 0.1))


def test_a_first_density_outside_its_limits_is_refused() -> None:
    with pytest.raises(InputError, match=r"initial_k 0.5 is outside \[k_min 0.001, k_max 0.29\]"):
        AdaLag(seed=0, initial_k=0.5)


def test_lower_hull() -> None:
    points = [(1.0, 3.0), (2.0, 2.5), (2.0, 9.0), (3.0, 5.0), (4.0, 3.5), (3.5, 8.0)]
    assert lower_hull(points) == [(1.0, 3.0), (2.0, 2.5), (4.0, 3.5)]
    assert lower_hull(lower_hull(points)) == lower_hull(points)


@pytest.mark.parametrize(
    ("hull", "at_zero"),
    [
        ([(5.0, 2.0)], None),
        ([(2.0, 3.0), (4.0, 5.0)], 1.0),
        ([(2.0, 1.0), (4.0, 5.0)], 0.0),
        ([(2.0, 3.0), (2.5, 4.0)], None),
        ([(1.0, 4.0), (2.0, 3.0), (4.0, 5.0)], 1.0),
    ],
)
def test_intercept(hull: list[tuple[float, float]], at_zero: float | None) -> None:
    assert intercept(hull) == at_zero
