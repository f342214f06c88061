"""Every operation on a vector against its plain PyTorch version, on whatever device the vector is."""

from __future__ import annotations

from dataclasses import astuple
from math import isfinite

import pytest
import torch
from torch import Tensor

from testbed.compress.kernels.base import GradientStatistics, Workspace
from testbed.compress.kernels.compilation import DIGITS, MAGNITUDE
from testbed.compress.kernels.torch_ops import Operations

REFERENCE = Operations()


def vector(size: int, device: str = "cpu", seed: int = 1) -> Tensor:
    """Normal, with a few zeros and equal elements among them."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, generator=generator)
    x[::7] = x[::7].round()
    return x.to(device)


def special(size: int, device: str = "cpu") -> Tensor:
    """Magnitudes from the least to the greatest, of both signs."""
    held = [0.0, -0.0, 1e-45, -1e-45, 1.1754942e-38, -1.17549435e-38, 1.0, -1.0, 3.4028235e38]
    return torch.tensor((held * (size // len(held) + 1))[:size], device=device)


def check(operations: Operations, x: Tensor, threshold: float) -> None:
    """Everything that only reads; ``x``: float32 (n,), any bits."""
    check_statistics(operations.measure(x), REFERENCE.measure(x))
    assert operations.count_above(x, threshold) == REFERENCE.count_above(x, threshold)
    chosen = operations.select_above(x, threshold, Workspace())
    equal(chosen, REFERENCE.select_above(x, threshold, Workspace()))
    prefix = 0
    for digit, (_, width) in enumerate(DIGITS):
        counts = operations.digit_counts(x, digit, prefix)
        assert torch.equal(counts, REFERENCE.digit_counts(x, digit, prefix))
        assert counts.dtype == torch.int64 and counts.device.type == "cpu"
        prefix = (prefix << width) + int(counts.argmax())  # where most are


def check_moments(operations: Operations, x: Tensor, threshold: float) -> None:
    """``x``: finite."""
    found, wanted = operations.moments(x, threshold), REFERENCE.moments(x, threshold)
    assert (found.count, found.nonzero) == (wanted.count, wanted.nonzero)
    scale = float(x.abs().clamp(1e-45).double().log().abs().sum())  # logarithms cancel each other
    assert found.sum_abs == pytest.approx(wanted.sum_abs, rel=1e-12)
    assert found.sum_squares == pytest.approx(wanted.sum_squares, rel=1e-12)
    assert found.sum_log == pytest.approx(wanted.sum_log, rel=1e-12, abs=1e-12 * scale + 1e-300)


def check_add(operations: Operations, x: Tensor, y: Tensor) -> None:
    """The sum, in a third place and in the place of either."""
    wanted = x + y
    for first, second, out in _places(x, y):
        seen = operations.add(first, second, out)
        same_bits(out, wanted)
        check_statistics(seen, REFERENCE.measure(wanted))


def check_sparse(operations: Operations, x: Tensor, indices: Tensor) -> None:
    """A few elements more, and less again."""
    values = vector(indices.numel(), str(x.device), seed=2)
    for name in ("add_at", "subtract_at"):
        found, wanted = x.clone(), x.clone()
        getattr(operations, name)(found, indices, values)
        getattr(REFERENCE, name)(wanted, indices, values)
        same_bits(found, wanted)


def check_everything(operations: Operations, size: int, threshold: float, device: str) -> None:
    """All operations on a vector that begins three elements into its memory."""
    x = vector(size + 3, device)[3:]
    y = special(size + 1, device)[1:]
    check(operations, x, threshold)
    check(operations, y, threshold)
    check_moments(operations, x, threshold)
    check_add(operations, x, y)
    check_sparse(operations, x, torch.arange(0, size, 3, device=device))


def check_growing(operations: Operations, size: int, device: str) -> None:
    """One workspace holds few elements, then all, then few."""
    x, space = vector(size, device), Workspace()
    for threshold in (3.0, 0.0, 0.5, 2.0):
        equal(
            operations.select_above(x, threshold, space),
            REFERENCE.select_above(x, threshold, space),
        )


def check_uneven(operations: Operations, size: int, device: str) -> None:
    """Most of what is chosen lies in a hundredth of a vector, in the same workspace twice."""
    x, space = vector(size, device) * 1e-3, Workspace()
    x[size // 3 : size // 3 + size // 100] *= 1e3
    for _ in range(2):
        equal(operations.select_above(x, 0.1, space), REFERENCE.select_above(x, 0.1, space))


def check_digits(operations: Operations, x: Tensor) -> None:
    """Counts at each digit, under prefixes that many, few and no elements have."""
    for digit, (shift, width) in enumerate(DIGITS):
        leading = (x.view(torch.int32) & MAGNITUDE) >> shift + width
        for prefix in {
            int(leading[0]),
            int(leading.max()),
            int(leading.sort().values[-1 - x.numel() // 4]),
            1,
        }:
            wanted = REFERENCE.digit_counts(x, digit, prefix if digit else 0)
            assert torch.equal(operations.digit_counts(x, digit, prefix if digit else 0), wanted)


def check_not_finite(operations: Operations, device: str) -> None:
    """One element among many is seen in the sum, and is counted as the reference counts it."""
    for wrong in (torch.nan, torch.inf, -torch.inf):
        for place in (0, 4095, 9_999):
            x = vector(10_000, device)
            x[place] = wrong
            zero, out = torch.zeros_like(x), torch.empty_like(x)
            for seen in (operations.measure(x), operations.add(x, zero, out)):
                assert not isfinite(seen.sum_abs) and not isfinite(seen.max_abs)
            check(operations, x, 0.0)
            check(operations, x, torch.inf)


def check_refused(operations: Operations, device: str) -> None:
    """Indices outside change nothing beyond the vector; other tensors are not read."""
    room = torch.zeros(30, device=device)
    x = room[10:20]
    for wrong in (-1, 10, 2**40, -(2**62)):
        indices = torch.tensor(sorted([2, wrong]), device=device)
        for name in ("add_at", "subtract_at"):
            with pytest.raises(IndexError, match="outside a vector of 10"):
                getattr(operations, name)(x, indices, torch.ones(2, device=device))
    assert not room[:10].any() and not room[20:].any()
    for other in (x.double(), x[::2], x.view(2, 5)):
        with pytest.raises(TypeError, match="contiguous float32"):
            operations.measure(other)
    with pytest.raises(ValueError, match="9, 10"):
        operations.add(x, x[:9], x)
    with pytest.raises(ValueError, match="2 values"):
        operations.add_at(x, torch.tensor([1], device=device), torch.ones(2, device=device))


def check_statistics(found: GradientStatistics, wanted: GradientStatistics) -> None:
    assert found.max_abs == pytest.approx(wanted.max_abs, rel=0, nan_ok=True)
    assert found.sum_abs == pytest.approx(wanted.sum_abs, rel=1e-12, nan_ok=True)
    assert all(isinstance(number, float) for number in astuple(found))


def equal(found: tuple[Tensor, ...] | list[Tensor], wanted: tuple[Tensor, Tensor]) -> None:
    indices, values = found
    assert indices.dtype == torch.int64 and values.dtype == torch.float32
    assert torch.equal(indices, wanted[0])
    same_bits(values, wanted[1])


def same_bits(found: Tensor, wanted: Tensor) -> None:
    """But for NaN, of which any is as good as any other."""
    both_nan = found.isnan() & wanted.isnan()
    assert torch.equal(
        found.masked_fill(both_nan, 0).view(torch.int32),
        wanted.masked_fill(both_nan, 0).view(torch.int32),
    )


def _places(x: Tensor, y: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
    own, other = x.clone(), y.clone()
    return [(x, y, torch.full_like(x, 7.0)), (own, y, own), (x, other, other)]
