"""The kernels for CUDA devices, carried out on the host by Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from testbed.compress.kernels import _compiled
from testbed.compress.kernels.torch_ops import CudaKernels

installed = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed here")
interpreted = pytest.mark.skipif(
    find_spec("triton") is not None
    and [int(part) for part in version("triton").split(".")[:2]] < [3, 7]
    and np.lib.NumpyVersion(np.__version__) >= "2.4.0",
    reason="the interpreter of Triton before 3.7 makes numbers of arrays, which numpy 2.4 refuses",
)
CHECKS = {
    "everything": """
for size in (0, 1, 33, 2049, 9_000):
    for threshold in (0.0, 0.5):
        rig.check_everything(operations, size, threshold, "cpu")
for threshold in (-1.0, 1e-46, 1e-45, 3.4028235e38, 1e300, float("inf"), float("nan")):
    rig.check(operations, rig.special(40), threshold)
    rig.check_moments(operations, rig.special(40), threshold)
""",
    "more than there is room for": 'rig.check_growing(operations, 20_000, "cpu")',
    "much in one place": 'rig.check_uneven(operations, 100_000, "cpu")',
    "digits": """
rig.check_digits(operations, rig.vector(9_000))
rig.check_digits(operations, rig.vector(9_000) * 1e-30)
rig.check_digits(operations, torch.cat([rig.vector(4_096), rig.special(4_096)]))
""",
    "not finite": 'rig.check_not_finite(operations, "cpu")',
    "refused": 'rig.check_refused(operations, "cpu")',
    "warmed": "operations.warm(torch.device('cpu'))",
}
SCRIPT = """
import torch
import kernels_rig as rig
from testbed.compress.kernels.triton_ops import TritonKernels
torch.set_deterministic_debug_mode("error")
operations = TritonKernels()
"""


@pytest.mark.optional
@installed
@interpreted
@pytest.mark.parametrize("check", CHECKS)
def test_kernels_give_what_plain_pytorch_does(check: str, tmp_path: Path) -> None:
    here = str(Path(__file__).parent)
    paths = os.pathsep.join([here, *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    own = {"TRITON_INTERPRET": "1", "PYTHONPATH": paths, "NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT + CHECKS[check]],
        env=os.environ | own, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.optional
def test_without_a_device_pytorch_s_operations_run_and_say_why() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    found = _compiled(torch.device("cuda"))
    assert type(found) is CudaKernels and found.reason
