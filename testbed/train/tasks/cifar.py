"""CIFAR-10 and CIFAR-100 from the binary version of their files.

The Python version is a pickle, which can run anything when it is read, so it is not read here.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from testbed.train.tasks.base import Samples
from testbed.train.tasks.files import damaged, read

if TYPE_CHECKING:
    from torch import Tensor

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
