"""The elements of a vector that are still in question while a selector looks for its threshold.

Every read is counted, as a share of the whole vector: what a method costs is part of its result.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from testbed.compress import kernels
from testbed.compress.base import Compensated, Selection, Sparse
from testbed.compress.kernels import Moments, Workspace

if TYPE_CHECKING:
    from torch import Tensor

LEAST = 2.0**-126
"""Least threshold: the smallest normal float32. Zeros (and what is nearly zero) are never sent."""


@dataclass(frozen=True, slots=True)
class Buffers:
    """What one selector keeps from step to step: survivors change sides at every cut."""

    sides: tuple[Workspace, Workspace] = field(default_factory=lambda: (Workspace(), Workspace()))
    scratch: Workspace = field(default_factory=Workspace)


class Pool:
    """All elements of ``given`` at first; ``cut`` leaves those that reach a threshold.

    ``values`` float32 (m,), ``indices`` int64 (m,) ascending (None: all); both may view the buffers.
    ``passes`` counts full reads of the vector, the one that made ``given``'s statistics included.
    """

    def __init__(self, given: Compensated, buffers: Buffers) -> None:
        self.given, self._buffers = given, buffers
        self.size, self.passes = given.flat.numel(), 1.0
        self._operations, self._side = kernels.of(given.flat), 0
        self.values: Tensor = given.flat
        self.indices: Tensor | None = None
        self.floor: float | None = 0.0
        """What all elements reach; None where they were not chosen by one threshold."""

    @property
    def count(self) -> int:
        """Elements left."""
        return self.values.numel()

    def read(self, times: float = 1.0) -> None:
        """Count that the elements left are read."""
        self.passes += times * self.count / self.size

    def sum_abs(self) -> float:
        """Σ|x| of the elements left; of all elements it is known."""
        if self.indices is None:
            return self.given.sum_abs
        self.read()
        return self._operations.measure(self.values).sum_abs

    def moments(self) -> Moments:
        """Of the magnitudes of the elements left."""
        self.read()
        return self._operations.moments(self.values)

    def count_from(self, threshold: float) -> int:
        """How many elements of the whole vector reach ``threshold``."""
        threshold = self._reach(threshold)
        self.read()
        return self._operations.count_from(self.values, threshold)

    def cut(self, threshold: float) -> int:
        """Leave those elements of the whole vector that reach ``threshold``; how many they are.

        The threshold is moved to where at least one element does, and no zero.
        """
        threshold = self._reach(threshold)
        self.read()
        self._side = 1 - self._side
        side = self._buffers.sides[self._side]
        found, values = self._operations.choose_from(self.values, threshold, side)
        if self.indices is not None:
            found = self._original(found, side)
        self.values, self.indices, self.floor = values, found, threshold
        return self.count

    def keep_largest(self, count: int) -> None:
        """Leave the ``count`` of greatest magnitude, of equal ones the first; no zeros."""
        import torch

        if self.count <= count:
            return
        magnitudes = self.scratch("magnitudes", self.count)
        torch.abs(self.values, out=magnitudes)
        threshold = kth_largest(magnitudes, count)
        self.read(2)  # to copy and to part them
        surplus = self.cut(threshold) - count
        if surplus > 0:
            tied = (self.values.abs() == threshold).nonzero().flatten()
            kept = self.values.new_ones(self.count, dtype=torch.bool)
            kept[tied[-surplus:]] = False
            self._only(kept.nonzero().flatten())

    def keep(self, positions: Tensor) -> None:
        """Leave the elements at ``positions`` (int64, ascending) among those left."""
        self._only(positions)
        self.floor = None

    def scratch(self, name: str, count: int) -> Tensor:
        """float32 (``count``,), undefined, beside the survivors' buffers."""
        return self._buffers.scratch.tensor(name, count, self.given.flat)

    def sparse(self, count: int) -> Sparse:
        """What is left, as a message. Elements that are all of the greatest magnitude are cut to ``count``."""
        if self.floor == self.given.max_abs and self.count > count:
            self.values = self.values[:count]
            self.indices = None if self.indices is None else self.indices[:count]
        how = Selection(self.passes, self.floor or None, self._ties())
        return Sparse(self.size, self.indices, self.values, how=how)

    def _ties(self) -> int:
        if not self.floor:
            return 0
        with np.errstate(over="ignore"):  # infinity comes after the greatest number
            above = float(np.nextafter(np.float32(self.floor), np.float32(np.inf)))
        return max(0, self.count - self._operations.count_from(self.values, above) - 1)

    def _reach(self, threshold: float) -> float:
        """``threshold`` in float32 and in bounds; those that were cut off come back where it is lower."""
        largest = self.given.max_abs
        threshold = max(LEAST, threshold) if threshold < largest else largest  # NaN: the largest
        threshold = min(largest, float(np.float32(threshold)))
        if self.floor is None or threshold < self.floor:
            self.values, self.indices, self.floor = self.given.flat, None, 0.0
        return threshold

    def _original(self, positions: Tensor, side: Workspace) -> Tensor:
        import torch

        assert self.indices is not None
        out = side.tensor("original", positions.numel(), self.indices)
        return torch.index_select(self.indices, 0, positions, out=out)

    def _only(self, positions: Tensor) -> None:
        self.values = self.values[positions]
        self.indices = positions if self.indices is None else self.indices[positions]


def kth_largest(values: Tensor, count: int) -> float:
    """The ``count``-th largest of ``values`` (float32, 1 ≤ ``count`` ≤ length), which are put in another order."""
    if values.device.type != "cpu":
        return float(values.topk(count, sorted=False).values.min())
    array, place = values.numpy(), values.numel() - count
    array.partition(place)
    return float(array[place])
