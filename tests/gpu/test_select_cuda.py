"""Selectors on a CUDA device choose what they choose on the host."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest
import torch

from testbed.compress import kernels
from testbed.compress.base import AccumulatedGradient, Selector, Sparse
from testbed.compress.gradient_stats import report
from testbed.compress.selectors.laplace import Laplace
from testbed.compress.selectors.randk import RandK
from testbed.compress.selectors.threshold import Threshold
from testbed.compress.selectors.topk import Radix

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no CUDA device here"),
]


@pytest.fixture(autouse=True)
def deterministic() -> Iterator[None]:
    """As in a training: an operation that may differ from run to run is an error."""
    torch.set_deterministic_debug_mode("error")
    yield
    torch.set_deterministic_debug_mode("default")


def vector(step: int, levels: int | None = None) -> torch.Tensor:
    """Layers of different scale; ``levels``: rounded, so that there are ties."""
    normal = torch.randn(700_000, generator=torch.Generator().manual_seed(step))
    flat = torch.cat([part * 3.0**i for i, part in enumerate(normal.chunk(5))])
    return flat if levels is None else (flat * levels).round() / levels


def selected(selector: Selector[Any], flat: torch.Tensor, density: float, rng: Random) -> Sparse:
    seen = kernels.of(flat).measure(flat)
    return selector.select(AccumulatedGradient(flat, seen.sum_abs, seen.max_abs), density, rng)


@pytest.mark.parametrize("levels", [None, 1])
@pytest.mark.parametrize("density", [0.3, 0.01, 0.0001])
@pytest.mark.parametrize("make", [Radix, RandK, lambda: Threshold(at=20.0)])
def test_same_elements_as_on_the_host(
    make: Callable[[], Selector[Any]], density: float, levels: int | None
) -> None:
    here, there = (make(), Random(5)), (make(), Random(5))
    for step in range(3):
        flat = vector(step, levels)
        host = selected(here[0], flat, density, here[1])
        device = selected(there[0], flat.cuda(), density, there[1])
        assert host.indices is not None
        assert device.indices is not None
        assert device.indices.device == device.values.device == flat.cuda().device
        assert torch.equal(device.indices.cpu(), host.indices)
        assert torch.equal(device.values.cpu(), host.values)
        assert (device.seed, device.selection) == (host.seed, host.selection)


@pytest.mark.parametrize("density", [0.1, 0.01, 0.001])
def test_laplace_hits_its_mark(density: float) -> None:
    """Statistics differ in their last bits between devices: not the same set, but the right number."""
    selector = Laplace(fit_every=1)
    for step in range(10):
        flat = vector(step).cuda()
        sent = selected(selector, flat, density, Random(0))
        assert sent.indices is not None
        assert abs(sent.count - density * 700_000) <= 0.05 * density * 700_000
        assert torch.equal(sent.values, flat[sent.indices])
        left = flat.abs()
        left[sent.indices] = 0
        assert float(left.max()) <= float(sent.values.abs().min())
        assert selector.fit is not None
        assert selector.fit.laplace == pytest.approx(
            report(flat.cpu(), Random(0)).laplace, rel=1e-5
        )
