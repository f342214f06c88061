"""Vectors for the tests of selectors that estimate."""

from __future__ import annotations

import torch

from testbed.compress import kernels
from testbed.compress.base import AccumulatedGradient

SIZE = 1 << 17


def compensated(vector: torch.Tensor) -> AccumulatedGradient:
    seen = kernels.of(vector).measure(vector)
    return AccumulatedGradient(vector, seen.sum_abs, seen.max_abs)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def signs(size: int, seed: int) -> torch.Tensor:
    return torch.randint(0, 2, (size,), generator=generator(seed)).float() * 2 - 1


def laplace(size: int = SIZE, seed: int = 0) -> torch.Tensor:
    return torch.empty(size).exponential_(generator=generator(seed)) * signs(size, seed + 1)


def normal(size: int = SIZE, seed: int = 0) -> torch.Tensor:
    return torch.randn(size, generator=generator(seed))


def heavy(size: int = SIZE, seed: int = 0) -> torch.Tensor:
    """Log-normal magnitudes: the tail is far heavier than what any of the fits assumes."""
    return normal(size, seed) * torch.exp(2 * normal(size, seed + 1))


def spiked(size: int = SIZE) -> torch.Tensor:
    """One element is so large that the mean lies above all others."""
    vector = normal(size)
    vector[size // 3] = 1e30
    return vector


def mostly_zero(size: int = SIZE) -> torch.Tensor:
    vector = torch.zeros(size)
    vector[:: size // 50] = normal(len(range(0, size, size // 50)))
    return vector


def largest(vector: torch.Tensor, count: int) -> list[int]:
    """Largest magnitude first, of equal ones the first; ascending."""
    order = vector.abs().sort(descending=True, stable=True).indices[:count]
    return sorted(order.tolist())
