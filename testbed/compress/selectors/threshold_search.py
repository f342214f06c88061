"""Parts that all selectors with an estimated threshold share: cases with nothing to estimate,
narrowing down candidates, and exact selection among few by digits.

Every read is counted, as a share of the whole vector: what a method costs is part of its result.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil, floor, log
from random import Random
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from testbed.compress import kernels
from testbed.compress.base import AccumulatedGradient, Selection, Sparse, Stateless
from testbed.compress.gradient_stats import element_count
from testbed.compress.kernels.base import Moments, Operations, Workspace
from testbed.compress.kernels.compilation import DIGITS

if TYPE_CHECKING:
    from torch import Tensor


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
    operations: Operations, flat: Tensor, rank: int, digit: int, place: ThresholdPosition
) -> ThresholdPosition:
    """``place`` of ``rank`` with one digit more: number ``digit`` of the radix select. One pass
    over ``flat``."""
    counts = operations.digit_counts(flat, digit, place.bits).numpy()
    from_above = counts[::-1].cumsum()
    steps = int(from_above.searchsorted(rank - place.above))
    value = counts.size - 1 - steps
    tied = int(counts[value])
    above = place.above + int(from_above[steps]) - tied
    return ThresholdPosition(place.bits << DIGITS[digit][1] | value, above, tied)


def chosen(
    operations: Operations, given: Candidates, threshold: float, space: Workspace
) -> Candidates:
    """Those of ``given`` at or above ``threshold``, in ``space``; one pass over ``given``."""
    import torch

    places, values = operations.choose_from(given.values, threshold, space)
    room = space.tensor("chosen", places.numel(), given.indices)
    return Candidates(torch.index_select(given.indices, 0, places, out=room), values)


def parted(given: Candidates, place: ThresholdPosition, count: int) -> Candidates:
    """The first ``count`` of ``given`` (all at or above ``place``), were ties ordered by their
    index."""
    surplus = place.above + place.tied - count
    if not surplus:
        return given
    tied = (given.values.abs() == place.edge(len(DIGITS))).nonzero().flatten()
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
        """Those that differ from ``count`` by less than the share ``tolerance`` of it, and
        ``count``."""
        tolerance = max(0.0, tolerance - _ROUNDING)
        return cls(max(1, ceil(count * (1 - tolerance))), count, floor(count * (1 + tolerance)))

    def holds(self, count: int) -> bool:
        """Return whether ``count`` is one of them."""
        return self.least <= count <= self.most


@dataclass(frozen=True, slots=True)
class Probed:
    """The outcome of ``probed``; ``threshold`` None: no threshold within the window was found."""

    threshold: float | None
    probes: int


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
    return float(sample.kthvalue(sample.numel() - rank + 1).values)


def probed(
    count_from: Callable[[float], int],
    many: tuple[float, int],
    few: tuple[float, int] | None,
    slope: float,
    window: ProbeWindow,
) -> Probed:
    """A threshold between two at or above which there are too ``many`` elements and too ``few``.

    Both are given with these numbers. False position: the logarithm of the number is taken to fall
    in a straight line between them, or, before one with too few is known, by 1 in ``slope``.
    """
    for probes in range(_PROBES):
        threshold = rounded(_between(many, few, slope, window.aim))
        if threshold <= many[0] or (few is not None and threshold >= few[0]):
            return Probed(None, probes)  # ties lie between
        found = count_from(threshold)
        if window.holds(found):
            return Probed(threshold, probes + 1)
        if found < window.least:
            few = (threshold, found)
        else:
            slope, many = 2 * slope, (threshold, found)
    return Probed(None, _PROBES)


def _between(
    many: tuple[float, int], few: tuple[float, int] | None, slope: float, aim: int
) -> float:
    """Where the line has come down to ``aim``; half an element stands for none, which has no
    logarithm."""
    drop = log(many[1] / aim)
    if few is None:
        return many[0] + slope * drop
    return many[0] + (few[0] - many[0]) * drop / log(many[1] / max(few[1], 0.5))


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
        """The magnitude that all elements reach; None where they were not chosen by one
        threshold."""

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
        """Return what is left, as a message.

        Elements that are all of the greatest magnitude are cut to ``count``.
        """
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
        """``threshold`` in float32 and in bounds; those that were cut off come back where it is
        lower."""
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
    """The ``count``-th largest of ``values`` (float32, 1 ≤ ``count`` ≤ length), which are put in
    another order."""
    if values.device.type != "cpu":
        return float(values.topk(count, sorted=False).values.min())
    array, place = values.numpy(), values.numel() - count
    array.partition(place)
    return float(array[place])


class ThresholdEstimator(Stateless, ABC):
    """A selector whose ``narrow`` leaves about as many elements as are asked for.

    At least one element of a vector is sent, and no zeros as long as it has anything else. An
    element below the smallest normal float32 counts as zero.
    """

    exact_below: ClassVar[int] = 1024
    """Vectors of fewer elements are too small for statistics: the largest are chosen exactly."""

    def __init__(self) -> None:
        self._buffers = Buffers()

    def select(self, given: AccumulatedGradient, density: float, rng: Random) -> Sparse:
        """Views buffers that the next call reuses. Dense when every element is asked for."""
        flat = given.flat
        size = flat.numel()
        count = element_count(size, density)
        if count == size:
            return Sparse(size, None, flat, how=Selection(passes=0.0))
        if not given.max_abs:
            return _first_of(given)
        pool = Pool(given, self._buffers)
        if size < self.exact_below:
            pool.keep_largest(count)
        else:
            self.narrow(pool, count, rng)
        return pool.sparse(count)

    @abstractmethod
    def narrow(self, pool: Pool, count: int, rng: Random) -> None:
        """Leave in ``pool``, which has more than ``count`` elements, what is to be sent; at least
        one."""


def _first_of(given: AccumulatedGradient) -> Sparse:
    """One zero, of a vector of nothing else."""
    import torch

    index = torch.zeros(1, dtype=torch.int64, device=given.flat.device)
    return Sparse(given.flat.numel(), index, given.flat[:1].clone(), how=Selection(passes=1.0))
