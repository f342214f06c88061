"""Fully connected networks."""

from __future__ import annotations

import math

from torch import nn

from testbed.train.models.base import Inputs
from testbed.train.models.layers import scaled


def mlp(inputs: Inputs, classes: int, width: float) -> nn.Module:
    """One hidden layer of 128 · width units."""
    return _layers(math.prod(inputs), (scaled(128, width),), classes)


def dnn(inputs: Inputs, classes: int, width: float) -> nn.Module:
    """The fully connected network of the coded-SGD experiments on MNIST (Li et al.).

    The paper gives no layer sizes; ours are two hidden layers of 512 · width units.
    """
    hidden = scaled(512, width)
    return _layers(math.prod(inputs), (hidden, hidden), classes)


def mlp12(inputs: Inputs, classes: int, width: float) -> nn.Module:
    """Twelve layers with 64 · width units between them, for experiments on when which layer is sent.

    Inputs are pooled, or repeated, to as many values: all layers but the last are of one size, with every task.
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
