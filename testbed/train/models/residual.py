"""Residual networks in their CIFAR form: a 3 × 3 stem without pooling (He et al. 2016)."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import relu

from testbed.train.models.base import Inputs
from testbed.train.models.layers import GlobalMean, normalisation, scaled

_STAGES = (64, 128, 256, 512)


def resnet(
    inputs: Inputs,
    classes: int,
    width: float,
    *,
    blocks: tuple[int, int, int, int],
    bottleneck: bool = False,
) -> nn.Module:
    """``blocks`` residual blocks in each of four stages; ``bottleneck``: blocks of three layers."""
    channels = scaled(_STAGES[0], width)
    parts: list[nn.Module] = [*_normalised(inputs[0], channels, 3), nn.ReLU()]
    for stage, count in enumerate(blocks):
        narrow = scaled(_STAGES[stage], width)
        for index in range(count):
            stride = 2 if stage and not index else 1
            block = Residual(channels, narrow, stride, bottleneck)
            parts.append(block)
            channels = block.channels
    return nn.Sequential(*parts, GlobalMean(), nn.Linear(channels, classes))


class Residual(nn.Module):
    """Two 3 × 3 convolutions, or 1 × 1, 3 × 3, 1 × 1 to four times ``narrow``; and a shortcut."""

    def __init__(self, channels: int, narrow: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        self.channels = narrow * 4 if bottleneck else narrow
        if bottleneck:
            layers = [
                *_normalised(channels, narrow, 1), nn.ReLU(),
                *_normalised(narrow, narrow, 3, stride), nn.ReLU(),
                *_normalised(narrow, self.channels, 1),
            ]  # fmt: skip
        else:
            layers = [
                *_normalised(channels, narrow, 3, stride), nn.ReLU(),
                *_normalised(narrow, narrow, 3),
            ]  # fmt: skip
        self.layers = nn.Sequential(*layers)
        same = channels == self.channels and stride == 1
        self.shortcut = nn.Sequential(
            *([] if same else _normalised(channels, self.channels, 1, stride))
        )

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, h, w) to (batch, self.channels, h / stride, w / stride)."""
        result: Tensor = relu(self.layers(x) + self.shortcut(x))
        return result


def _normalised(inside: int, outside: int, kernel: int, stride: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(inside, outside, kernel, stride=stride, padding=kernel // 2, bias=False)
    return [convolution, normalisation(outside)]
