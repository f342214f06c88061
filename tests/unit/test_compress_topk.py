"""Exact top-k against its definition."""

from __future__ import annotations

from random import Random

import torch
from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.compress.base import AccumulatedGradient, Sparse
from testbed.compress.gradient_stats import element_count
from testbed.compress.selectors.topk import TopK

torch.set_num_threads(1)

vectors = st.lists(st.sampled_from([-3.0, -1.0, -0.0, 0.0, 1.0, 2.0, 3.0]), min_size=1, max_size=60)


def select(vector: torch.Tensor, density: float) -> Sparse:
    magnitudes = vector.abs()
    given = AccumulatedGradient(vector, float(magnitudes.double().sum()), float(magnitudes.max()))
    return TopK().select(given, density, Random(0))


def by_definition(vector: list[float], count: int) -> list[int]:
    """Largest magnitude first, of equal ones the first; ascending."""
    order = sorted(range(len(vector)), key=lambda index: (-abs(vector[index]), index))
    return sorted(order[:count])


@settings(max_examples=examples(200), deadline=None)
@given(vector=vectors, density=st.floats(0.001, 1.0))
def test_selects_the_largest_and_of_equal_ones_the_first(
    vector: list[float], density: float
) -> None:
    sent = select(torch.tensor(vector), density)
    count = max(1, round(density * len(vector)))
    assert sent.count == count
    indices = list(range(len(vector))) if sent.indices is None else sent.indices.tolist()
    assert indices == by_definition(vector, count)
    assert sent.values.tolist() == [vector[index] for index in indices]


@settings(max_examples=examples(100), deadline=None)
@given(seed=st.integers(0, 2**31), size=st.integers(1, 500), density=st.floats(0.001, 1.0))
def test_contraction(seed: int, size: int, density: float) -> None:
    """‖x − C(x)‖² ≤ (1 − m/n)·‖x‖² (Stich 2018), with m the elements sent."""
    vector = torch.randn(size, generator=torch.Generator().manual_seed(seed)).double()
    sent = select(vector.float(), density)
    left = vector.float().double().clone()
    if sent.indices is None:
        left.zero_()
    else:
        left[sent.indices] = 0
    bound = (1 - sent.count / size) * float(vector.float().double().square().sum())
    assert float(left.square().sum()) <= bound * (1 + 1e-12)


def test_threshold_and_ties_are_told() -> None:
    how = select(torch.tensor([3.0, -1.0, 1.0, 0.0, 1.0]), 0.4).selection
    assert how is not None
    assert (how.threshold, how.ties) == (1.0, 2)


def test_counts() -> None:
    assert element_count(1000, 0.15) == 150
    assert element_count(1000, 1e-9) == 1
    assert element_count(1, 0.29) == 1
    assert element_count(7, 1.0) == 7
