"""What theory promises of compression: nothing lost, contraction, no bias."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import numpy as np
import pytest
import torch
from contract_rig import (
    random_vector,
    received,
    recipe,
)
from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.compress.base import codings, selectors
from testbed.compress.compressor import Compressor
from testbed.compress.layout import Layout
from testbed.compress.payload import decode

EXACT = selectors.names()


@pytest.mark.parametrize("selector", EXACT)
@settings(max_examples=examples(25), deadline=None)
@given(
    gradients=st.lists(
        st.lists(st.integers(-1000, 1000), min_size=30, max_size=30), min_size=1, max_size=6
    ),
    densities=st.lists(st.floats(0.01, 1.0), min_size=6, max_size=6),
)
def test_exact_values_lose_nothing_at_all(
    selector: str, gradients: list[list[int]], densities: list[float]
) -> None:
    """Small whole numbers are exact in float32."""
    compressor = Compressor(recipe(selector, "fp32", "feedback"))
    sent, whole = torch.zeros(30), torch.zeros(30)
    for gradient, density in zip(gradients, densities, strict=False):
        flat = torch.tensor(gradient, dtype=torch.float32)
        packed = compressor.compress("all", flat, density, Random(0))
        sent += received(compressor, packed)
        whole += flat
        assert torch.equal(sent + compressor.state()["memory"]["all"], whole)


AT_RANDOM = ("randk",)
"""Selectors that may send nothing but zeros."""


@pytest.mark.parametrize("selector", selectors.names())
@pytest.mark.parametrize("draw", ["normal", "heavy", "equal", "one"])
def test_selection_is_a_contraction(selector: str, draw: str) -> None:
    """‖x − C(x)‖ < ‖x‖ (Stich 2018): with exact values, by exactly what is sent."""
    vector = DRAWS[draw](2000)
    for density in (0.001, 0.01, 0.1, 0.9):
        compressor = Compressor(recipe(selector, "fp32", "none"))
        packed = compressor.compress("all", vector, density, Random(4))
        read = received(compressor, packed)
        chosen = decode(packed.payload, 2000)
        if chosen.indices is not None:
            assert torch.equal(read[chosen.indices], vector[chosen.indices])
        left, all_ = (vector - read).double().norm(), vector.double().norm()
        assert left <= all_
        if packed.count and selector not in AT_RANDOM:
            assert left < all_


DRAWS: dict[str, Callable[[int], torch.Tensor]] = {
    "normal": lambda size: random_vector(size, 1),
    "heavy": lambda size: random_vector(size, 2) ** 5,
    "equal": lambda size: torch.full((size,), -0.75),
    "one": lambda size: torch.nn.functional.one_hot(torch.tensor(size // 3), size).float() * 3e-5,
}


UNBIASED = "E C(x) = x"


CONTRACTION = "‖x − C(x)‖ ≤ ‖x‖"


KINDS = {
    "fp32": CONTRACTION,
    "fp16": CONTRACTION,
    "bf16": CONTRACTION,
    "int8": CONTRACTION,
    "maxmin": CONTRACTION,
    "onebit": CONTRACTION,
    "sign": CONTRACTION,
    "lowrank": CONTRACTION,
    "thresholds": CONTRACTION,
    "ternary": UNBIASED,
    "qsgd": UNBIASED,
    "qsgd-elias": UNBIASED,
    "natural": UNBIASED,
}
"""What is promised of a coding with its default options. A coding that is not here is tested as both."""


def written(values: str, vector: torch.Tensor, rng: Random, compressor: Compressor) -> np.ndarray:  # type: ignore[type-arg]
    packed = compressor.compress("all", vector, 1.0, rng)
    return received(compressor, packed).double().numpy()


@pytest.mark.parametrize("values", [v for v in codings if KINDS.get(v) != UNBIASED])
@pytest.mark.parametrize("draw", list(DRAWS))
def test_codings_that_are_contractions(values: str, draw: str) -> None:
    vector = DRAWS[draw](1000)
    compressor = Compressor(recipe("dense", values, "none"), {"all": Layout.of([("w", (40, 25))])})
    for seed in range(3):
        left = vector.double().numpy() - written(values, vector, Random(seed), compressor)
        assert np.linalg.norm(left) <= vector.double().norm() * (1 + 1e-6)


@pytest.mark.parametrize("values", [v for v in codings if KINDS.get(v) != CONTRACTION])
def test_codings_that_are_unbiased(values: str) -> None:
    """The mean of many messages is the gradient, within six standard errors for every element."""
    vector = torch.rand(60, generator=torch.Generator().manual_seed(8)) * 2 - 1
    vector[:3] = torch.tensor([0.0, 1.0, -1.0])
    compressor, rng = Compressor(recipe("dense", values, "none")), Random(11)
    drawn = np.stack([written(values, vector, rng, compressor) for _ in range(3000)])
    error = np.abs(drawn.mean(0) - vector.numpy())
    assert (error <= 6 * drawn.std(0) / np.sqrt(len(drawn)) + 1e-7).all()
    assert drawn.std(0).max() > 0 or KINDS.get(values) is None
