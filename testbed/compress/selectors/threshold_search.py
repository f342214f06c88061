"""Parts that all selectors with an estimated threshold share: cases with nothing to estimate,
narrowing down candidates, and exact selection among few by digits.

Every read is counted, as a share of the whole vector: what a method costs is part of its result.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil, floor, log
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from testbed.compress import kernels
from testbed.compress.base import AccumulatedGradient, Given, Selection, Sparse
from testbed.compress.kernels.base import Fetching, Moments, Workspace, fetched
from testbed.compress.kernels.compilation import DIGITS
from testbed.compress.selectors import CountSelector

if TYPE_CHECKING:
    from torch import Tensor

    from testbed.compress.kernels.torch_ops import Operations


LEAST_MAGNITUDE = float(np.finfo(np.float32).smallest_subnormal)
"""The least float32 above 0: a threshold that leaves out zeros alone."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """All elements at or above some magnitude: ``indices`` int64 (c,) ascending, ``values`` float32
    (c,)."""

    indices: Tensor
    values: Tensor

    @property
    def count(self) -> int:
        """How many there are."""
        return int(self.values.numel())


@dataclass(frozen=True, slots=True)
class ThresholdPosition:
    """Where some rank lies, the greatest magnitude having rank 1: the leading bits of its
    magnitude.

    ``above`` elements have greater leading bits, ``tied`` have the same.
    """

    bits: int = 0
    above: int = 0
    tied: int = 0

    def edge(self, digits: int) -> float:
        """The least magnitude that begins with ``bits``, which are the first ``digits`` digits."""
        return float(np.uint32(self.bits << DIGITS[digits - 1][0]).view(np.float32))


def narrowed(
    operations: Operations, flat: Tensor, rank: int, digit: int, position: ThresholdPosition
) -> ThresholdPosition:
    """``position`` of ``rank`` with digit number ``digit`` more; one pass over ``flat``."""
    return fetched(narrowing(operations, flat, rank, digit, position))


def narrowing(
    operations: Operations, flat: Tensor, rank: int, digit: int, position: ThresholdPosition
) -> Fetching[ThresholdPosition]:
    """``narrowed``, for which others can be waited for too."""
    counts = (yield from operations.counting_digits(flat, digit, position.bits)).numpy()
    from_above = counts[::-1].cumsum()
    steps = int(from_above.searchsorted(rank - position.above))
    value = counts.size - 1 - steps
    tied = int(counts[value])
    above = position.above + int(from_above[steps]) - tied
    return ThresholdPosition(position.bits << DIGITS[digit][1] | value, above, tied)


def chosen(
    operations: Operations, given: Candidates, threshold: float, space: Workspace
) -> Candidates:
    """Those of ``given`` at or above ``threshold``, in ``space``; one pass over ``given``."""
    import torch

    positions, values = operations.select_above(given.values, threshold, space)
    room = space.tensor("chosen", positions.numel(), given.indices)
    return Candidates(torch.index_select(given.indices, 0, positions, out=room), values)


def parted(given: Candidates, position: ThresholdPosition, count: int) -> Candidates:
    """The first ``count`` of ``given`` (all at or above ``position``), were ties ordered by their
    index."""
    surplus = position.above + position.tied - count
    if not surplus:
        return given
    tied = (given.values.abs() == position.edge(len(DIGITS))).nonzero().flatten()
    keep = given.indices.new_ones(given.count).bool()
    keep[tied[tied.numel() - surplus :]] = False
    return Candidates(given.indices[keep], given.values[keep])


_GREATEST = float(np.finfo(np.float32).max)
_PROBES, _SAMPLE = 4, 8192
_ROUNDING = 1e-9
"""Keeps a share that is worked out from the number within the tolerance, too."""


@dataclass(frozen=True, slots=True)
class ProbeWindow:
    """The numbers of elements that are right."""

    least: int
    aim: int
    most: int

    @classmethod
    def around(cls, count: int, tolerance: float) -> ProbeWindow:
        """Those that differ from ``count`` by less than the share ``tolerance``, and ``count``."""
        tolerance = max(0.0, tolerance - _ROUNDING)
        return cls(max(1, ceil(count * (1 - tolerance))), count, floor(count * (1 + tolerance)))

    def holds(self, count: int) -> bool:
        """Return whether ``count`` is one of them."""
        return self.least <= count <= self.most


def guessed(given: Candidates, low: float, slope: float, aim: int) -> float:
    """A threshold that about ``aim`` of ``given``, which are all from ``low`` on, are above.

    Of many, that of a sample, one in so many (at most twice ``_SAMPLE``); of few, where the
    logarithm of their number has come down to that of ``aim``, falling by 1 in ``slope``.
    """
    stride = given.count // _SAMPLE
    if stride < 2:
        return rounded(low + slope * log(given.count / aim))
    sample = given.values[::stride].abs()
    rank = min(max(1, round(sample.numel() * aim / given.count)), sample.numel())
    return kth_largest(sample, rank)


def probe(
    count_above: Callable[[float], int],
    above: tuple[float, int],
    below: tuple[float, int] | None,
    slope: float,
    window: ProbeWindow,
) -> tuple[float | None, int]:
    """A threshold that leaves a number within the window (None: not found), and probes made.

    ``above``: a threshold that leaves too many, and how many; ``below``: one that leaves too few.
    False position: the logarithm of the number is taken to fall in a straight line between them,
    or, before one with too few is known, by 1 in ``slope``.
    """
    for probes in range(_PROBES):
        threshold = rounded(_between(above, below, slope, window.aim))
        if threshold <= above[0] or (below is not None and threshold >= below[0]):
            return None, probes  # ties lie between
        count = count_above(threshold)
        if window.holds(count):
            return threshold, probes + 1
        if count < window.least:
            below = (threshold, count)
        else:
            slope, above = 2 * slope, (threshold, count)
    return None, _PROBES


def _between(
    above: tuple[float, int], below: tuple[float, int] | None, slope: float, aim: int
) -> float:
    """Where the line has come down to ``aim``; half an element stands for none."""
    drop = log(above[1] / aim)
    if below is None:
        return above[0] + slope * drop
    return above[0] + (below[0] - above[0]) * drop / log(above[1] / max(below[1], 0.5))


def rounded(threshold: float) -> float:
    """As float32, in which magnitudes are compared; at most its greatest number."""
    return float(np.float32(min(threshold, _GREATEST)))


LEAST = 2.0**-126
"""Least threshold: the smallest normal float32. Zeros (and what is nearly zero) are never sent."""


@dataclass(frozen=True, slots=True)
class Buffers:
    """Buffers that one selector keeps from step to step: survivors change sides at every cut."""

    sides: tuple[Workspace, Workspace] = field(default_factory=lambda: (Workspace(), Workspace()))
    scratch: Workspace = field(default_factory=Workspace)


class Pool:
    """All elements of ``given`` at first; ``cut`` leaves those that reach a threshold.

    ``values`` float32 (m,), ``indices`` int64 (m,) ascending (None: all); both may view the
    buffers. ``passes`` counts full reads of the vector, the one that made ``given``'s statistics
    included.
    """

    def __init__(self, given: AccumulatedGradient, buffers: Buffers) -> None:
        self.given, self._buffers = given, buffers
        self.size, self.passes = given.flat.numel(), 1.0
        self._operations, self._side = kernels.of(given.flat), 0
        self.values: Tensor = given.flat
        self.indices: Tensor | None = None
        self.floor: float | None = 0.0
        """The magnitude that all elements reach; None where no single threshold chose them."""

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
        """Return the moments of the magnitudes of the elements left."""
        self.read()
        return self._operations.moments(self.values)

    def count_above(self, threshold: float) -> int:
        """How many elements of the whole vector reach ``threshold``."""
        threshold = self._reach(threshold)
        self.read()
        return self._operations.count_above(self.values, threshold)

    def cut(self, threshold: float) -> int:
        """Leave those elements of the whole vector that reach ``threshold``; how many they are.

        The threshold is moved to where at least one element does, and no zero.
        """
        threshold = self._reach(threshold)
        self.read()
        self._side = 1 - self._side
        side = self._buffers.sides[self._side]
        indices, values = self._operations.select_above(self.values, threshold, side)
        if self.indices is not None:
            indices = self._original(indices, side)
        self.values, self.indices, self.floor = values, indices, threshold
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
        """Return what is left, as a message.

        Elements that are all of the greatest magnitude are cut to ``count``.
        """
        if self.floor == self.given.max_abs and self.count > count:
            self.values = self.values[:count]
            self.indices = None if self.indices is None else self.indices[:count]
        selection = Selection(self.passes, self.floor or None, self._ties())
        return Sparse(self.size, self.indices, self.values, selection=selection)

    def _ties(self) -> int:
        if not self.floor:
            return 0
        with np.errstate(over="ignore"):  # infinity comes after the greatest number
            above = float(np.nextafter(np.float32(self.floor), np.float32(np.inf)))
        return max(0, self.count - self._operations.count_above(self.values, above) - 1)

    def _reach(self, threshold: float) -> float:
        """``threshold`` in float32 and in bounds; what was cut off comes back where it is lower."""
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
    """The ``count``-th largest of ``values`` (float32, not empty), which are reordered."""
    if values.device.type != "cpu":
        return float(values.topk(count, sorted=False).values.min())
    array, rank = values.numpy(), values.numel() - count
    array.partition(rank)
    return float(array[rank])


class ThresholdEstimator(CountSelector[Given]):
    """A selector whose ``narrow`` leaves about as many elements as are asked for.

    At least one element of a vector is sent, and no zeros as long as it has anything else. An
    element below the smallest normal float32 counts as zero.
    """

    exact_below: ClassVar[int] = 1024
    """Vectors of fewer elements are too small for statistics: the largest are chosen exactly."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._buffers = Buffers()

    def choose(self, given: AccumulatedGradient, count: int, rng: Random) -> Sparse:
        """About ``count`` elements; one zero of a vector of nothing else."""
        if not given.max_abs:
            index, zero = given.flat.new_zeros(1).long(), given.flat[:1].clone()
            return Sparse(given.flat.numel(), index, zero, selection=Selection(passes=1.0))
        pool = Pool(given, self._buffers)
        if pool.size < self.exact_below:
            pool.keep_largest(count)
        else:
            self.narrow(pool, count, rng)
        return pool.sparse(count)

    @abstractmethod
    def narrow(self, pool: Pool, count: int, rng: Random) -> None:
        """Leave in ``pool``, which has more than ``count`` elements, what to send; at least one."""
