"""The fit report against closed forms and against the distance's definition."""

from __future__ import annotations

from math import log, pi, sqrt
from random import Random

import pytest
import torch
from scipy.stats import wasserstein_distance

from testbed.compress.gradient_stats import SAMPLE, report

torch.set_num_threads(1)


def grid(count: int) -> torch.Tensor:
    return (torch.arange(count, dtype=torch.float64) + 0.5) / count


def laplace(count: int, b: float) -> torch.Tensor:
    away = grid(count) - 0.5
    return (-b * away.sign() * (-2 * away.abs()).log1p()).float()


def test_a_laplace_distribution_fits_itself() -> None:
    found = report(laplace(20_000, 3.0), Random(0))
    assert found.b == pytest.approx(3.0, rel=1e-3)
    assert found.sigma == pytest.approx(3.0 * sqrt(2), rel=1e-2)
    assert found.laplace < 2e-3
    assert found.normal > 0.1
    assert found.sample == 20_000


def test_a_normal_distribution_fits_itself() -> None:
    flat = (torch.special.ndtri(grid(20_000)) * 2.0).float()
    found = report(flat, Random(0))
    assert found.sigma == pytest.approx(2.0, rel=1e-3)
    assert found.b == pytest.approx(2.0 * sqrt(2 / pi), rel=1e-3)
    assert found.normal < 1e-3
    assert found.laplace > 0.1


def test_two_points() -> None:
    """±1: b = σ = 1; W₁ to Laplace(0, 1) is E| |x| − 1 | over exp(−x), which is 2/e."""
    flat = torch.ones(30_000)
    flat[::2] = -1
    found = report(flat, Random(0))
    assert found.w1_laplace == pytest.approx(2 / 2.718281828, rel=1e-3)
    density, above = 2.718281828**-0.5 / sqrt(2 * pi), 0.158655254  # of N(0, 1) at 1, and P(X > 1)
    beyond = 2 * (density - above)  # E max(|X| − 1, 0)
    assert found.w1_normal == pytest.approx(2 * beyond + 1 - sqrt(2 / pi), rel=1e-3)


def test_it_is_the_wasserstein_distance() -> None:
    generator = torch.Generator().manual_seed(3)
    flat = torch.rand(5_000, generator=generator) - 0.2
    found = report(flat, Random(0))
    fine = laplace(400_000, found.b)
    assert found.w1_laplace == pytest.approx(
        wasserstein_distance(flat.numpy(), fine.numpy()), rel=2e-3
    )


def test_scale_and_sum() -> None:
    flat = torch.randn(4_000, generator=torch.Generator().manual_seed(1))
    one, other = report(flat, Random(0)), report(flat * 1024, Random(0))
    assert other.w1_laplace == pytest.approx(1024 * one.w1_laplace)
    assert other.laplace == pytest.approx(one.laplace)
    assert report(flat, Random(0), float(flat.abs().double().sum())) == one
    assert report(flat, Random(0), 2 * float(flat.abs().double().sum())).b == 2 * one.b


def test_long_vectors_are_sampled_by_the_generator_given() -> None:
    flat = torch.cat([laplace(200_000, 1.0), torch.zeros(100)])
    found = report(flat, Random(5))
    assert found.sample == SAMPLE
    assert found == report(flat, Random(5))
    assert found != report(flat, Random(6))
    assert found.laplace < 0.02


def test_zeros_and_one_element() -> None:
    zeros = report(torch.zeros(100), Random(0))
    assert (zeros.b, zeros.w1_laplace, zeros.laplace, zeros.normal) == (0.0, 0.0, 0.0, 0.0)
    one = report(torch.tensor([2.0]), Random(0))
    assert one.b == one.sigma == one.w1_laplace == one.w1_normal == 2.0
    assert one.to_json()["laplace"] == 1.0
    assert log(one.to_json()["normal"]) == 0.0
