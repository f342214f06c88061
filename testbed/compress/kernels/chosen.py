"""Buffers for what a thread chooses, grown as they fill, and put together in the end."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from testbed.compress.kernels import Workspace, loops_choose
from testbed.compress.kernels.grid import BLOCK

_FIRST_SHARE = 32
"""A buffer begins with room for one in so many; what a training needs is known after its first step."""
_INDICES, _VALUES = torch.empty(0, dtype=torch.int64), torch.empty(0)


class Chosen:
    """Elements that thread ``number`` found among ``size``: indices and values, ``count`` of them."""

    def __init__(self, space: Workspace, number: int, size: int) -> None:
        self._space, self._names = space, (f"indices {number}", f"values {number}")
        self.count = 0
        least = size // _FIRST_SHARE + 2 * BLOCK
        for name, like in zip(self._names, (_INDICES, _VALUES), strict=True):
            space.whole(name, least, like)

    def room(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """All of both buffers, of the same length."""
        indices, values = (self._space.tensors[name].numpy() for name in self._names)
        length = min(indices.size, values.size)
        return indices[:length], values[:length]

    def take(self, flat: NDArray[np.float32], threshold: np.float32, base: int) -> None:
        """Append each |x| ≥ ``threshold`` of ``flat``, whose first element has index ``base``."""
        done = 0
        while done < flat.size:
            come, self.count = loops_choose.choose(
                flat[done:], threshold, base + done, *self.room(), self.count
            )
            done += come
            if done < flat.size:
                self.grow(2 * len(self.room()[0]))

    def grow(self, least: int) -> None:
        """Room for ``least`` elements; those that are there stay."""
        for name in self._names:
            self._space.grown(name, least, self.count)

    def found(self) -> tuple[Tensor, Tensor]:
        """Indices and values."""
        indices, values = (self._space.tensors[name][: self.count] for name in self._names)
        return indices, values

    def append(self, other: Chosen) -> None:
        """Another thread's, which come after these."""
        first, self.count = self.count, self.count + other.count
        for own, more in zip(self.found(), other.found(), strict=True):
            own[first:] = more


def joined(found: list[Chosen]) -> tuple[Tensor, Tensor]:
    """All that was found, in the first one's buffers."""
    whole, *others = found
    whole.grow(sum(one.count for one in found))
    for other in others:
        whole.append(other)
    return whole.found()
