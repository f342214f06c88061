"""What top-k leaves out at every density, from a sample, against what it really leaves out."""

from __future__ import annotations

from math import gcd

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from testbed.compress.gradient_stats import CURVE_SAMPLE, element_count, error_curve, stride
from testbed.control.base import LEVELS
from testbed.errors import GradientError, InputError

torch.set_num_threads(1)


def exact(p: torch.Tensor, level: float) -> float:
    """‖p − top_k(p)‖² / ‖p‖², by torch.topk."""
    squares = p.double().square()
    kept = squares.topk(element_count(p.numel(), level)).values.sum()
    return float(1 - kept / squares.sum())


def drawn(kind: str, size: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(7)
    normal = torch.randn(size, generator=generator)
    if kind == "laplace":
        uniform = torch.rand(size, generator=generator)
        return normal.sign() * -uniform.log()
    return normal**3 if kind == "heavy" else normal


@pytest.mark.parametrize("size", [1, 2, 300, CURVE_SAMPLE])
def test_exact_for_what_is_looked_at_whole(size: int) -> None:
    p = drawn("laplace", size)
    energy, *shares = error_curve(p, LEVELS)
    assert energy == pytest.approx(float(p.double().square().sum()), rel=1e-12)
    assert shares == pytest.approx([exact(p, level) for level in LEVELS], abs=1e-9)


@pytest.mark.parametrize("kind", ["normal", "laplace", "heavy"])
def test_sample_against_the_exact_curve(kind: str) -> None:
    """Of a million elements: within 3 % of the energy at every level, 8 % where few elements have much of it."""
    p = drawn(kind, 1_000_000)
    energy, *shares = error_curve(p, LEVELS)
    assert energy == pytest.approx(float(p.double().square().sum()), rel=1e-12)
    within = 0.08 if kind == "heavy" else 0.03
    for level, share in zip(LEVELS, shares, strict=True):
        assert share == pytest.approx(exact(p, level), abs=within), level


def test_falls_from_sparse_to_dense() -> None:
    _, *shares = error_curve(drawn("heavy", 100_000), LEVELS)
    assert shares[0] == 0.0
    assert shares == sorted(shares)
    assert 0 < shares[-1] < 1


def test_columns_of_a_matrix_are_all_met() -> None:
    """One column of 64 has all the energy: with a stride of 64 a sample would have none of it, or nothing else."""
    matrix = torch.zeros(4096, 64)
    matrix[:, 3] = drawn("normal", 4096)
    _, *shares = error_curve(matrix.flatten(), (1 / 32, 1 / 128))
    assert shares[0] == pytest.approx(0, abs=0.01)
    assert shares[1] == pytest.approx(exact(matrix.flatten(), 1 / 128), abs=0.08)


@pytest.mark.parametrize("size", [1, 4096, 4097, 262_144, 9 * 512 * 512, 11_173_962])
def test_stride(size: int) -> None:
    step = stride(size)
    assert gcd(step, size) == 1
    assert -(-size // step) <= CURVE_SAMPLE
    assert step <= max(1, 1.05 * size / CURVE_SAMPLE + 20)


def test_nothing_and_what_is_not_finite() -> None:
    assert error_curve(torch.zeros(10), LEVELS) == [0.0] * (1 + len(LEVELS))
    with pytest.raises(GradientError, match="the energy of 2 elements is nan"):
        error_curve(torch.tensor([1.0, float("nan")]), LEVELS)
    with pytest.raises(InputError, match=r"density 1.5 is outside"):
        error_curve(torch.ones(3), [1.5])


def test_the_vector_is_not_changed() -> None:
    p = drawn("normal", 10_000)
    before = p.clone()
    error_curve(p, LEVELS)
    assert torch.equal(p, before)


class Waits(TorchDispatchMode):
    """Counts the numbers that are fetched one by one: each waits for an accelerator."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def waits(size: int) -> int:
    with Waits() as fetched:
        error_curve(drawn("normal", size), LEVELS)
    return fetched.count


def test_a_long_vector_is_waited_for_no_more_often_than_a_short_one() -> None:
    assert waits(2_000_000) == waits(10_000)
