"""AdaTopK: steps worked out by hand, its fixed point, and its options."""

from __future__ import annotations

from random import Random
from statistics import mean
from typing import Any

import pytest
from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.control.adatopk import AdaTopK, EquationTwo, differences, ratio, slope
from testbed.control.base import Observation
from testbed.errors import ExperimentError

K = 0.2
"""Density at which the hand-made steps begin."""
RAISED = 0.98 * K + (1 - 0.98) * 0.29
LOWERED = 0.97 * K - (1 - 0.97) * 0.001


def controller(**options: Any) -> AdaTopK:
    """A window of two differences, starting from K."""
    return AdaTopK(seed=0, **{"window": 2, "initial_k": K, **options})


def seen(delay_s: float, accuracy: float, bytes_sent: int = 1000) -> Observation:
    return Observation(0, 0, delay_s, accuracy, bytes_sent, K)


def after(steps: list[tuple[float, float]], **options: Any) -> float:
    """Density after observing (delay, accuracy) pairs."""
    ada = controller(**options)
    for delay_s, accuracy in steps:
        ada.observe(seen(delay_s, accuracy))
    return ada.density()


# Two differences each. Accuracy +0.1, then +0.3: aratio 3/4.  Delay −2, then −1: dratio 1/3.
# 3·3/4 ≥ 2·1/3, delay fell: raise for certain.
FALLING_DELAY = [(5.0, 0.1), (3.0, 0.2), (2.0, 0.5)]
# Delay +2, then +1: the same ratios, delay grew: raise with probability 1 − p_inc.
GROWING_DELAY = [(2.0, 0.1), (4.0, 0.2), (5.0, 0.5)]
# Accuracy +0.3, then +0.1: aratio 1/4. Delay +1, then +3: dratio 3/4; 3/4 < 3/2, delay grew: lower.
DELAY_WINS_GROWING = [(1.0, 0.1), (2.0, 0.4), (5.0, 0.5)]
# The same with falling delay: lower with probability 1 − p_dec.
DELAY_WINS_FALLING = [(5.0, 0.1), (4.0, 0.4), (1.0, 0.5)]


def test_raise_for_certain() -> None:
    assert after(FALLING_DELAY, rho=1.0) == RAISED


def test_raise_by_chance() -> None:
    assert after(GROWING_DELAY, p_inc=0.0) == RAISED
    assert after(GROWING_DELAY, p_inc=1.0) == K
    assert after(GROWING_DELAY, rho=1.0) == K
    assert after(GROWING_DELAY, rho=1.0, p_inc=0.0) == RAISED


def test_lower_for_certain() -> None:
    assert after(DELAY_WINS_GROWING, rho=1.0) == LOWERED


def test_lower_by_chance() -> None:
    assert after(DELAY_WINS_FALLING, p_dec=0.0) == LOWERED
    assert after(DELAY_WINS_FALLING, p_dec=1.0) == K
    assert after(DELAY_WINS_FALLING, rho=0.0, p_dec=1.0) == K


@pytest.mark.parametrize(
    ("steps", "option"), [(GROWING_DELAY, "p_inc"), (DELAY_WINS_FALLING, "p_dec")]
)
def test_chances_are_what_they_say(steps: list[tuple[float, float]], option: str) -> None:
    """0.78 of 2,000 seeds hold; three standard deviations are 0.028."""
    held = 0
    for seed in range(2000):
        ada = AdaTopK(seed=seed, window=2, initial_k=K, rho=0.5, **{option: 0.78})
        for delay_s, accuracy in steps:
            ada.observe(seen(delay_s, accuracy))
        held += ada.density() == K
    assert held / 2000 == pytest.approx(0.78, abs=0.028)


def test_what_is_subtracted() -> None:
    def lowered(**options: Any) -> float:
        return after(DELAY_WINS_GROWING, **options)

    assert lowered(k_dec=0.1) == 0.97 * K - (1 - 0.97) * 0.1
    assert lowered(k_dec="k_max") == 0.97 * K - (1 - 0.97) * 0.29
    assert lowered(k_dec="k_min") == LOWERED
    assert lowered(decrease="toward_min", k_dec=0.1) == 0.97 * K + (1 - 0.97) * 0.001


def test_limits() -> None:
    assert after(FALLING_DELAY, initial_k=0.29, m_inc=0.0) == 0.29
    assert after(DELAY_WINS_GROWING, initial_k=0.001, k_dec=0.1) == 0.001


def test_ties_raise() -> None:
    # Both ratios 1/2, equal weights, falling delay.
    assert after([(3.0, 0.25), (2.0, 0.5), (1.0, 0.75)], alpha=1.0, beta=1.0) == RAISED


def test_nothing_changes() -> None:
    still = [(1.0, 1.0)] * 3
    assert after(still) == K
    assert after(still, zero_denominator="raise") == RAISED
    # Only accuracy stands still: its ratio is 0, so that delay decides.
    assert after([(1.0, 1.0), (2.0, 1.0), (4.0, 1.0)]) == LOWERED
    # Only delay stands still: its ratio is 0, rdiffer is 0: raise.
    assert after([(1.0, 0.1), (1.0, 0.2), (1.0, 0.3)], rho=1.0) == RAISED


def test_falling_accuracy() -> None:
    falling = [(5.0, 0.9), (3.0, 0.8), (2.0, 0.5)]
    assert after(falling) == RAISED
    assert after(falling, accuracy="signed", p_dec=0.0) == LOWERED


def test_trend() -> None:
    """Delays 2 9 1 3: newest − oldest is +1, but the line through all four falls."""
    steps = [(2.0, 0.1), (9.0, 0.1), (1.0, 0.1), (3.0, 0.9)]
    assert slope([2.0, 9.0, 1.0, 3.0]) == pytest.approx(-2.5)
    assert after(steps, window=3, p_inc=1.0) == K
    assert after(steps, window=3, p_inc=1.0, trend="slope") == RAISED


def test_delay_has_grown_where_the_newest_is_above_the_oldest_whatever_was_between() -> None:
    assert after([(5.0, 0.1), (6.0, 0.2), (4.0, 0.9)], p_inc=1.0) == RAISED
    assert after([(5.0, 0.1), (4.0, 0.2), (6.0, 0.9)], p_inc=1.0) == K


def test_one_change_in_the_window_is_a_change() -> None:
    """Of delay: it grew, and accuracy did not: lower. Of accuracy: raise."""
    assert after([(1.0, 0.5), (1.0, 0.5), (2.0, 0.5)]) == LOWERED
    assert after([(1.0, 0.1), (1.0, 0.1), (1.0, 0.2)]) == RAISED


def test_slope_of_equal_samples_is_nothing() -> None:
    assert slope([0.1] * 19) == 0.0


def test_delay_per_byte() -> None:
    """Delay doubles because twice as much was sent: per byte nothing happened."""
    for delay, expected in (("seconds", LOWERED), ("per_byte", K)):
        ada = controller(delay=delay)
        for size in (1000, 2000, 4000):
            ada.observe(seen(size / 1000, 1.0, bytes_sent=size))
        assert ada.density() == expected


def test_delay_per_byte_is_that_of_one_byte_where_none_was_sent() -> None:
    ada = controller(delay="per_byte")
    for size in (0, 1, 4):
        ada.observe(seen(0.5, 1.0, bytes_sent=size))
    assert ada.state()["delays"] == [0.5, 0.5, 0.125]


def test_equal_limits_leave_one_density() -> None:
    assert AdaTopK(seed=0, k_min=0.1, k_max=0.1).density() == 0.1


def test_only_the_newest_samples_count() -> None:
    ada = controller(window=2, rho=1.0)
    for delay_s, accuracy in [(9.0, 0.9), *FALLING_DELAY]:
        ada.observe(seen(delay_s, accuracy))
    assert len(ada.state()["delays"]) == 3
    assert ada.state()["delays"] == [5.0, 3.0, 2.0]


@pytest.mark.parametrize("window", [1, 2, 18])
def test_holds_until_the_window_is_full(window: int) -> None:
    ada = AdaTopK(seed=0, window=window)
    for step in range(window):
        ada.observe(seen(1.0 + step, 0.5))
        assert ada.density() == 0.29
    ada.observe(seen(100.0, 0.5))
    assert ada.density() < 0.29


def test_differences_and_ratios() -> None:
    assert differences([1.0, 3.0, 2.0]) == [2.0, -1.0]
    assert ratio([2.0, -1.0]) == pytest.approx(1 / 3)
    assert ratio([2.0, -1.0], signed=True) == pytest.approx(-1 / 3)
    assert ratio([0.0, 0.0]) == 0.0
    assert ratio([1.0, 2.0, -1.0], signed=True) == -0.25
    assert ratio([1.0, 2.0, -1.0]) == 0.25


def noise(rng: Random) -> tuple[float, float]:
    return rng.random(), rng.random()


@pytest.mark.parametrize("rho", [0.0, 0.78])
def test_fixed_point_of_pure_noise(rho: float) -> None:
    """Raised and lowered equally often with nothing subtracted: 0.02 (k_max − k) = 0.03 k at 0.4 k_max."""
    rng, densities = Random(4), []
    ada = AdaTopK(seed=4, alpha=1.0, beta=1.0, k_dec=0.0, rho=rho, initial_k=0.29)
    for step in range(12_000):
        ada.observe(seen(*noise(rng)))
        if step > 2000:
            densities.append(ada.density())
    assert mean(densities) == pytest.approx(0.4 * 0.29, rel=0.05)


def test_k_dec_decides_the_level() -> None:
    def level(k_dec: float | str) -> float:
        rng, ada, densities = Random(5), AdaTopK(seed=5, k_dec=k_dec), []
        for step in range(5000):
            ada.observe(seen(*noise(rng)))
            if step > 1000:
                densities.append(ada.density())
        return mean(densities)

    assert level("k_min") > level(0.1) > level("k_max")


@settings(max_examples=examples(60), deadline=None)
@given(
    steps=st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1)), max_size=60),
    limits=st.tuples(st.floats(1e-6, 1), st.floats(1e-6, 1)).map(sorted),
    k_dec=st.floats(0, 1),
    m_inc=st.floats(0, 1),
    m_dec=st.floats(0, 1),
    window=st.integers(1, 10),
    seed=st.integers(0, 2**63),
)
def test_density_stays_within_its_limits(
    steps: list[tuple[float, float]], limits: list[float], seed: int, **options: Any
) -> None:
    ada = AdaTopK(seed=seed, k_min=limits[0], k_max=limits[1], **options)
    for delay_s, accuracy in steps:
        assert limits[0] <= ada.density() <= limits[1]
        ada.observe(seen(delay_s, accuracy))
    assert limits[0] <= ada.density() <= limits[1]


@pytest.mark.parametrize("bad", [(float("nan"), 0.5), (float("inf"), 0.5), (1.0, float("nan"))])
def test_observations_must_be_finite(bad: tuple[float, float]) -> None:
    with pytest.raises(ExperimentError, match="must be finite"):
        controller().observe(seen(*bad))


def second(seed: int = 1, **options: Any) -> EquationTwo:
    return EquationTwo(seed=seed, candidates=[0.01, 0.1, 1.0], explore=0.0, **options)


def fed(
    chosen: EquationTwo, by_density: dict[float, tuple[float, float]], steps: int
) -> list[float]:
    """Densities of so many steps, each of which has its density's delay and accuracy."""
    densities = []
    for _ in range(steps):
        densities.append(chosen.density())
        chosen.observe(seen(*by_density[chosen.density()]))
    return densities


def test_equation_2_tries_every_candidate_and_takes_the_greatest_gain() -> None:
    measured = {1.0: (3.0, 0.9), 0.1: (1.5, 0.8), 0.01: (1.0, 0.5)}
    # N of accuracy: 1, 0.75, 0; of delay: 0, 0.75, 1. So 3·μ + 2·v is 3, 3.75 and 2.
    assert fed(second(), measured, 5) == [1.0, 0.1, 0.01, 0.1, 0.1]
    assert fed(second(alpha=0.0), measured, 5)[3:] == [0.01, 0.01]
    assert fed(second(beta=0.0), measured, 5)[3:] == [1.0, 1.0]
    assert fed(second(most_delay_s=1.2), measured, 5)[3:] == [0.01, 0.01]
    assert fed(second(least_accuracy=0.85), measured, 5)[3:] == [1.0, 1.0]
    assert fed(second(least_accuracy=0.95), measured, 5)[3:] == [0.1, 0.1], "all are below"


def test_equation_2_remembers_and_forgets() -> None:
    chosen = second(memory=0.5, beta=0.0)
    fed(chosen, {1.0: (1.0, 0.9), 0.1: (1.0, 0.8), 0.01: (1.0, 0.5)}, 3)
    assert chosen.density() == 1.0
    chosen.observe(seen(1.0, 0.6))  # 0.9 and 0.6: 0.75
    assert chosen.density() == 0.1
    gains = second(accuracy="gain", beta=0.0)
    for accuracy in (0.5, 0.6, 0.65):  # gains of 0, 0.1 and 0.05
        gains.observe(seen(1.0, accuracy))
    assert gains.density() == 0.1


def test_equation_2_explores_by_its_seed() -> None:
    def densities(seed: int) -> list[float]:
        equal = dict.fromkeys([1.0, 0.1, 0.01], (1.0, 0.5))
        return fed(EquationTwo(seed=seed, candidates=[*equal], explore=0.5), equal, 60)

    assert set(densities(1)) == {1.0, 0.1, 0.01}
    assert densities(1) == densities(1) != densities(2)
    with pytest.raises(ExperimentError, match="must be finite"):
        second().observe(seen(float("nan"), 0.5))
