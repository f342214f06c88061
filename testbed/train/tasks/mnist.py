"""MNIST from its four idx files, plain or gzipped."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import TYPE_CHECKING

from testbed.train.tasks.base import Samples
from testbed.train.tasks.files import damaged, read

if TYPE_CHECKING:
    from torch import Tensor

_MEAN, _DEVIATION = 0.1307, 0.3081
"""Of the training set's pixels, scaled to 0-1."""
_UNSIGNED_BYTES = 8
"""The idx format's code for elements of one byte."""


class Mnist:
    """70,000 handwritten digits: 60,000 to learn from, 10,000 to test on; standardised grey values."""

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
    """An idx file's array: two zero bytes, element type, number of dimensions, their sizes, elements."""
    import torch

    start = 4 + 4 * dimensions
    if raw[:4] != bytes((0, 0, _UNSIGNED_BYTES, dimensions)) or len(raw) < start:
        raise damaged(name, f"it does not begin like an idx file of {dimensions} dimensions")
    shape = struct.unpack(f">{dimensions}I", raw[4:start])
    if len(raw) - start != math.prod(shape) or 0 in shape:
        raise damaged(name, f"{len(raw) - start} bytes where {math.prod(shape)} should be")
    return torch.frombuffer(bytearray(raw[start:]), dtype=torch.uint8).view(shape)
