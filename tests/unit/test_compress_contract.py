"""What every selector with every memory must hold to, whoever wrote it."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.compress.base import memories, selectors
from testbed.compress.compressor import Compressor
from testbed.compress.finite import check_finite
from testbed.compress.wire import decode, encode, payload_bytes
from testbed.errors import GradientError, InputError, WireError

torch.set_num_threads(1)
PAIRS = list(product(selectors.names(), memories.names()))
pairs = pytest.mark.parametrize(("selector", "memory"), PAIRS)


def random_vector(size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def received(compressor: Compressor, payload: bytearray, size: int) -> torch.Tensor:
    out = torch.full((size,), 7.0)
    compressor.decompress(payload, out)
    return out


@pairs
@pytest.mark.parametrize("size", [1, 2, 1000])
@pytest.mark.parametrize("density", [1e-6, 0.1, 0.5, 1.0])
def test_shapes_types_and_length(selector: str, memory: str, size: int, density: float) -> None:
    compressor = Compressor.named(selector, memory)
    gradient = random_vector(size)
    before = gradient.clone()
    sent, payload = compressor.compress("all", gradient, density, Random(0))
    assert torch.equal(gradient, before), "the gradient was changed"
    assert sent.size == size
    assert 1 <= sent.count <= size
    assert sent.values.dtype == torch.float32
    if sent.indices is not None:
        assert sent.indices.dtype == torch.int64
        assert bool((sent.indices.diff() > 0).all())
    assert len(payload) == payload_bytes(size, sent.count)
    assert decode(payload).size == size


@pairs
def test_zeros_stay_zeros(selector: str, memory: str) -> None:
    compressor = Compressor.named(selector, memory)
    _, payload = compressor.compress("all", torch.zeros(100), 0.1, Random(0))
    assert torch.equal(received(compressor, payload, 100), torch.zeros(100))


@pairs
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_not_a_number_is_refused_by_name(selector: str, memory: str, bad: float) -> None:
    parts = {"all": [("conv.weight", 0), ("conv.bias", 50), ("head.weight", 60)]}
    compressor = Compressor(selectors.get(selector)(), memories.get(memory)(), parts)
    gradient = random_vector(100)
    gradient[55] = bad
    with pytest.raises(GradientError, match=r"'conv\.bias'.*element 5 "):
        compressor.compress("all", gradient, 0.1, Random(0))
    clean = random_vector(100)
    _, payload = compressor.compress("all", clean, 1.0, Random(0))
    assert torch.equal(received(compressor, payload, 100), clean), "the memory took in the bad one"


@pairs
def test_strided_input(selector: str, memory: str) -> None:
    strided = random_vector(200)[::2]
    assert not strided.is_contiguous()
    payloads = [
        Compressor.named(selector, memory).compress("all", flat, 0.1, Random(0))[1]
        for flat in (strided, strided.clone())
    ]
    assert payloads[0] == payloads[1]


@pairs
def test_same_input_same_bytes(selector: str, memory: str) -> None:
    def messages() -> list[bytes]:
        compressor, rng = Compressor.named(selector, memory), Random(5)
        return [
            bytes(compressor.compress("all", random_vector(300, step), 0.1, rng)[1])
            for step in range(4)
        ]

    assert messages() == messages()


@pytest.mark.parametrize("selector", selectors.names())
@settings(max_examples=50, deadline=None)
@given(
    gradients=st.lists(
        st.lists(st.integers(-1000, 1000), min_size=30, max_size=30), min_size=1, max_size=8
    ),
    densities=st.lists(st.floats(0.01, 1.0), min_size=8, max_size=8),
)
def test_feedback_loses_nothing(
    selector: str, gradients: list[list[int]], densities: list[float]
) -> None:
    """Σ sent + residual = Σ gradients; small whole numbers are exact in float32."""
    compressor = Compressor.named(selector, "feedback")
    sent, whole = torch.zeros(30), torch.zeros(30)
    for gradient, density in zip(gradients, densities, strict=False):
        flat = torch.tensor(gradient, dtype=torch.float32)
        _, payload = compressor.compress("all", flat, density, Random(0))
        sent += received(compressor, payload, 30)
        whole += flat
        assert torch.equal(sent + compressor.memory.state()["all"], whole)


@pairs
@pytest.mark.parametrize("density", [0.0, -0.1, 1.01, float("nan"), float("inf")])
def test_density_outside_its_range(selector: str, memory: str, density: float) -> None:
    with pytest.raises(InputError, match=r"outside \(0, 1\]"):
        Compressor.named(selector, memory).compress("all", torch.ones(3), density, Random(0))


@pairs
@pytest.mark.parametrize("bad", [torch.ones(2, 2), torch.ones(3, dtype=torch.float64)])
def test_only_flat_float32(selector: str, memory: str, bad: torch.Tensor) -> None:
    with pytest.raises(GradientError, match=r"'all'.*flat float32"):
        Compressor.named(selector, memory).compress("all", bad, 0.5, Random(0))


@pairs
def test_payload_of_another_size(selector: str, memory: str) -> None:
    compressor = Compressor.named(selector, memory)
    _, payload = compressor.compress("all", torch.ones(5), 0.5, Random(0))
    with pytest.raises(WireError, match="5 elements where 6"):
        compressor.decompress(payload, torch.zeros(6))


def test_overflowing_sum_of_finite_elements_is_accepted() -> None:
    check_finite(torch.full((4,), 3e38), [("weight", 0)])


def test_encode_needs_no_memory_of_its_own() -> None:
    compressor = Compressor.named("topk", "none")
    sent, payload = compressor.compress("all", random_vector(1000), 0.05, Random(0))
    assert encode(sent) == payload
