"""Which elements of a vector any message of a round had: the union, ascending, where the sums are kept."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from testbed.compress.indices import Indices, refuse
from testbed.compress.payload import Scratch


class Support(Protocol):
    """A set of elements of one vector. Indices are int64, strictly ascending."""

    def add(self, indices: Tensor) -> None:
        """Take in ``indices``. Raises WireError unless they ascend in [0, size)."""
        ...

    def count(self) -> int:
        """Elements in it."""
        ...

    def indices(self) -> Tensor:
        """All of them; holds until the set is changed."""
        ...

    def clear(self) -> None:
        """Empty it."""
        ...


def support(size: int, device: torch.device) -> Support:
    """An empty set of elements of a vector of ``size``."""
    return HostSupport(size) if device.type == "cpu" else DeviceSupport(size, device)


class HostSupport:
    """A bit for each element."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._words = np.zeros(-(-size // 64), np.uint64)
        self._scratch = Scratch()
        self._found: Indices | None = None

    def add(self, indices: Tensor) -> None:
        """Set their bits."""
        from testbed.compress.kernels import loops_index

        given = np.ascontiguousarray(indices.numpy())
        self._found = None
        if not loops_index.bitmap_add(self._words, given, self._size):
            refuse(given, self._size)

    def count(self) -> int:
        """Bits that are set."""
        from testbed.compress.kernels import loops_index

        if self._found is not None:
            return self._found.size
        return int(loops_index.count_ones(self._words))

    def indices(self) -> Tensor:
        """In a buffer that is used again after the next change."""
        from testbed.compress.kernels import loops_index

        if self._found is None:
            self._found = self._scratch.array("indices", self.count(), np.int64)
            loops_index.bitmap_read(self._words, self._found)
        return torch.from_numpy(self._found)

    def clear(self) -> None:
        """No bit is set."""
        self._words.fill(0)
        self._found = None


class DeviceSupport:
    """A byte for each element, on an accelerator."""

    def __init__(self, size: int, device: torch.device) -> None:
        self._marks = torch.zeros(size, dtype=torch.bool, device=device)

    def add(self, indices: Tensor) -> None:
        """An index outside is the device's error."""
        self._marks.index_fill_(0, indices, 1)

    def count(self) -> int:
        """Marks that are set."""
        return int(self._marks.count_nonzero())

    def indices(self) -> Tensor:
        """A new tensor: an accelerator's allocator has memory of the last call ready."""
        return self._marks.nonzero().flatten()

    def clear(self) -> None:
        """No mark is set."""
        self._marks.zero_()
