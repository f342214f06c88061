"""Selectors that estimate, each by the rules of its own."""

from __future__ import annotations

from math import log, sqrt
from random import Random

import pytest
import torch
from select_rig import (
    SIZE,
    compensated,
    generator,
    heavy,
    laplace,
    normal,
    spiked,
)

from testbed.compress.selectors.dgc import Dgc, prime_at_most
from testbed.compress.selectors.dryden import Dryden
from testbed.compress.selectors.gaussian import Gaussian
from testbed.compress.selectors.mstopk import MsTopK
from testbed.compress.selectors.redsync import Search
from testbed.compress.selectors.sidco import SidcoExponential


@pytest.mark.parametrize("density", [0.25, 0.1, 0.01, 0.001])
def test_dgc_keeps_within_its_bounds(density: float) -> None:
    """Not below 0.8 of the target by a threshold that was lowered, not above 1.3 times."""
    for vector in (laplace(), normal(), heavy(), normal() + 100):
        for seed in range(5):
            sent = Dgc().select(compensated(vector), density, Random(seed))
            assert 0.8 <= sent.count / round(SIZE * density) <= 1.3


def at_sampled_places(high: float, low: float) -> tuple[torch.Tensor, Random]:
    """``high`` wherever DGC with 1 % and that source of numbers looks at a density of 0.1, else ``low``."""
    distance = prime_at_most(SIZE // (SIZE // 100 + 1))
    vector = torch.full((SIZE,), low)
    vector[Random(5).getrandbits(64) % distance :: distance] = high
    return vector, Random(5)


def test_dgc_lowers_a_threshold_that_is_too_high() -> None:
    vector, rng = at_sampled_places(1.0, 0.6)
    sent = Dgc().select(compensated(vector), 0.1, rng)
    assert sent.count == round(0.1 * SIZE)  # three times lower everything reaches it: cut exactly
    assert sent.selection is not None
    # statistics; the sample, twice; 1, 0.8, 0.64 and 0.512 of its threshold; all, to part; what is left
    assert sent.selection.passes == pytest.approx(1 + 2 * 0.0103 + 4 + 2 + 1, abs=0.01)


def test_dgc_gives_up_after_ten_times() -> None:
    vector, rng = at_sampled_places(1.0, 0.1)
    sent = Dgc().select(compensated(vector), 0.1, rng)
    assert set(sent.values.tolist()) == {1.0}
    assert sent.selection is not None
    assert sent.selection.threshold == pytest.approx(0.8**10)


@pytest.mark.parametrize("density", [0.2, 0.01, 0.0005])
def test_mstopk_sends_the_count_and_nearly_the_largest(density: float) -> None:
    count = round(SIZE * density)
    for vector in (laplace(), normal(), heavy(), spiked(), normal().round(decimals=1)):
        for passes in (4, 30):
            sent = MsTopK(passes=passes).select(compensated(vector), density, Random(4))
            assert sent.count == count
            assert sent.selection is not None
            assert sent.selection.passes <= passes + 5
        least = vector.abs().topk(count).values.min()
        assert sent.values.abs().min() >= 0.99 * least  # with 30 passes


@pytest.mark.parametrize("passes", [1, 5, 30])
def test_mstopk_sends_all_from_the_mean_on_where_they_are_too_few(passes: int) -> None:
    for vector in (laplace(), normal()):
        given = compensated(vector)
        large = vector.abs() >= given.sum_abs / vector.numel()
        assert int(large.sum()) < 0.5 * vector.numel()
        sent = MsTopK(passes=passes).select(given, 0.5, Random(4))
        assert sent.count == round(0.5 * vector.numel())
        assert sent.indices is not None
        assert int(large[sent.indices].sum()) == int(large.sum())


def test_mstopk_takes_a_random_run_of_ties() -> None:
    vector = torch.ones(10_000)
    runs = set()
    for seed in range(5):
        indices = MsTopK().select(compensated(vector), 0.01, Random(seed)).indices
        assert indices is not None
        assert indices.tolist() == list(range(int(indices[0]), int(indices[0]) + 100))
        runs.add(int(indices[0]))
    assert len(runs) > 1


def test_mstopk_begins_its_run_at_every_place_that_leaves_room() -> None:
    """Of 8 alike 6 are sent, from the first, the second or the third on; what is larger always is."""
    vector, alike = torch.zeros(2000), (0, 2, 3, 400, 500, 700, 800, 1999)
    vector[[*alike]], vector[[1, 600]] = 1.0, 3.0
    runs = set()
    for seed in range(40):
        indices = MsTopK().select(compensated(vector), 8 / 2000, Random(seed)).indices
        assert indices is not None and {1, 600} < set(indices.tolist()) and len(indices) == 8
        runs.add(tuple(index for index in indices.tolist() if index not in (1, 600)))
    assert runs == {alike[start : start + 6] for start in range(3)}


@pytest.mark.parametrize("density", [0.1, 0.02, 0.01])
def test_redsync_search_finds_one_to_two_times_the_count(density: float) -> None:
    sent = Search(width=0.001).select(compensated(laplace()), density, Random(0))
    assert 1 <= sent.count / round(SIZE * density) <= 2


def test_redsync_search_stops_at_its_width() -> None:
    sent = Search(width=0.2).select(compensated(spiked()), 0.01, Random(0))
    assert sent.count == 1
    assert sent.selection is not None
    # t = 1/2, 1/4, 1/8: the interval is then an eighth wide
    assert sent.selection.passes == 1 + 3 + 1


def test_redsync_search_serves_several_calls() -> None:
    selector = Search(reuse=3)
    passes, thresholds = [], []
    for step, density in enumerate([0.01] * 5 + [0.1]):
        how = selector.select(compensated(laplace(seed=step)), density, Random(0)).selection
        assert how is not None
        passes.append(how.passes)
        thresholds.append(how.threshold)
    assert [one > 2 for one in passes] == [True, False, False, True, False, True]
    assert thresholds[0] == thresholds[1] == thresholds[2] != thresholds[3] == thresholds[4]


def test_gaussian_on_a_normal_distribution() -> None:
    """The threshold's relative error is 1/√(2n); the count's, by the tail's slope, at most z² times it."""
    for density in (0.1, 0.01, 0.001):
        count = round(SIZE * density)
        sent = Gaussian().select(compensated(3 * normal()), density, Random(0))
        off = 5 * (11 / sqrt(2 * SIZE) + 1 / sqrt(count))
        assert sent.count / count == pytest.approx(1, abs=off)
        assert sent.selection is not None
        assert sent.selection.passes == 3


def test_gaussian_is_corrected_at_most_three_times() -> None:
    how = Gaussian().select(compensated(spiked()), 0.01, Random(0)).selection
    assert how is not None
    assert how.threshold == pytest.approx(2.575 * 1e30 / sqrt(SIZE) / 8, rel=0.01)
    assert how.passes == 1 + 1 + 4


@pytest.mark.parametrize("share", [0.5, 0.2, 0.9])
def test_dryden_sends_the_same_proportion_of_both_signs(share: float) -> None:
    """Up to the sample's error: five standard deviations of a proportion in 1 311 elements."""
    chosen = torch.rand(SIZE, generator=generator(8)) < share
    vector = torch.where(chosen, 5.0, -0.2) * laplace().abs()
    positive = float((vector > 0).double().mean())
    for density in (0.1, 0.01):
        sent = Dryden().select(compensated(vector), density, Random(1))
        count = round(SIZE * density)
        assert sent.count == count
        assert float((sent.values > 0).double().mean()) == pytest.approx(
            positive, abs=5 * sqrt(positive * (1 - positive) / 1300)
        )
        for sign in (1, -1):
            own = sign * vector
            here = sent.indices[sent.values * sign > 0]  # type: ignore[index]
            assert here.tolist() == sorted(own.topk(here.numel()).indices.tolist())


def test_dryden_with_one_sign_only() -> None:
    sent = Dryden().select(compensated(-laplace().abs()), 0.01, Random(0))
    assert sent.count == round(SIZE * 0.01)
    assert bool((sent.values < 0).all())


def test_a_sample_sees_more_than_a_few_columns() -> None:
    """Every hundredth element of a matrix of a hundred columns would be one column."""
    vector = torch.zeros(2000, 100)
    vector[:, 0] = 1.0
    vector += 0.01 * normal(200_000).view(2000, 100)
    for seed in range(10):
        sent = Dgc().select(compensated(vector.flatten()), 0.01, Random(seed))
        assert 0.8 <= sent.count / 2000 <= 1.3


def test_primes() -> None:
    assert [prime_at_most(n) for n in (1, 2, 3, 4, 9, 25, 100, 102)] == [1, 2, 3, 3, 7, 23, 97, 101]


def test_no_fit_is_far_off_on_its_own_distribution_in_one_stage() -> None:
    """A mean is off by 1/√n of itself: the count by ln(1/density) times as much, and by 1/√count."""
    for density in (0.1, 0.01):
        count = round(SIZE * density)
        off = 5 * (log(1 / density) / sqrt(SIZE) + 1 / sqrt(count))
        sent = SidcoExponential().select(compensated(laplace()), density, Random(0))
        assert sent.count / count == pytest.approx(1, abs=off)
