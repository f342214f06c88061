"""The models that ship: fully connected, convolutional without shortcuts, and residual networks in
their CIFAR form (He et al. 2016).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm, relu

from testbed.errors import InputError
from testbed.training.models.base import Inputs

_GROUP = 8
"""Channels that are normalised together; every number of channels is a multiple of it."""


def scaled(channels: int, width: float) -> int:
    """``channels · width``, to the nearest multiple of 8, at least 8."""
    return max(_GROUP, round(channels * width / _GROUP) * _GROUP)


def normalisation(channels: int, by_batch: bool) -> nn.Module:
    """Group normalisation, which does not depend on how a mini-batch is cut into workers' parts; or
    batch normalisation. Both have as many parameters."""
    return BatchNorm(channels) if by_batch else nn.GroupNorm(channels // _GROUP, channels)


class BatchNorm(nn.Module):
    """Batch normalisation by the statistics of the batch at hand: in training those of a replica's
    own part of the mini-batch, as DistributedDataParallel has it. Scale and shift are exchanged.

    There are no running statistics, which no exchange would carry: ``measure_statistics`` finds
    them for a model that is evaluated.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight, self.bias = (nn.Parameter(torch.empty(channels)) for _ in range(2))
        self._measured: list[tuple[Tensor, Tensor]] | None = None
        self._fixed: tuple[Tensor, Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, h, w), normalised."""
        if self._measured is not None:
            self._measured.append(torch.var_mean(x.detach(), (0, 2, 3)))
        if self._fixed is not None:
            variance, mean = self._fixed
            return batch_norm(x, mean, variance, self.weight, self.bias)
        return torch.batch_norm(x, self.weight, self.bias, None, None, True, 0.0, 1e-5, True)

    def begin(self) -> None:
        """Normalise by batches, and remember their statistics."""
        self._measured, self._fixed = [], None

    def end(self) -> None:
        """Normalise by the mean of the statistics since ``begin``."""
        variances, means = zip(*self._measured or [], strict=True)
        self._fixed = torch.stack(variances).mean(0), torch.stack(means).mean(0)
        self._measured = None


def normalises_by_batch(module: nn.Module) -> bool:
    """Return whether it has a ``BatchNorm``."""
    return any(isinstance(layer, BatchNorm) for layer in module.modules())


def measure_statistics(module: nn.Module, batches: Iterable[Tensor]) -> None:
    """Have every ``BatchNorm`` of ``module`` normalise by what it meets in ``batches`` of training
    samples, all of which go through the parameters as they are."""
    layers = [layer for layer in module.modules() if isinstance(layer, BatchNorm)]
    for layer in layers:
        layer.begin()
    for batch in batches:
        module(batch)
    for layer in layers:
        layer.end()


class GlobalMean(nn.Module):
    """(batch, channels, height, width) to (batch, channels), with a deterministic gradient."""

    def forward(self, x: Tensor) -> Tensor:
        """Mean over height and width."""
        return x.mean((2, 3))


_VGG19 = ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4))
"""Channels and convolutions of each stage (Simonyan and Zisserman 2015, configuration E)."""


def cnn(inputs: Inputs, classes: int, width: float) -> nn.Module:
    """Two 3 × 3 convolutions (16 and 32 channels), one hidden layer (104 units), times ``width``.

    59,202 parameters for 8 × 8 digits. Inputs of 16 pixels and more are halved after either
    convolution, smaller ones only after the second. Of height 1 they are convolved and halved in
    breadth alone.
    """
    channels, height, breadth = inputs
    first, second, hidden = scaled(16, width), scaled(32, width), scaled(104, width)
    flat = height == 1
    kernel, padding, halved = ((1, 3), (0, 1), (1, 2)) if flat else ((3, 3), (1, 1), (2, 2))
    halvings = 2 if (breadth if flat else min(height, breadth)) >= 16 else 1
    size = second * (1 if flat else height >> halvings) * (breadth >> halvings)
    early = [nn.MaxPool2d(halved)] if halvings == 2 else []
    return nn.Sequential(
        nn.Conv2d(channels, first, kernel, padding=padding),
        nn.ReLU(),
        *early,
        nn.Conv2d(first, second, kernel, padding=padding),
        nn.ReLU(),
        nn.MaxPool2d(halved),
        nn.Flatten(),
        nn.Linear(size, hidden),
        nn.ReLU(),
        nn.Linear(hidden, classes),
    )


def vgg19(inputs: Inputs, classes: int, width: float, *, by_batch: bool = False) -> nn.Module:
    """VGG-19 in its CIFAR form: sixteen normalised convolutions and one linear layer."""
    channels, height, breadth = inputs
    if min(height, breadth) < 32:
        raise InputError(
            f"model 'vgg19' halves its input five times, {height} × {breadth} pixels are too few",
            where="train.model",
            hint="Use a task with images of at least 32 × 32 pixels, such as cifar10",
        )
    parts: list[nn.Module] = []
    for wide, count in _VGG19:
        for _ in range(count):
            out = scaled(wide, width)
            normalise = normalisation(out, by_batch)
            parts += [nn.Conv2d(channels, out, 3, padding=1), normalise, nn.ReLU()]
            channels = out
        parts.append(nn.MaxPool2d(2))
    return nn.Sequential(*parts, GlobalMean(), nn.Linear(channels, classes))


def mlp(inputs: Inputs, classes: int, width: float) -> nn.Module:
    """One hidden layer of 128 · width units."""
    return _layers(math.prod(inputs), (scaled(128, width),), classes)


def dnn(inputs: Inputs, classes: int, width: float) -> nn.Module:
    """The fully connected network of the coded-SGD experiments on MNIST (Li et al.). The paper
    gives no layer sizes; ours are two hidden layers of 512 · width units."""
    hidden = scaled(512, width)
    return _layers(math.prod(inputs), (hidden, hidden), classes)


def mlp12(inputs: Inputs, classes: int, width: float) -> nn.Module:
    """Twelve layers with 64 · width units between them, to study when which layer is sent.

    Inputs are pooled, or repeated, to as many values, so that all layers but the last are of one
    size.
    """
    del inputs
    units = scaled(64, width)
    _, *layers = _layers(units, (units,) * 11, classes)
    return nn.Sequential(nn.Flatten(), nn.AdaptiveAvgPool1d(units), *layers)


def _layers(size: int, hidden: tuple[int, ...], classes: int) -> nn.Sequential:
    parts: list[nn.Module] = [nn.Flatten()]
    for units in hidden:
        parts += [nn.Linear(size, units), nn.ReLU()]
        size = units
    return nn.Sequential(*parts, nn.Linear(size, classes))


_STAGES = (64, 128, 256, 512)


def resnet(
    inputs: Inputs,
    classes: int,
    width: float,
    *,
    blocks: tuple[int, int, int, int],
    bottleneck: bool = False,
    by_batch: bool = False,
) -> nn.Module:
    """``blocks`` residual blocks in each of four stages; ``bottleneck``: blocks of three layers."""
    channels = scaled(_STAGES[0], width)
    parts: list[nn.Module] = [*_normalised(inputs[0], channels, 3, by_batch), nn.ReLU()]
    for stage, count in enumerate(blocks):
        narrow = scaled(_STAGES[stage], width)
        for index in range(count):
            stride = 2 if stage and not index else 1
            block = Residual(channels, narrow, stride, bottleneck, by_batch)
            parts.append(block)
            channels = block.channels
    return nn.Sequential(*parts, GlobalMean(), nn.Linear(channels, classes))


class Residual(nn.Module):
    """Two 3 × 3 convolutions, or 1 × 1, 3 × 3, 1 × 1 to four times ``narrow``; and a shortcut."""

    def __init__(
        self, channels: int, narrow: int, stride: int, bottleneck: bool, by_batch: bool
    ) -> None:
        super().__init__()
        self.channels = narrow * 4 if bottleneck else narrow
        convolutions = [(narrow, 3, stride), (narrow, 3, 1)]
        if bottleneck:
            convolutions = [(narrow, 1, 1), (narrow, 3, stride), (self.channels, 1, 1)]
        layers, inside = list[nn.Module](), channels
        for outside, kernel, own_stride in convolutions:
            layers += [*_normalised(inside, outside, kernel, by_batch, own_stride), nn.ReLU()]
            inside = outside
        self.layers = nn.Sequential(*layers[:-1])
        same = channels == self.channels and stride == 1
        self.shortcut = nn.Sequential(
            *([] if same else _normalised(channels, self.channels, 1, by_batch, stride))
        )

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, h, w) to (batch, self.channels, h / stride, w / stride)."""
        result: Tensor = relu(self.layers(x) + self.shortcut(x))
        return result


def _normalised(
    inside: int, outside: int, kernel: int, by_batch: bool, stride: int = 1
) -> list[nn.Module]:
    convolution = nn.Conv2d(inside, outside, kernel, stride=stride, padding=kernel // 2, bias=False)
    return [convolution, normalisation(outside, by_batch)]
