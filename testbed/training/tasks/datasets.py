"""The data sets that ship: digits of scikit-learn, MNIST, CIFAR-10 and CIFAR-100 from their files,
and made-up images.

The Python version is a pickle, which can run anything when it is read, so it is not read here.

Each class has four prototypes: smooth random patterns. A sample is one of its class's prototypes,
plus a random mixture of smooth disturbances common to all classes, plus noise in every pixel. A
share of the training labels is wrong, so that fitting the training set completely costs accuracy on
the test set.
"""

from __future__ import annotations

import importlib.util
import math
import struct
from functools import cache, lru_cache
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from testbed.training.tasks.base import Samples, damaged, read

if TYPE_CHECKING:
    from torch import Generator, Tensor


_SPLIT = 20
"""Fixes which samples are for testing; not a setting, so that results stay comparable."""


class Digits:
    """1,797 digits of 43 writers (UCI ML hand-written digits), grey values scaled to 0-1.

    1,438 to learn from, 359 to test on, the same for everybody.
    """

    name = "digits"
    inputs = (1, 8, 8)
    classes = 10

    def __init__(self, data: Path | None = None) -> None:
        self._data = data  # needs no files; takes the argument like every task

    def train_set(self) -> Samples:
        """``x`` (1438, 1, 8, 8)."""
        return _part(test=False)

    def test_set(self) -> Samples:
        """``x`` (359, 1, 8, 8)."""
        return _part(test=True)


@cache
def _part(*, test: bool) -> Samples:
    """Read once however many nodes there are; nobody writes into it."""
    import torch

    images, labels = _read()
    order = list(range(len(labels)))
    Random(_SPLIT).shuffle(order)
    cut = len(order) // 5
    chosen = order[:cut] if test else order[cut:]
    x = torch.from_numpy(images[chosen]).to(torch.float32).div_(16.0).unsqueeze(1)
    return x.contiguous(), torch.from_numpy(labels[chosen]).to(torch.int64)


def _read() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """All images (1797, 8, 8), 0 to 16, and labels (1797,): scikit-learn's file, read without
    importing the library, which takes over a second; by the library where the file is elsewhere."""
    found = importlib.util.find_spec("sklearn")
    folders = [] if found is None else list(found.submodule_search_locations or [])
    file = Path(*folders[:1], "datasets", "data", "digits.csv.gz")
    if not file.is_file():
        from sklearn.datasets import load_digits

        digits = load_digits()
        return digits.images, digits.target
    table = np.loadtxt(file, delimiter=",")
    return table[:, :-1].reshape(-1, 8, 8), table[:, -1].astype(np.int64)


_MEAN, _DEVIATION = 0.1307, 0.3081
"""Mean and standard deviation of the training set's pixels, scaled to 0-1."""
_UNSIGNED_BYTES = 8
"""The idx format's code for elements of one byte."""


class Mnist:
    """70,000 handwritten digits: 60,000 to learn from, 10,000 to test on; standardised grey
    values."""

    name = "mnist"
    inputs = (1, 28, 28)
    classes = 10

    def __init__(self, data: Path | None = None) -> None:
        self._data = data

    def train_set(self) -> Samples:
        """``train-images-idx3-ubyte`` and ``train-labels-idx1-ubyte``."""
        return self._part("train")

    def test_set(self) -> Samples:
        """``t10k-images-idx3-ubyte`` and ``t10k-labels-idx1-ubyte``."""
        return self._part("t10k")

    def _part(self, prefix: str) -> Samples:
        import torch

        images = self._read(f"{prefix}-images-idx3-ubyte", dimensions=3)
        labels = self._read(f"{prefix}-labels-idx1-ubyte", dimensions=1)
        if len(images) != len(labels):
            raise damaged(
                f"{prefix}-labels-idx1-ubyte", f"{len(labels)} labels, {len(images)} images"
            )
        if images.shape[1:] != self.inputs[1:]:
            raise damaged(
                f"{prefix}-images-idx3-ubyte", f"images of {tuple(images.shape[1:])} pixels"
            )
        if int(labels.max()) >= self.classes:
            raise damaged(f"{prefix}-labels-idx1-ubyte", f"a label is {int(labels.max())}")
        x = images.unsqueeze(1).to(torch.float32).div_(255).sub_(_MEAN).div_(_DEVIATION)
        return x, labels.to(torch.int64)

    def _read(self, name: str, dimensions: int) -> Tensor:
        raw = read(self._data, name, task=self.name, folders=("MNIST/raw", "mnist"), source="MNIST")
        return _idx(name, raw, dimensions)


def _idx(name: str, raw: bytes, dimensions: int) -> Tensor:
    """An idx file's array: two zero bytes, element type, number of dimensions, their sizes,
    elements."""
    import torch

    start = 4 + 4 * dimensions
    if raw[:4] != bytes((0, 0, _UNSIGNED_BYTES, dimensions)) or len(raw) < start:
        raise damaged(name, f"it does not begin like an idx file of {dimensions} dimensions")
    shape = struct.unpack(f">{dimensions}I", raw[4:start])
    if len(raw) - start != math.prod(shape) or 0 in shape:
        raise damaged(name, f"{len(raw) - start} bytes where {math.prod(shape)} should be")
    return torch.frombuffer(bytearray(raw[start:]), dtype=torch.uint8).view(shape)


_PIXELS = 3 * 32 * 32


class Cifar10:
    """60,000 colour images of 10 classes: 50,000 to learn from, 10,000 to test on; standardised."""

    name = "cifar10"
    inputs = (3, 32, 32)
    classes = 10
    label_bytes: ClassVar[int] = 1
    """Bytes before the pixels; the label is the last of them."""
    train_files: ClassVar[tuple[str, ...]] = tuple(f"data_batch_{n}.bin" for n in range(1, 6))
    test_files: ClassVar[tuple[str, ...]] = ("test_batch.bin",)
    folder: ClassVar[str] = "cifar-10-batches-bin"
    source: ClassVar[str] = "CIFAR-10, binary version (cifar-10-binary.tar.gz)"
    mean: ClassVar[tuple[float, float, float]] = (0.4914, 0.4822, 0.4465)
    deviation: ClassVar[tuple[float, float, float]] = (0.2470, 0.2435, 0.2616)

    def __init__(self, data: Path | None = None) -> None:
        self._data = data

    def train_set(self) -> Samples:
        """The records of ``train_files``, in order."""
        return self._part(self.train_files)

    def test_set(self) -> Samples:
        """The records of ``test_files``."""
        return self._part(self.test_files)

    def _part(self, names: tuple[str, ...]) -> Samples:
        import torch

        records = torch.cat([self._records(name) for name in names])
        labels = records[:, self.label_bytes - 1].to(torch.int64)
        if int(labels.max()) >= self.classes:
            raise damaged(names[0], f"a label is {int(labels.max())}")
        x = records[:, self.label_bytes :].to(torch.float32).view(-1, *self.inputs).div_(255)
        per_channel = (1, 3, 1, 1)
        x.sub_(torch.tensor(self.mean).view(per_channel))
        return x.div_(torch.tensor(self.deviation).view(per_channel)), labels

    def _records(self, name: str) -> Tensor:
        """(count, label_bytes + 3072) uint8."""
        import torch

        raw = read(self._data, name, task=self.name, folders=(self.folder,), source=self.source)
        size = self.label_bytes + _PIXELS
        if not raw or len(raw) % size:
            raise damaged(name, f"{len(raw)} bytes are not a whole number of {size}-byte records")
        return torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(-1, size)


class Cifar100(Cifar10):
    """60,000 colour images of 100 classes (the fine labels): 50,000 and 10,000."""

    name = "cifar100"
    classes = 100
    label_bytes = 2
    train_files = ("train.bin",)
    test_files = ("test.bin",)
    folder = "cifar-100-binary"
    source = "CIFAR-100, binary version (cifar-100-binary.tar.gz)"
    mean = (0.5071, 0.4865, 0.4409)
    deviation = (0.2673, 0.2564, 0.2762)


Shape = tuple[int, int, int]
"""Channels, height, width."""

_SEED = 28
_PROTOTYPES = 4
"""Per class."""
_COARSE = 7
"""Side of the random grid that is enlarged to a smooth pattern."""
_DISTURBANCE, _NOISE = 0.26, 0.7
"""Standard deviation of a pixel that comes from disturbances (times the root of the number of
values on the grid, so that images of any size are about as hard to tell apart), and from noise; a
prototype's is 1."""
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
