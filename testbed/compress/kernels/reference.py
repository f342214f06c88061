"""Every operation in plain PyTorch, on any device."""

from __future__ import annotations

import torch
from torch import Tensor

from testbed.compress.kernels import Moments, Statistics, Workspace
from testbed.compress.kernels.grid import DIGITS, MAGNITUDE, as_float32


class Reference:
    """Clear rather than fast; see ``Operations`` for what each does."""

    def measure(self, flat: Tensor) -> Statistics:
        """Σ|x| in float64 and max|x|."""
        if not flat.numel():
            return Statistics(0.0, 0.0)
        magnitudes = flat.abs()
        return Statistics(float(magnitudes.sum(dtype=torch.float64)), float(magnitudes.max()))

    def add(self, first: Tensor, second: Tensor, out: Tensor) -> Statistics:
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
