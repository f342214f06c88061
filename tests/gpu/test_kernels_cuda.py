"""The operations on a CUDA device: what they give on the host, and the same every time."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

import kernels_rig as rig

from testbed.compress import kernels
from testbed.compress.kernels.base import GradientStatistics, Workspace
from testbed.compress.kernels.compilation import CHUNK
from testbed.compress.kernels.cpu import CpuKernels
from testbed.compress.kernels.torch_ops import CudaKernels, Operations

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no CUDA device here"),
]


SIZES = [0, 1, 4095, 4096, 100_003, 3 * CHUNK + 1]


@pytest.fixture(params=["PyTorch", "Triton"])
def operations(request: pytest.FixtureRequest) -> Iterator[Operations]:
    """As in a training, where an operation that may differ from run to run is an error."""
    chosen = kernels.of(torch.empty(0, device="cuda"))
    torch.set_deterministic_debug_mode("error")
    yield chosen if request.param == "Triton" else CudaKernels()
    torch.set_deterministic_debug_mode("default")


def test_triton_s_are_chosen_where_it_is_installed() -> None:
    chosen = kernels.of(torch.empty(0, device="cuda"))
    assert isinstance(chosen, CudaKernels)
    assert (type(chosen).__name__ == "TritonKernels") == (find_spec("triton") is not None), (
        chosen.reason
    )


CHOSEN = """
import torch
from testbed.compress import kernels
chosen = kernels.of(torch.ones(3, device="cuda"))
assert chosen.count_above(torch.ones(3, device="cuda"), 1.0) == 3
print(type(chosen).__name__, getattr(chosen, "reason", ""))
"""


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({"CC": "/nowhere/cc", "TRITON_CACHE_DIR": "{fresh}"}, "CudaKernels FileNotFoundError"),
        ({"CC": "false", "TRITON_CACHE_DIR": "{fresh}"}, "CudaKernels CalledProcessError"),
        ({"TRITON_CACHE_DIR": "/proc/nowhere"}, "CudaKernels FileNotFoundError"),
        ({"HOME": "/proc/nowhere", "TRITON_HOME": "/proc/nowhere"}, "TritonKernels"),
    ],
)
def test_where_triton_cannot_compile_pytorch_s_run(
    variables: dict[str, str], wanted: str, tmp_path: Path
) -> None:
    if find_spec("triton") is None:
        pytest.skip("Triton is not installed here")
    own = {name: value for name, value in os.environ.items() if name != "TRITON_CACHE_DIR"}
    own |= {name: value.format(fresh=tmp_path) for name, value in variables.items()}
    done = subprocess.run(
        [sys.executable, "-c", CHOSEN], env=own,
        capture_output=True, text=True, timeout=200, check=True,
    )  # fmt: skip
    assert done.stdout.startswith(wanted)


@pytest.mark.parametrize("threshold", [0.0, 1e-45, 0.5, 3.0, 1e300, torch.inf, torch.nan])
@pytest.mark.parametrize("size", SIZES)
def test_operations_are_the_references(operations: Operations, size: int, threshold: float) -> None:
    rig.check_everything(operations, size, threshold, "cuda")


def test_more_than_there_was_room_for(operations: Operations) -> None:
    rig.check_growing(operations, 1_000_000, "cuda")


@pytest.mark.parametrize("size", [1_000_000, 20_000_001])
def test_most_of_what_is_chosen_in_one_place(operations: Operations, size: int) -> None:
    rig.check_uneven(operations, size, "cuda")


@pytest.mark.parametrize("seed", range(3))
def test_digits_under_any_prefix(operations: Operations, seed: int) -> None:
    x = rig.vector(300_000, "cuda", seed)
    rig.check_digits(operations, x)
    rig.check_digits(operations, x * 1e-30)
    rig.check_digits(operations, torch.cat([x * 1e30, x * 1e-30, torch.zeros_like(x)]))
    rig.check_digits(operations, rig.special(100_000, "cuda"))


def test_what_is_not_finite_is_seen(operations: Operations) -> None:
    rig.check_not_finite(operations, "cuda")


def test_what_is_wrong_is_refused(operations: Operations) -> None:
    if type(operations) is CudaKernels:
        pytest.skip("an index outside stops PyTorch's whole device")
    rig.check_refused(operations, "cuda")


def test_both_processors_choose_the_same(operations: Operations) -> None:
    x = rig.vector(1_000_000)
    there = operations.select_above(x.cuda(), 2.0, Workspace())
    rig.equal([one.cpu() for one in there], CpuKernels().select_above(x, 2.0, Workspace()))


def test_results_are_the_same_every_time(operations: Operations) -> None:
    x = rig.vector(5_000_000, "cuda")
    out = torch.empty_like(x)
    for one in (
        lambda: operations.measure(x),
        lambda: operations.add(x, x, out),
        lambda: operations.moments(x, 0.5),
    ):
        assert len({one() for _ in range(5)}) == 1


def test_another_stream_is_used_where_it_is_the_current_one(operations: Operations) -> None:
    x, stream = rig.vector(5_000_000, "cuda"), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        y = x
        for _ in range(20):  # longer than a launch takes
            y = y * 2
        found = operations.count_above(y, 2.0**20)
        indices, values = operations.select_above(y, 2.0**20, Workspace())
    stream.synchronize()
    assert found == indices.numel() == int((x.abs() >= 1).sum())
    assert torch.equal(values, y[indices])


def test_offsets_beyond_two_gibibytes(operations: Operations) -> None:
    """Two elements of 2³¹ + 5, the last among them; it needs some 10 GiB."""
    if type(operations) is CudaKernels:
        pytest.skip("PyTorch's take many times the memory")
    x, size = torch.zeros(2**31 + 5, device="cuda"), 2**31 + 5
    x[7], x[-1] = 2.0, -3.0
    assert operations.measure(x) == GradientStatistics(5.0, 3.0)
    assert operations.count_above(x, 1.0) == 2
    indices, values = operations.select_above(x, 1.0, Workspace())
    assert indices.tolist() == [7, size - 1] and values.tolist() == [2.0, -3.0]
    assert operations.digit_counts(x)[0] == size - 2
    assert operations.moments(x, 1.0).sum_squares == 13.0
    operations.subtract_at(x, indices, values)
    assert operations.add(x, x, x) == GradientStatistics(0.0, 0.0)
