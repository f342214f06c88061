"""The passes over a whole gradient, by where it lies: numba on the host, Triton on a CUDA device.

``of(tensor)`` gives the operations for a tensor's device. ``Operations`` (``torch_ops``) is the
plain PyTorch version of each, on any device: what the others are tested against.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from testbed.compress.kernels.torch_ops import Operations


def of(tensor: Tensor) -> Operations:
    """The operations for the device that ``tensor`` is on."""
    if tensor.device.type == "cpu":
        from testbed.compress.kernels.cpu import CpuKernels

        return CpuKernels()
    return _compiled(tensor.device)


@cache
def _compiled(device: torch.device) -> Operations:
    """Triton's, where it is installed and its kernels run; else PyTorch's, with the reason.

    It needs a C compiler, Python's headers, and a folder to write to.
    """
    from subprocess import SubprocessError

    from testbed.compress.kernels.torch_ops import CudaKernels

    if device.type != "cuda":
        return CudaKernels(f"Triton's kernels are for CUDA, not for {device.type}")
    try:
        from testbed.compress.kernels.triton_ops import TritonKernels

        kernels = TritonKernels()
        kernels.warm(device)
    except (ImportError, AssertionError, OSError, RuntimeError, SubprocessError) as error:
        return CudaKernels(f"{type(error).__name__}: {error}")
    return kernels
