"""The passes over a whole gradient, by where it lies: numba on the host, torch on an accelerator.

``of(tensor)`` gives the operations for a tensor's device. ``Operations`` (``torch_ops``) is the
plain PyTorch version of each, on any device: what the others are tested against.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from testbed.compress.kernels.torch_ops import Operations


def of(tensor: Tensor) -> Operations:
    """The operations for the device that ``tensor`` is on."""
    if tensor.device.type == "cpu":
        from testbed.compress.kernels.cpu import CpuKernels

        return CpuKernels()
    from testbed.compress.kernels.torch_ops import CudaKernels

    return CudaKernels()
