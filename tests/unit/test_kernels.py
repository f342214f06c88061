"""The operations on whole vectors: the same as in plain PyTorch, whatever is in them."""

from __future__ import annotations

import gc
import math
import re
from pathlib import Path

import kernels_rig as rig
import numpy as np
import pytest
import torch
from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from torch import Tensor

from testbed.compress import kernels
from testbed.compress.kernels.base import Workspace
from testbed.compress.kernels.compilation import BLOCK, CHUNK, LANES, PIECE
from testbed.compress.kernels.cpu import CpuKernels
from testbed.compress.kernels.torch_ops import CudaKernels, Operations

OPERATIONS = [CpuKernels(), CudaKernels()]
"""The accelerator's are PyTorch's own: they run here as well."""
SMALL = [0, 1, 2, LANES - 1, LANES, LANES + 1, BLOCK - 1, BLOCK, BLOCK + 1, PIECE - 1, PIECE + 33]
SIZES = [(one, size) for one in OPERATIONS for size in SMALL]
SIZES += [(OPERATIONS[0], size) for size in (CHUNK - 1, CHUNK, CHUNK + 1)]
THRESHOLDS = [0.0, -1.0, 1e-46, 1e-45, 0.5, 1.0, 2.5, 3.4028235e38, 1e300, math.inf, math.nan]

every = pytest.mark.parametrize("operations", OPERATIONS, ids=lambda one: type(one).__name__)


def vectors(**options: bool) -> st.SearchStrategy[Tensor]:
    least = 2.0**-149  # exactly: NumPy 1.26 compares a number with a float32 as float64
    numbers = st.floats(width=32, **options) | st.sampled_from([0.0, -0.0, 1.0, -1.0, least])
    sizes = st.integers(0, 3 * BLOCK)
    return arrays.arrays(np.float32, sizes, elements=numbers, fill=numbers).map(torch.from_numpy)


thresholds = st.sampled_from(THRESHOLDS) | st.floats(0, 100)


@every
@settings(deadline=None)
@given(x=vectors(), threshold=thresholds)
def test_any_bits(operations: Operations, x: Tensor, threshold: float) -> None:
    rig.check(operations, x, threshold)


@every
@settings(deadline=None)
@given(x=vectors(allow_nan=False, allow_infinity=False), threshold=thresholds)
def test_moments_of_any_numbers(operations: Operations, x: Tensor, threshold: float) -> None:
    rig.check_moments(operations, x, threshold)


@every
@settings(deadline=None)
@given(x=vectors(), seed=st.integers(0, 9))
def test_sums_of_any_bits(operations: Operations, x: Tensor, seed: int) -> None:
    rig.check_add(operations, x, rig.vector(x.numel(), seed=seed))


@every
@settings(deadline=None)
@given(size=st.integers(1, 500), data=st.data())
def test_any_indices(operations: Operations, size: int, data: st.DataObject) -> None:
    indices = sorted(data.draw(st.sets(st.integers(0, size - 1))))
    rig.check_sparse(operations, rig.vector(size), torch.tensor(indices, dtype=torch.int64))


@pytest.mark.parametrize(("operations", "size"), SIZES)
def test_sizes(operations: Operations, size: int) -> None:
    x = rig.vector(size)
    for threshold in (0.0, 2.0):
        rig.check(operations, x, threshold)
        rig.check_moments(operations, x, threshold)
    rig.check_add(operations, x, rig.special(size))
    rig.check_sparse(operations, x, torch.arange(0, size, 3))


@every
@pytest.mark.parametrize("threshold", THRESHOLDS)
def test_thresholds_among_extreme_magnitudes(operations: Operations, threshold: float) -> None:
    x = rig.special(1000)
    rig.check(operations, x, threshold)
    rig.check_moments(operations, x, threshold)
    rig.check_moments(operations, rig.vector(CHUNK + 5), threshold)


@every
@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 40, 64, 999])
def test_what_is_not_finite_is_seen(operations: Operations, wrong: float, place: int) -> None:
    x = rig.vector(1000)
    x[place] = wrong
    for seen in (
        operations.measure(x),
        operations.add(x, torch.zeros(1000), torch.empty(1000)),
    ):
        assert not math.isfinite(seen.sum_abs) and not math.isfinite(seen.max_abs)


def test_thresholds_are_float32() -> None:
    """0.1 as float64 is above the float32 nearest to it, which elements have."""
    x = torch.full((100,), 0.1)
    for operations in OPERATIONS:
        assert operations.count_above(x, 0.1) == 100
        assert operations.count_above(x, float(np.nextafter(np.float32(0.1), np.float32(1)))) == 0


def test_sums_do_not_lose_small_numbers() -> None:
    x = torch.full((3 * CHUNK,), 1e-8)
    x[0] = 1.0
    exact = 1.0 + (x.numel() - 1) * float(np.float32(1e-8))
    for operations in OPERATIONS:
        assert operations.measure(x).sum_abs == pytest.approx(exact, rel=1e-14)


def test_choosing_more_than_there_was_room_for() -> None:
    x, space = rig.vector(200_000), Workspace()
    for threshold in (3.0, 0.0, 0.5, 2.0):
        rig.equal(
            CpuKernels().select_above(x, threshold, space),
            rig.REFERENCE.select_above(x, threshold, space),
        )


def resident_bytes(field: str) -> int:
    """``VmRSS`` of this process, or ``VmHWM``: its maximum since it was last reset."""
    found = re.search(
        rf"^{field}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE
    )
    assert found is not None
    return 1024 * int(found[1])


def test_nothing_of_the_vectors_size_is_allocated_again() -> None:
    # above 32 MiB the allocator maps and unmaps each piece: none is kept from an earlier call
    x, y = rig.vector(9_000_000), rig.vector(9_000_000, seed=3)
    out, space = torch.empty(x.numel()), Workspace()

    def step() -> list[int]:
        host = kernels.of(x)
        host.measure(x)
        host.add(x, y, out)
        host.moments(x, 0.5)
        host.count_above(x, 1.0)
        host.digit_counts(x)
        indices, values = host.select_above(out, 2.0, space)
        host.subtract_at(out, indices, values)
        return [indices.data_ptr(), values.data_ptr()]

    first = step()
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the maximum is what there is now
    before = resident_bytes("VmRSS")
    assert step() == first
    assert resident_bytes("VmHWM") - before < 4 * x.numel() // 4


@pytest.mark.parametrize("name", ["add_at", "subtract_at"])
@pytest.mark.parametrize("wrong", [-1, 10, 2**40, -(2**62)])
def test_indices_outside_are_refused(name: str, wrong: int) -> None:
    x = torch.zeros(10)
    with pytest.raises(IndexError, match="outside a vector of 10"):
        getattr(CpuKernels(), name)(x, torch.tensor([2, wrong]), torch.ones(2))


def test_what_loops_are_not_compiled_for_is_refused() -> None:
    x = torch.zeros(10)
    for wrong in (x.double(), x[::2], x.view(2, 5)):
        with pytest.raises(TypeError, match="contiguous float32"):
            CpuKernels().measure(wrong)
    with pytest.raises(ValueError, match="10, 9, 10"):
        CpuKernels().add(x, x[:9], x)
    with pytest.raises(ValueError, match="2 values"):
        CpuKernels().add_at(x, torch.tensor([1]), torch.ones(2))


def test_gradients_of_parameters_are_taken_as_they_are() -> None:
    x = rig.vector(100).requires_grad_()
    assert kernels.of(x).measure(x) == CpuKernels().measure(x.detach())


@settings(deadline=None, max_examples=examples(20))
@given(least=st.integers(1, 50), more=st.integers(51, 500))
def test_workspaces_keep_what_they_have_and_grow(least: int, more: int) -> None:
    space = Workspace()
    held = space.tensor("a", least, torch.empty(0))
    held.copy_(torch.arange(least))
    grown = space.grown("a", more, kept=least)
    assert grown.numel() >= more and torch.equal(grown[:least], torch.arange(least).float())
    assert space.tensor("a", least, held).data_ptr() == grown.data_ptr()
    assert space.tensor("a", least, torch.empty(0, dtype=torch.int64)).dtype == torch.int64
