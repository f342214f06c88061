"""What the models share."""

from __future__ import annotations

from torch import Tensor, nn

_GROUP = 8
"""Channels that are normalised together; every number of channels is a multiple of it."""


def scaled(channels: int, width: float) -> int:
    """``channels · width``, to the nearest multiple of 8, at least 8."""
    return max(_GROUP, round(channels * width / _GROUP) * _GROUP)


def normalisation(channels: int) -> nn.GroupNorm:
    """Group normalisation in place of batch normalisation: no running statistics that replicas would
    not share, and no dependence on how a mini-batch is cut into workers' parts. As many parameters."""
    return nn.GroupNorm(channels // _GROUP, channels)


class GlobalMean(nn.Module):
    """(batch, channels, height, width) to (batch, channels): a mean with a deterministic gradient."""

    def forward(self, x: Tensor) -> Tensor:
        """Mean over height and width."""
        return x.mean((2, 3))
