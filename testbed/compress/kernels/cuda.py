"""The operations on an accelerator: PyTorch's own, which wait for the device once for each result."""

from __future__ import annotations

import torch
from torch import Tensor

from testbed.compress.kernels import Moments, Statistics
from testbed.compress.kernels.grid import DIGITS, MAGNITUDE
from testbed.compress.kernels.reference import Reference

_PIECE = 1 << 24
"""Elements that are summed at once: PyTorch makes a float64 copy of what it is to sum in float64."""


class Device(Reference):
    """See ``Operations``. Where nothing better is known, as the reference does it."""

    def measure(self, flat: Tensor) -> Statistics:
        """Both numbers come to the host together."""
        if not flat.numel():
            return Statistics(0.0, 0.0)
        sums, tops = [], []
        for piece in torch.split(flat, _PIECE):
            magnitudes = piece.abs()
            sums.append(magnitudes.sum(dtype=torch.float64))
            tops.append(magnitudes.max().double())
        found = torch.stack([torch.stack(sums).sum(), torch.stack(tops).max()])
        return Statistics(*found.tolist())

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
