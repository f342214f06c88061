"""SIDCo: its fits against the distributions they are of, its stages, and how they are adapted."""

from __future__ import annotations

from math import exp, prod, sqrt
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from testbed.compress import kernels
from testbed.compress.base import AccumulatedGradient, Sparse
from testbed.compress.selectors.sidco import (
    Sidco,
    SidcoExponential,
    SidcoGamma,
    SidcoPareto,
    Stages,
    exponential,
    gamma,
    most_stages,
    pareto,
    stage_shares,
)

torch.set_num_threads(1)
SIZE = 1 << 18
SHARES = (0.5, 0.1, 0.01, 0.001)


def select(selector: Sidco, magnitudes: NDArray[np.float64], density: float) -> Sparse:
    signs = np.random.default_rng(1).choice([-1.0, 1.0], magnitudes.size)
    vector = torch.from_numpy((magnitudes * signs).astype(np.float32))
    seen = kernels.of(vector).measure(vector)
    return selector.select(
        AccumulatedGradient(vector, seen.sum_abs, seen.max_abs), density, Random(0)
    )


@pytest.mark.parametrize("share", SHARES)
def test_thresholds_against_the_distributions_themselves(share: float) -> None:
    from scipy import stats

    for scale in (1e-12, 1.0, 1e12):
        assert exponential(scale, share) == pytest.approx(stats.expon(scale=scale).isf(share))
        for tail in (-0.4, -1e-9, 0.0, 0.2, 0.45):
            own = stats.genpareto(tail, scale=scale)
            threshold = pareto(own.mean(), own.var(), share)
            assert threshold == pytest.approx(own.isf(share), rel=1e-5)


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("shape", [0.3, 0.5, 1.0, 4.0, 50.0])
def test_gamma_is_near_maximum_likelihood(shape: float, share: float) -> None:
    """The closed form's shape is within 1.5 % of the maximum's (Minka 2002), which moves t by less than 5 %."""
    from scipy import special, stats

    own = stats.gamma(shape, scale=2.0)
    threshold = gamma(own.mean(), special.digamma(shape) + np.log(2.0), share)
    assert threshold == pytest.approx(own.isf(share), rel=0.05)


@given(
    mean=st.floats(1e-30, 1e30),
    variation=st.floats(0, 1e6),
    spread=st.floats(0, 500),
    share=st.floats(1e-9, 0.999),
)
def test_thresholds_are_numbers(mean: float, variation: float, spread: float, share: float) -> None:
    found = (
        exponential(mean, share),
        pareto(mean, (variation * mean) ** 2, share),
        pareto(mean, -1e-9 * mean * mean, share),
        gamma(mean, np.log(mean) - spread, share),
    )
    assert all(np.isfinite(found))
    assert min(found) >= 0


def test_all_equal_have_their_own_magnitude_for_a_threshold() -> None:
    assert pareto(3.0, 0.0, 0.01) == 3.0
    assert gamma(3.0, float(np.log(3.0)), 0.01) == 3.0


def bound(density: float, stages: int) -> float:
    """Each stage's fit rests on at least 4·density·n elements; five standard errors, slopes below 8."""
    return 5 * (
        8 * stages / sqrt(SIZE * min(1.0, 4 * density * (stages > 1) + (stages == 1)))
        + 1 / sqrt(SIZE * density)
    )


@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize("density", [0.1, 0.01])
def test_each_fit_on_its_own_distribution(stages: int, density: float) -> None:
    random = np.random.default_rng(stages)
    uniform = random.random(SIZE)
    tail = 0.1
    cases: list[tuple[Sidco, NDArray[np.float64]]] = [
        (SidcoExponential(), -np.log(1 - uniform)),
        (SidcoPareto(), ((1 - uniform) ** -tail - 1) / tail),
    ]
    if stages == 1:
        cases.append((SidcoGamma(), random.gamma(0.7, 3.0, SIZE)))
    for selector, magnitudes in cases:
        selector.stages.count = stages
        sent = select(selector, magnitudes, density)
        assert sent.count / round(SIZE * density) == pytest.approx(1, abs=bound(density, stages))


def ratios_on_a_normal_distribution(selector: Sidco, calls: int) -> list[float]:
    magnitudes = np.abs(np.random.default_rng(0).standard_normal(SIZE))
    return [select(selector, magnitudes, 0.001).count / round(SIZE * 0.001) for _ in range(calls)]


def test_stages_correct_a_fit_that_is_wrong() -> None:
    """One stage sends next to nothing; the tail's excess fits better."""
    selector = SidcoExponential()
    ratios = ratios_on_a_normal_distribution(selector, 21)
    assert ratios[0] < 0.1
    assert 0.8 < ratios[-1] < 1.2
    assert selector.stages.count > 1


def test_stages_may_swing() -> None:
    """One is too few and two are too many: the rule knows nothing between."""
    ratios = ratios_on_a_normal_distribution(SidcoGamma(), 20)
    assert max(ratios[0:5] + ratios[10:15]) < 0.1
    assert 1.2 < min(ratios[5:10] + ratios[15:20]) < 2


def test_one_stage_that_sends_too_much_stays_one() -> None:
    selector = SidcoPareto()
    assert min(ratios_on_a_normal_distribution(selector, 12)) > 3
    assert selector.stages.count == 1


def test_zeros_do_not_spoil_the_gamma_fit() -> None:
    magnitudes = np.random.default_rng(0).gamma(0.7, 3.0, SIZE)
    magnitudes[::2] = 0.0
    sent = select(SidcoGamma(), magnitudes, 0.01)
    assert sent.count / round(SIZE * 0.01) == pytest.approx(1, abs=bound(0.01, 1))
    assert sent.selection is not None
    assert sent.selection.passes == 3  # the greatest magnitude, moments, choice


@given(share=st.floats(1e-6, 0.999), stages=st.integers(1, 20))
def test_shares_of_the_stages(share: float, stages: int) -> None:
    stages = min(stages, most_stages(share))
    parts = stage_shares(share, stages)
    assert len(parts) == stages
    assert prod(parts) == pytest.approx(share)
    assert all(0 < part < 1 for part in parts)
    if stages > 1 and share < 0.25:
        assert parts[0] == 0.25
    assert len({round(part, 12) for part in parts[1:]}) <= 1


def test_most_stages() -> None:
    assert [most_stages(share) for share in (0.9, 0.5, 0.29, 0.25, 0.1, 0.01, 0.001)] == [
        1, 1, 2, 2, 4, 7, 10,
    ]  # fmt: skip


def test_stages_follow_what_was_achieved() -> None:
    stages = Stages()

    def after(*achieved: float) -> int:
        for one in achieved:
            stages.adapt(one, 0.01)
        return stages.count

    assert after(0.1, 0.1, 0.1, 0.1) == 1, "five calls make one decision"
    assert after(0.1) == 2
    assert after(0.79, 0.79, 0.79, 0.79, 0.79) == 3
    assert after(0.81, 1.19, 1.0, 0.9, 1.1) == 3
    assert after(0.0, 0.0, 0.0, 0.0, 4.1) == 3, "their mean decides"
    assert after(1.3, 1.3, 1.3, 1.3, 1.3) == 2
    assert after(*[9.0] * 20) == 1
    assert after(*[0.0] * 100) == 7, "no more than log2 of 1/density"
    for _ in range(5):
        stages.adapt(1.0, 0.1)
    assert stages.count == 4, "which may change"


def test_state_of_stages() -> None:
    one, other = Stages(), Stages()
    for achieved in (0.1, 0.1, 0.1, 0.1, 0.1, 0.5, 0.7):
        one.adapt(achieved, 0.01)
    other.load(one.state())
    assert other.state() == one.state() == {"stages": 2, "calls": 2, "achieved": 1.2}


def test_no_more_stages_once_few_are_left() -> None:
    """Of log-normal magnitudes the first stage leaves an eighth, not a quarter: others would leave fewer."""
    magnitudes = np.exp(2 * np.random.default_rng(0).standard_normal(SIZE))
    selector = SidcoExponential()
    selector.stages.count = 5
    sent = select(selector, magnitudes, 0.2)
    assert sent.selection is not None
    assert sent.selection.threshold == pytest.approx(-np.log(0.25) * magnitudes.mean())
    assert selector.state()["achieved"] == sent.count / round(SIZE * 0.2) < 0.7


def test_a_survivor_beyond_every_fit() -> None:
    """A threshold above all elements leaves the largest one."""
    magnitudes = np.full(5000, exp(-3.0))
    magnitudes[17] *= 1.5
    sent = select(SidcoExponential(), magnitudes, 0.001)
    assert sent.indices is not None
    assert sent.indices.tolist() == [17]
