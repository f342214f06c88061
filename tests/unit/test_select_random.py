"""Random selection, and the indices that follow from a seed."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
import torch
from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from random_reference import indices as reference

from testbed.compress import indices as seeded
from testbed.compress.base import AccumulatedGradient
from testbed.compress.payload import decode, encode
from testbed.compress.selectors.randk import RandK
from testbed.errors import InputError

torch.set_num_threads(1)
SEEDS = st.integers(0, 2**64 - 1)


def given_of(size: int) -> AccumulatedGradient:
    flat = torch.randn(size, generator=torch.Generator().manual_seed(1))
    return AccumulatedGradient(flat, float(flat.abs().sum()), float(flat.abs().max()))


@settings(max_examples=examples(60), deadline=None)
@given(size=st.integers(0, 20_000), share=st.floats(0, 1), seed=SEEDS)
def test_different_ascending_and_in_range(size: int, share: float, seed: int) -> None:
    count = round(share * size)
    found = seeded.indices(size, count, seed)
    assert found.dtype == np.int64
    assert found.size == count
    assert np.all(np.diff(found) > 0)
    assert not count or (found[0] >= 0 and found[-1] < size)
    if count < size:
        assert np.array_equal(found, reference(size, count, seed))


@pytest.mark.parametrize("size", [4096, 4097, 8191, 8192, 8193, 10**6, 2**31 + 11, 2**40])
def test_loops_do_what_numpy_does(size: int) -> None:
    out = np.empty(500, np.int64)
    assert seeded.indices(size, 500, 2**64 - 1, out) is out
    assert np.array_equal(out, reference(size, 500, 2**64 - 1))


def test_they_are_a_part_of_the_wire_format() -> None:
    """Worked out once; a change would make old records unreadable."""
    assert seeded.indices(10, 4, 1).tolist() == SMALL
    assert seeded.indices(1_000_000, 5, 12345678901234567890).tolist() == LARGE


SMALL = [3, 4, 7, 8]
LARGE = [496139, 614578, 784195, 812457, 901954]


def chi_square(counts: np.ndarray, expected: float) -> float:
    return float(((counts - expected) ** 2).sum() / expected)


def limit(freedom: int) -> float:
    """The chi-square distribution's 99.99 % quantile (Wilson and Hilferty 1931)."""
    return float(freedom * (1 - 2 / (9 * freedom) + 3.719 * (2 / (9 * freedom)) ** 0.5) ** 3)


@pytest.mark.parametrize(("size", "count", "draws"), [(40, 10, 4000), (5000, 100, 8000)])
def test_every_element_is_as_likely(size: int, count: int, draws: int) -> None:
    """Chi-square at the level of 0.01 %; without replacement its mean is (n − k) instead of n − 1."""
    counts = np.zeros(size)
    for seed in range(draws):
        counts[seeded.indices(size, count, seed * 0x1234_5678_9ABC_DEF1 % 2**64)] += 1
    statistic = chi_square(counts, draws * count / size) * (size - 1) / (size - count)
    assert statistic < limit(size - 1)


def test_pairs_are_as_likely() -> None:
    """Of 4,200 elements, in 42 groups: how often two chosen elements are of two given groups."""
    groups, draws = 42, 30_000
    counts = np.zeros((groups, groups))
    for seed in range(draws):
        first, second = seeded.indices(4200, 2, seed) // 100
        counts[first, second] += 1
    upper = counts[np.triu_indices(groups, 1)]
    pairs = 4200 * 4199 / 2
    assert chi_square(upper, draws * 100 * 100 / pairs) < limit(upper.size - 1)
    assert chi_square(np.diag(counts), draws * 4950 / pairs) < limit(groups - 1)


def test_consecutive_seeds_have_nothing_in_common() -> None:
    first, second = (set(seeded.indices(100_000, 10_000, seed).tolist()) for seed in (1, 2))
    assert 850 <= len(first & second) <= 1150  # 1000, standard deviation 28


def test_more_than_there_are_is_refused() -> None:
    with pytest.raises(ValueError, match="4 of 3"):
        seeded.indices(3, 4, 1)


@pytest.mark.parametrize(("size", "density"), [(1, 0.5), (50, 0.1), (10_000, 0.03), (10_000, 1.0)])
@pytest.mark.parametrize("scale", [False, True])
def test_what_is_sent(size: int, density: float, scale: bool) -> None:
    given, selector, rng = given_of(size), RandK(scale=scale), Random(5)
    for _ in range(2):
        sent = selector.select(given, density, rng)
        assert sent.count == max(1, round(density * size))
        if sent.count == size:
            assert sent.indices is None
            assert torch.equal(sent.values, given.flat)
            continue
        assert sent.indices is not None
        assert sent.seed is not None
        assert sent.indices.tolist() == seeded.indices(size, sent.count, sent.seed).tolist()
        factor = size / sent.count if scale else 1.0
        assert torch.equal(sent.values, given.flat[sent.indices] * factor)
        read = decode(encode(sent).payload, size)
        assert read.seed == (sent.seed if size > 50 else None), "a bitmap is shorter than 8 bytes"
        assert read.indices is not None
        assert torch.equal(read.indices, sent.indices)


def test_every_step_has_other_elements_and_every_run_the_same() -> None:
    given = given_of(10_000)

    def chosen() -> list[list[int]]:
        selector, rng = RandK(), Random(3)
        found = [selector.select(given, 0.01, rng).indices for _ in range(3)]
        return [] if None in found else [indices.tolist() for indices in found]

    # the buffers are used again: taken out one by one
    selector, rng = RandK(), Random(3)
    steps = [selector.select(given, 0.01, rng).indices.tolist() for _ in range(3)]  # type: ignore[union-attr]
    assert len({tuple(step) for step in steps}) == 3
    assert chosen()[-1] == steps[-1]


def test_scaled_messages_are_unbiased() -> None:
    """Mean of 4,000 messages, each element within 5 standard errors of its value."""
    given, selector, rng = given_of(60), RandK(scale=True), Random(1)
    total, draws = torch.zeros(60, dtype=torch.float64), 4000
    for _ in range(draws):
        sent = selector.select(given, 0.2, rng)
        total[sent.indices] += sent.values.double()
    value = given.flat.double()
    error = value.abs() * (5 - 1) ** 0.5 / draws**0.5  # an element is sent with probability 1/5
    assert bool(((total / draws - value).abs() <= 5 * error).all())


def test_scale_is_a_switch() -> None:
    with pytest.raises(InputError, match=r"scale: .*valid boolean"):
        RandK(scale=2)  # type: ignore[arg-type]
