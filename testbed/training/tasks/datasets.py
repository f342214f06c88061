"""The data sets that ship: digits of scikit-learn, MNIST-1D, made by its package, MNIST, CIFAR-10
and CIFAR-100 from their files, and made-up images.

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
from abc import ABC, abstractmethod
from functools import cache, lru_cache
from pathlib import Path
from random import Random, getstate, setstate
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from testbed.training.tasks.base import DataFiles, Download, Samples, damaged, read

if TYPE_CHECKING:
    from torch import Generator, Tensor


_SPLIT = 20
"""Fixes which samples are for testing; not a setting, so that results stay comparable."""


class LabelledImages(ABC):
    """A task in its two sets. ``data``: directory of its files, if it needs any."""

    def __init__(self, data: Path | None = None) -> None:
        self._data = data

    def train_set(self) -> Samples:
        """Return the samples to learn from. Not to be written to."""
        return self._part(test=False)

    def test_set(self) -> Samples:
        """Return the samples to test on. Not to be written to."""
        return self._part(test=True)

    @abstractmethod
    def _part(self, *, test: bool) -> Samples: ...


class Digits(LabelledImages):
    """1,797 digits of 43 writers (UCI ML hand-written digits), grey values scaled to 0-1: 1,438 to
    learn from, 359 to test on, the same for everybody."""

    name = "digits"
    inputs = (1, 8, 8)
    classes = 10

    def _part(self, *, test: bool) -> Samples:
        return _digits(test=test)


@cache
def _digits(*, test: bool) -> Samples:
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
    library = importlib.util.find_spec("sklearn")
    folders = [] if library is None else list(library.submodule_search_locations or [])
    file = Path(*folders[:1], "datasets", "data", "digits.csv.gz")
    if not file.is_file():
        from sklearn.datasets import load_digits

        digits = load_digits()
        return digits.images, digits.target
    table = np.loadtxt(file, delimiter=",")
    return table[:, :-1].reshape(-1, 8, 8), table[:, -1].astype(np.int64)


class Mnist1d(LabelledImages):
    """MNIST-1D (Greydanus and Kobak 2024): 40 values of a digit's outline, moved, bent and noisy.

    The published 4,000 samples to learn from. To test on: the published 1,000, then 9,000 more of
    the same process, so that a difference in accuracy is more than chance sooner.
    """

    name = "mnist1d"
    inputs = (1, 1, 40)
    classes = 10

    def _part(self, *, test: bool) -> Samples:
        return _mnist1d(test=test)


_PUBLISHED = 42
"""Seed of the published samples."""
_MORE = 9_000


@cache
def _mnist1d(*, test: bool) -> Samples:
    """Made once however many nodes there are; nobody writes into it."""
    import torch

    parts = [_signals(_PUBLISHED)]
    if test:
        parts.append(_signals(_PUBLISHED + 1, num_samples=_MORE, train_split=0.0))
    ending = "_test" if test else ""
    x, y = (np.concatenate([part[name + ending] for part in parts]) for name in "xy")
    signals = torch.from_numpy(x).to(torch.float32).view(-1, *Mnist1d.inputs)
    return signals, torch.from_numpy(y).to(torch.int64)


def _signals(seed: int, **change: float) -> dict[str, NDArray[Any]]:
    """Return what the package makes. It draws from the global generators: they are as before when
    this returns."""
    from mnist1d.data import get_dataset_args, make_dataset

    arguments = get_dataset_args()
    vars(arguments).update(change, seed=seed)
    generators = getstate(), np.random.get_state()
    try:
        signals: dict[str, NDArray[Any]] = make_dataset(arguments)
    finally:
        setstate(generators[0])
        np.random.set_state(generators[1])
    return signals


_MEAN, _DEVIATION = 0.1307, 0.3081
"""Mean and standard deviation of the training set's pixels, scaled to 0-1."""
_UNSIGNED_BYTES = 8
"""The idx format's code for elements of one byte."""


class Mnist(LabelledImages):
    """70,000 handwritten digits: 60,000 to learn from, 10,000 to test on; standardised greys."""

    name = "mnist"
    inputs = (1, 28, 28)
    classes = 10
    files = DataFiles(
        source="MNIST",
        folders=("MNIST/raw", "mnist"),
        servers=(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
        downloads=(
            Download(
                "train-images-idx3-ubyte.gz",
                9_912_422,
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            ),
            Download(
                "train-labels-idx1-ubyte.gz",
                28_881,
                "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            ),
            Download(
                "t10k-images-idx3-ubyte.gz",
                1_648_877,
                "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            ),
            Download(
                "t10k-labels-idx1-ubyte.gz",
                4_542,
                "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            ),
        ),
        sums={
            "train-images-idx3-ubyte": (
                "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"
            ),
            "train-labels-idx1-ubyte": (
                "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"
            ),
            "t10k-images-idx3-ubyte": (
                "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"
            ),
            "t10k-labels-idx1-ubyte": (
                "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"
            ),
        },
    )

    def _part(self, *, test: bool) -> Samples:
        import torch

        prefix = "t10k" if test else "train"
        images_name, labels_name = f"{prefix}-images-idx3-ubyte", f"{prefix}-labels-idx1-ubyte"
        images = self._read(images_name, dimensions=3)
        labels = self._read(labels_name, dimensions=1)
        if len(images) != len(labels):
            raise damaged(labels_name, f"{len(labels)} labels, {len(images)} images")
        if images.shape[1:] != self.inputs[1:]:
            raise damaged(images_name, f"images of {tuple(images.shape[1:])} pixels")
        if int(labels.max()) >= self.classes:
            raise damaged(labels_name, f"a label is {int(labels.max())}")
        x = images.unsqueeze(1).to(torch.float32).div_(255).sub_(_MEAN).div_(_DEVIATION)
        return x, labels.to(torch.int64)

    def _read(self, name: str, dimensions: int) -> Tensor:
        raw = read(self._data, name, task=self.name, files=self.files)
        return _idx(name, raw, dimensions)


def _idx(name: str, raw: bytes, dimensions: int) -> Tensor:
    """An idx file's array: two zero bytes, element type, dimensions, their sizes, elements."""
    import torch

    start = 4 + 4 * dimensions
    if raw[:4] != bytes((0, 0, _UNSIGNED_BYTES, dimensions)) or len(raw) < start:
        raise damaged(name, f"it does not begin like an idx file of {dimensions} dimensions")
    shape = struct.unpack(f">{dimensions}I", raw[4:start])
    if len(raw) - start != math.prod(shape) or 0 in shape:
        raise damaged(name, f"{len(raw) - start} bytes where {math.prod(shape)} should be")
    return torch.frombuffer(bytearray(raw[start:]), dtype=torch.uint8).view(shape)


_PIXELS = 3 * 32 * 32
_TORONTO = ("https://www.cs.toronto.edu/~kriz/",)


class Cifar10(LabelledImages):
    """60,000 colour images of 10 classes: 50,000 to learn from, 10,000 to test on; standardised."""

    name = "cifar10"
    inputs = (3, 32, 32)
    classes = 10
    label_bytes: ClassVar[int] = 1
    """Bytes before the pixels; the label is the last of them."""
    train_files: ClassVar[tuple[str, ...]] = tuple(f"data_batch_{n}.bin" for n in range(1, 6))
    test_files: ClassVar[tuple[str, ...]] = ("test_batch.bin",)
    files: ClassVar[DataFiles] = DataFiles(
        source="CIFAR-10, binary version",
        folders=("cifar-10-batches-bin",),
        servers=_TORONTO,
        downloads=(
            Download(
                "cifar-10-binary.tar.gz",
                170_052_171,
                "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
            ),
        ),
        sums={
            "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
            "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
            "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
            "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
            "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
            "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
        },
    )
    mean: ClassVar[tuple[float, float, float]] = (0.4914, 0.4822, 0.4465)
    deviation: ClassVar[tuple[float, float, float]] = (0.2470, 0.2435, 0.2616)

    def _part(self, *, test: bool) -> Samples:
        import torch

        names = self.test_files if test else self.train_files
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

        raw = read(self._data, name, task=self.name, files=self.files)
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
    files = DataFiles(
        source="CIFAR-100, binary version",
        folders=("cifar-100-binary",),
        servers=_TORONTO,
        downloads=(
            Download(
                "cifar-100-binary.tar.gz",
                168_513_733,
                "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
            ),
        ),
        sums={
            "train.bin": "f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29",
            "test.bin": "d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a",
        },
    )
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


class Synthetic(LabelledImages):
    """MNIST-shaped: 20,000 samples to learn from and 20,000 to test on.

    About zero mean and unit variance; every label of the test set is right.
    """

    name = "synthetic"
    inputs = (1, 28, 28)
    classes = 10
    train_count, test_count = 20_000, 20_000

    def _part(self, *, test: bool) -> Samples:
        count = self.test_count if test else self.train_count
        return _synthetic(self.inputs, self.classes, count, test=test)


class SyntheticCifar(Synthetic):
    """CIFAR-shaped: 10,000 samples to learn from and 20,000 to test on."""

    name = "synthetic-cifar"
    inputs = (3, 32, 32)
    train_count = 10_000


@lru_cache(maxsize=2)  # runs that follow one another in a process have the same samples
def _synthetic(inputs: Shape, classes: int, count: int, *, test: bool) -> Samples:
    import torch

    world = torch.Generator().manual_seed(_SEED)
    prototypes = _smooth(classes * _PROTOTYPES, inputs, world)
    freedom = inputs[0] * _COARSE**2
    disturbances = _smooth(2 * freedom, inputs, world)
    generator = torch.Generator().manual_seed(_SEED + (2 if test else 1))
    y = torch.randint(classes, (count,), generator=generator)
    kind = y * _PROTOTYPES + torch.randint(_PROTOTYPES, (count,), generator=generator)
    weights = torch.randn(count, 2 * freedom, generator=generator)
    x = torch.randn(count, disturbances.shape[1], generator=generator).mul_(_NOISE)
    deviation = _DISTURBANCE * freedom**0.5
    x.addmm_(weights, disturbances, alpha=deviation / (2 * freedom) ** 0.5)
    x.add_(prototypes[kind]).div_((1 + deviation**2 + _NOISE**2) ** 0.5)
    if not test:
        wrong = torch.rand(count, generator=generator) < _WRONG
        y = torch.where(wrong, torch.randint(classes, (count,), generator=generator), y)
    return x.view(count, *inputs), y


def _smooth(count: int, inputs: Shape, generator: Generator) -> Tensor:
    """``count`` random smooth patterns of unit variance, (count, channels · height · width)."""
    import torch
    from torch.nn.functional import interpolate

    channels, height, width = inputs
    coarse = torch.randn(count, channels, _COARSE, _COARSE, generator=generator)
    fine = interpolate(coarse, (height, width), mode="bilinear", align_corners=True).flatten(1)
    return (fine - fine.mean(1, keepdim=True)) / fine.std(1, keepdim=True)


SHIPPED = (Digits, Mnist1d, Synthetic, SyntheticCifar, Mnist, Cifar10, Cifar100)
