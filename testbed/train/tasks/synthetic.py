"""Made-up images that can be learned, in the shape of MNIST or CIFAR.

Each class has four prototypes: smooth random patterns. A sample is one of its class's prototypes, plus a
random mixture of smooth disturbances common to all classes, plus noise in every pixel. A share of the
training labels is wrong, so that fitting the training set completely costs accuracy on the test set.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from testbed.train.tasks.base import Samples

if TYPE_CHECKING:
    from torch import Generator, Tensor

Shape = tuple[int, int, int]
"""Channels, height, width."""

_SEED = 28
_PROTOTYPES = 4
"""Per class."""
_COARSE = 7
"""Side of the random grid that is enlarged to a smooth pattern."""
_DISTURBANCE, _NOISE = 0.26, 0.7
"""Standard deviation of a pixel that comes from disturbances (times the root of the number of values on
the grid, so that images of any size are about as hard to tell apart), and from noise; a prototype's is 1."""
_WRONG = 0.05
"""Share of training labels drawn at random."""


class Synthetic:
    """MNIST-shaped: 20,000 samples to learn from and 20,000 to test on."""

    name = "synthetic"
    inputs = (1, 28, 28)
    classes = 10
    train_count, test_count = 20_000, 20_000

    def __init__(self, data: Path | None = None) -> None:
        self._data = data  # needs no files; takes the argument like every task

    def train_set(self) -> Samples:
        """``x`` (train_count, *inputs), about zero mean and unit variance. Not to be written to."""
        return _train_set(self.inputs, self.classes, self.train_count)

    def test_set(self) -> Samples:
        """``x`` (test_count, *inputs); every label is right. Not to be written to."""
        return _test_set(self.inputs, self.classes, self.test_count)


class SyntheticCifar(Synthetic):
    """CIFAR-shaped: 10,000 samples to learn from and 20,000 to test on."""

    name = "synthetic-cifar"
    inputs = (3, 32, 32)
    train_count = 10_000


@lru_cache(maxsize=1)  # runs that follow one another in a process have the same samples
def _train_set(inputs: Shape, classes: int, count: int) -> Samples:
    import torch

    x, y, generator = _draw(inputs, classes, count, stream=1)
    wrong = torch.rand(len(y), generator=generator) < _WRONG
    drawn = torch.randint(classes, (len(y),), generator=generator)
    return x, torch.where(wrong, drawn, y)


@lru_cache(maxsize=1)
def _test_set(inputs: Shape, classes: int, count: int) -> Samples:
    x, y, _ = _draw(inputs, classes, count, stream=2)
    return x, y


def _draw(inputs: Shape, classes: int, count: int, stream: int) -> tuple[Tensor, Tensor, Generator]:
    import torch

    world = torch.Generator().manual_seed(_SEED)
    prototypes = _smooth(classes * _PROTOTYPES, inputs, world)
    freedom = inputs[0] * _COARSE**2
    disturbances = _smooth(2 * freedom, inputs, world)
    generator = torch.Generator().manual_seed(_SEED + stream)
    y = torch.randint(classes, (count,), generator=generator)
    kind = y * _PROTOTYPES + torch.randint(_PROTOTYPES, (count,), generator=generator)
    weights = torch.randn(count, 2 * freedom, generator=generator)
    x = torch.randn(count, disturbances.shape[1], generator=generator).mul_(_NOISE)
    deviation = _DISTURBANCE * freedom**0.5
    x.addmm_(weights, disturbances, alpha=deviation / (2 * freedom) ** 0.5)
    x.add_(prototypes[kind]).div_((1 + deviation**2 + _NOISE**2) ** 0.5)
    return x.view(count, *inputs), y, generator


def _smooth(count: int, inputs: Shape, generator: Generator) -> Tensor:
    """``count`` random smooth patterns of unit variance, (count, channels · height · width)."""
    import torch
    from torch.nn.functional import interpolate

    channels, height, width = inputs
    coarse = torch.randn(count, channels, _COARSE, _COARSE, generator=generator)
    fine = interpolate(coarse, (height, width), mode="bilinear", align_corners=True).flatten(1)
    return (fine - fine.mean(1, keepdim=True)) / fine.std(1, keepdim=True)
