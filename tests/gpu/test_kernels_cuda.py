"""The operations on a CUDA device: what they give on the host, and the same every time."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

import kernels_rig as rig
from random_reference import uniforms

from testbed.compress import kernels
from testbed.compress.kernels.base import Workspace
from testbed.compress.kernels.compilation import CHUNK
from testbed.compress.kernels.cpu import CpuKernels
from testbed.compress.kernels.random import uniforms_on

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no CUDA device here"),
]


@pytest.mark.parametrize("threshold", [0.0, 1e-45, 0.5, 3.0, 1e300])
@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 100_003, 3 * CHUNK + 1])
def test_operations_are_the_references(size: int, threshold: float) -> None:
    x = rig.vector(size, "cuda")
    operations = kernels.of(x)
    rig.check(operations, x, threshold)
    rig.check_moments(operations, x, threshold)
    rig.check_add(operations, x, rig.special(size, "cuda"))
    rig.check_sparse(operations, x, torch.arange(0, size, 3, device="cuda"))


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
def test_what_is_not_finite_is_seen(wrong: float) -> None:
    x = rig.vector(10_000, "cuda")
    x[9_999] = wrong
    assert not torch.tensor(kernels.of(x).measure(x).sum_abs).isfinite()


def test_both_processors_choose_the_same() -> None:
    x = rig.vector(1_000_000)
    there = kernels.of(x.cuda()).select_above(x.cuda(), 2.0, Workspace())
    rig.equal([one.cpu() for one in there], CpuKernels().select_above(x, 2.0, Workspace()))


def test_statistics_are_the_same_every_time() -> None:
    x = rig.vector(5_000_000, "cuda")
    assert len({kernels.of(x).measure(x) for _ in range(5)}) == 1


def test_random_numbers_are_the_hosts() -> None:
    out = torch.empty(100_000, device="cuda")
    uniforms_on(2**64 - 1, out)
    assert torch.equal(out.cpu(), torch.from_numpy(uniforms(2**64 - 1, 100_000)))
