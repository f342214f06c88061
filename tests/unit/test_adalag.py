"""AdaLag on made-up networks whose best density is known."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import sqrt
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.control.adalag import AdaLag, intercept, known_seconds, lower_hull
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


def test_one_step_and_a_second_by_hand() -> None:
    """300 B in 0.5 s of a step of 1 s; of what was to be sent 6 are held and 2 leave, at k = 0.1."""
    controller = AdaLag(seed=0)
    seen = Observation(1, 1, 0.5, 0.5, 100, 0.1, step_s=1.0, bytes_received=200, held=6.0, sent=2.0)
    controller.observe(seen)
    first = sqrt(0.25 * 0.3 * 0.5 / (1 * 5.0))  # w·a·T₀/(n·b): b = 0.5 s for 0.1, T₀ what is left
    assert controller.state() == {
        "steps": 1, "k": pytest.approx(first), "lag": pytest.approx(0.3), "fastest": [[33, 300.0, 0.5]],
        "empty_s": 0.0, "recent": [[0.1, 0.5, 1.0]], "known_s": None,
    }  # fmt: skip
    slower = {"delay_s": 0.6, "step_s": 1.1, "held": 12.0}
    controller.observe(replace(seen, **slower))
    state = controller.state()
    assert state["fastest"] == [[33, 300.0, 0.5]], "the fastest of a size is kept"
    assert state["lag"] == pytest.approx(0.3 + 0.1 * (0.6 - 0.3))
    b, rest_s = (5.0 + 6.0) / 2, 0.5
    assert state["k"] == pytest.approx(sqrt(0.25 * 0.33 * rest_s / (2 * b)))


def test_what_is_kept_is_loaded_whole() -> None:
    controller = AdaLag(seed=0, bytes_take="known")
    for step, (amount, delay_s) in enumerate([(100, 0.5), (5000, 0.9), (300, 0.55)]):
        rates = {"share_up_bits": 1e6, "share_down_bits": 2e6}
        controller.observe(Observation(step, 1, delay_s, 0.5, amount, 0.1, step_s=1.0, bytes_received=0, held=1.0, sent=1.0, **rates))  # fmt: skip
    state = controller.state()
    assert len(state["fastest"]) > 1 and state["empty_s"] > 0 and state["known_s"] > 0
    other = AdaLag(seed=0, bytes_take="known")
    other.observe(Observation(0, 1, 9.0, 0.5, 1, 0.1))
    other.load(state)
    assert other.state() == state


@pytest.mark.parametrize(
    ("sent", "received", "kept"), [(0, None, 1.0), (2, None, 2.0), (2, 6, 8.0)]
)
def test_a_message_has_what_went_both_ways_and_at_least_a_byte(
    sent: int, received: int | None, kept: float
) -> None:
    controller = AdaLag(seed=0)
    controller.observe(Observation(0, 1, 0.5, 0.5, sent, 0.1, bytes_received=received, sent=1.0))
    assert controller.state()["fastest"] == [[4 * (int(kept).bit_length() - 1), kept, 0.5]]
    assert controller.state()["lag"] is None


def test_a_message_faster_than_one_of_no_bytes_is_no_reason_to_forget_others() -> None:
    controller = AdaLag(seed=0)
    kept = [[33, 300.0, 0.5], [53, 10_000.0, 0.9]]
    controller.load({**controller.state(), "fastest": kept, "empty_s": 0.4})
    controller.observe(Observation(0, 1, 0.3, 0.5, 1000, 0.1))
    assert controller.state()["fastest"] == [*kept, [40, 1000.0, 0.3]]


@pytest.mark.parametrize(("delay_s", "held"), [(-0.5, 1.0), (0.5, -1.0), (0.5, float("nan"))])
def test_amounts_below_nothing_are_refused(delay_s: float, held: float) -> None:
    with pytest.raises(ExperimentError, match="must be finite, and none below 0"):
        AdaLag(seed=0).observe(Observation(3, 1, delay_s, 0.5, 1, 0.1, held=held, sent=1.0))


def test_seconds_known_from_rates_are_for_density_one() -> None:
    seen = Observation(0, 1, 0.1, 0.5, 1000, 0.5, share_up_bits=8000.0, share_down_bits=16_000.0)
    assert known_seconds(seen) == 8 * 1000 / 8000 / 0.5
    assert known_seconds(replace(seen, bytes_received=3000)) == (1.0 + 8 * 3000 / 16_000) / 0.5
    for gone in ({"share_up_bits": None}, {"share_down_bits": None}, {"share_up_bits": 0.0}):
        assert known_seconds(replace(seen, **gone)) is None


@pytest.mark.parametrize(
    ("points", "hull"),
    [
        ([(1, 5), (2, 3), (2, 4)], [(1, 5), (2, 3)]),
        ([(0, 0), (1, 5), (2, 0)], [(0, 0), (2, 0)]),
        ([(1, 0), (2, 0.1), (3, 0.3), (4, 0.6)], [(1, 0), (2, 0.1), (3, 0.3), (4, 0.6)]),
        ([(0, 0), (1, 1), (2, 2)], [(0, 0), (2, 2)]),
        ([(1, 0), (2, 1), (3, 1.5)], [(1, 0), (3, 1.5)]),
    ],
)
def test_hulls_turn_left_at_every_point(points: list, hull: list) -> None:
    assert lower_hull(points) == hull


def test_a_hull_is_prolonged_from_the_first_point_half_as_far_again() -> None:
    assert intercept([(2.0, 3.0), (3.0, 3.5)]) == 2.0
    assert intercept([(2.0, 3.0), (4.0, 4.0), (8.0, 10.0)]) == 2.0
