"""Convolutional networks without shortcuts."""

from __future__ import annotations

from torch import nn

from testbed.errors import InputError
from testbed.train.models.base import Inputs
from testbed.train.models.layers import GlobalMean, normalisation, scaled

_VGG19 = ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4))
"""Channels and convolutions of each stage (Simonyan and Zisserman 2015, configuration E)."""


def cnn(inputs: Inputs, classes: int, width: float) -> nn.Module:
    """Two 3 × 3 convolutions (16 and 32 channels) and one hidden layer (104 units), times ``width``.

    59,202 parameters for 8 × 8 digits. Inputs of 16 pixels and more are halved after either
    convolution, smaller ones only after the second.
    """
    channels, height, breadth = inputs
    first, second, hidden = scaled(16, width), scaled(32, width), scaled(104, width)
    halvings = 2 if min(height, breadth) >= 16 else 1
    size = second * (height >> halvings) * (breadth >> halvings)
    early = [nn.MaxPool2d(2)] if halvings == 2 else []
    return nn.Sequential(
        nn.Conv2d(channels, first, 3, padding=1), nn.ReLU(), *early,
        nn.Conv2d(first, second, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(size, hidden), nn.ReLU(), nn.Linear(hidden, classes),
    )  # fmt: skip


def vgg19(inputs: Inputs, classes: int, width: float) -> nn.Module:
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
            parts += [nn.Conv2d(channels, out, 3, padding=1), normalisation(out), nn.ReLU()]
            channels = out
        parts.append(nn.MaxPool2d(2))
    return nn.Sequential(*parts, GlobalMean(), nn.Linear(channels, classes))
