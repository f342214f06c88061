"""Every operation in plain PyTorch, on any device, and those for an accelerator, with pinned
memory for its results.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from testbed.compress.base import Sparse
from testbed.compress.kernels.base import GradientStatistics, Moments, Workspace
from testbed.compress.kernels.compilation import DIGITS, MAGNITUDE, as_float32


class Reference:
    """Clear rather than fast; see ``Operations`` for what each does."""

    def measure(self, flat: Tensor) -> GradientStatistics:
        """Σ|x| in float64 and max|x|."""
        if not flat.numel():
            return GradientStatistics(0.0, 0.0)
        magnitudes = flat.abs()
        return GradientStatistics(
            float(magnitudes.sum(dtype=torch.float64)), float(magnitudes.max())
        )

    def add(self, first: Tensor, second: Tensor, out: Tensor) -> GradientStatistics:
        """The sum, then its statistics."""
        return self.measure(torch.add(first, second, out=out))

    def moments(self, flat: Tensor, threshold: float = 0.0) -> Moments:
        """A mask, then sums of what it leaves."""
        kept = flat[self._from(flat, threshold)].abs().double()
        nonzero = kept[kept > 0]
        return Moments(
            kept.numel(),
            nonzero.numel(),
            float(kept.sum()),
            float(kept.square().sum()),
            float(nonzero.log().sum()),
        )

    def count_from(self, flat: Tensor, threshold: float) -> int:
        """Magnitudes at or above the threshold."""
        return int(self._from(flat, threshold).sum())

    def choose_from(
        self, flat: Tensor, threshold: float, space: Workspace
    ) -> tuple[Tensor, Tensor]:
        """A mask and a gather."""
        del space
        indices = self._from(flat, threshold).nonzero().flatten()
        return indices, flat[indices]

    def digit_counts(self, flat: Tensor, digit: int = 0, prefix: int = 0) -> Tensor:
        """A count of some bits of the magnitudes' binary form."""
        shift, width = DIGITS[digit]
        bits = flat.view(torch.int32) & MAGNITUDE
        bits = bits[bits >> shift + width == prefix]
        return torch.bincount(bits >> shift & (1 << width) - 1, minlength=1 << width).cpu()

    def take_away(self, flat: Tensor, indices: Tensor, values: Tensor) -> None:
        """Indices occur once, so that the order does not matter."""
        flat.index_add_(0, indices, values, alpha=-1)

    def add_at(self, flat: Tensor, indices: Tensor, values: Tensor) -> None:
        """Indices occur once, so that the order does not matter."""
        flat.index_add_(0, indices, values)

    def _from(self, flat: Tensor, threshold: float) -> Tensor:
        """bool (n,)."""
        return flat.abs() >= float(as_float32(threshold))


_PIECE = 1 << 24
"""Elements that are summed at once: PyTorch makes a float64 copy of what it is to sum in
float64."""


class CudaKernels(Reference):
    """See ``Operations``. Where nothing better is known, as the reference does it."""

    def measure(self, flat: Tensor) -> GradientStatistics:
        """Both numbers come to the host together."""
        if not flat.numel():
            return GradientStatistics(0.0, 0.0)
        sums, tops = [], []
        for piece in torch.split(flat, _PIECE):
            magnitudes = piece.abs()
            sums.append(magnitudes.sum(dtype=torch.float64))
            tops.append(magnitudes.max().double())
        found = torch.stack([torch.stack(sums).sum(), torch.stack(tops).max()])
        return GradientStatistics(*found.tolist())

    def moments(self, flat: Tensor, threshold: float = 0.0) -> Moments:
        """Zeros in the place of what is below the threshold: its number need not be known."""
        sums = [
            _moments(piece, self._from(piece, threshold)) for piece in torch.split(flat, _PIECE)
        ]
        count, nonzero, *found = torch.stack(sums).sum(dim=0).tolist()
        return Moments(int(count), int(nonzero), *found)  # exact up to 2⁵³

    def digit_counts(self, flat: Tensor, digit: int = 0, prefix: int = 0) -> Tensor:
        """Elements with another prefix are counted beyond the end."""
        shift, width = DIGITS[digit]
        bits = flat.view(torch.int32) & MAGNITUDE
        values = (bits >> shift) & (1 << width) - 1
        if digit:
            values.masked_fill_(bits >> shift + width != prefix, 1 << width)
        return torch.bincount(values, minlength=(1 << width) + 1)[: 1 << width].cpu()


def _moments(piece: Tensor, chosen: Tensor) -> Tensor:
    """float64 (5,), in the order of ``Moments``."""
    kept = piece.abs().mul_(chosen).double()
    nonzero = kept > 0
    logs = torch.where(nonzero, kept, 1.0).log_()
    counts = (chosen.sum(), nonzero.sum())
    return torch.stack([*counts, kept.sum(), kept.square().sum(), logs.sum()]).double()


class Staging:
    """Keeps one page-locked buffer per dtype, grown when needed; tensors on the CPU pass
    untouched."""

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
