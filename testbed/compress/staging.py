"""From an accelerator to the host through page-locked memory, which its copy engine can write to."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from testbed.compress.base import Sparse


class Staging:
    """Keeps one page-locked buffer per dtype, grown when needed; tensors on the CPU pass untouched."""

    def __init__(self) -> None:
        self._buffers: dict[torch.dtype, Tensor] = {}

    def to_host(self, sparse: Sparse) -> Sparse:
        """The same elements on the CPU. What it returns is valid until the next call."""
        if sparse.values.device.type == "cpu":
            return sparse
        indices = None if sparse.indices is None else self._copy(sparse.indices)
        values = self._copy(sparse.values)
        torch.cuda.synchronize(sparse.values.device)
        return replace(sparse, indices=indices, values=values)

    def _copy(self, tensor: Tensor) -> Tensor:
        buffer = self._buffers.get(tensor.dtype)
        if buffer is None or buffer.numel() < tensor.numel():
            buffer = torch.empty(tensor.numel(), dtype=tensor.dtype, pin_memory=True)
            self._buffers[tensor.dtype] = buffer
        return buffer[: tensor.numel()].copy_(tensor, non_blocking=True)
