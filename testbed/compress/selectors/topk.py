"""Exact top-k, by ``torch.topk`` or radix select (as the Laplacian-threshold paper's baseline has
it), and the selector that sends everything.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, ClassVar

from testbed.compress import kernels
from testbed.compress.base import AccumulatedGradient, Selection, Sparse, Stateless
from testbed.compress.gradient_stats import check_density, element_count
from testbed.compress.kernels.base import Workspace
from testbed.compress.kernels.compilation import DIGITS
from testbed.compress.selectors.threshold_search import (
    Candidates,
    ThresholdPosition,
    chosen,
    narrowed,
    parted,
)

if TYPE_CHECKING:
    from torch import Tensor


PASSES = 3.0
"""Magnitudes, ``torch.topk`` (which reads them more than once), and the scan; statistics are not
used."""


class TopK(Stateless):
    """The ``round(density · n)`` elements of greatest magnitude; of equal ones the first in the
    vector.

    The rule for ties makes the choice a function of the vector alone, on every device.
    """

    def select(self, given: AccumulatedGradient, density: float, rng: Random) -> Sparse:
        """Dense when every element is asked for."""
        del rng
        flat = given.flat
        size = flat.numel()
        count = element_count(size, density)
        if count == size:
            return Sparse(size, None, flat, how=Selection(passes=0.0))
        indices, how = _largest(flat.abs(), count)
        return Sparse(size, indices, flat[indices], how=how)


def _largest(magnitudes: Tensor, count: int) -> tuple[Tensor, Selection]:
    """Ascending int64 indices of the ``count`` largest; scanning for them needs no sort."""
    threshold = magnitudes.topk(count, sorted=False).values.min()
    indices = (magnitudes >= threshold).nonzero().flatten()
    tied = (magnitudes[indices] == threshold).nonzero().flatten()
    surplus = indices.numel() - count
    if surplus:
        keep = indices.new_ones(indices.numel()).bool()
        keep[tied[tied.numel() - surplus :]] = False
        indices = indices[keep]
    return indices, Selection(PASSES, float(threshold), tied.numel() - 1)


class Dense(Stateless):
    """All elements, whatever the density."""

    takes_density: ClassVar[bool] = False

    def select(self, given: AccumulatedGradient, density: float, rng: Random) -> Sparse:
        """The values are the given vector itself, not a copy."""
        del rng
        check_density(density)
        return Sparse(given.flat.numel(), None, given.flat, how=Selection(passes=0.0))


class Radix(Stateless):
    """The ``round(density · n)`` elements of greatest magnitude; of equal ones the first, as
    ``TopK``.

    As integers, the 31 bits of magnitudes are ordered as the numbers are. They are taken in digits
    of 11, 11 and 9 bits: one pass counts the values of the first digit, which tells the one that
    the least chosen element has; one pass takes out all elements from there up; what is left of the
    digits is looked for among these.
    """

    def __init__(self) -> None:
        self._left, self._kept = Workspace(), Workspace()

    def select(self, given: AccumulatedGradient, density: float, rng: Random) -> Sparse:
        """Dense when every element is asked for. The statistics are not used."""
        del rng
        flat = given.flat
        size = flat.numel()
        count = element_count(size, density)
        if count == size:
            return Sparse(size, None, flat, how=Selection(passes=0.0))
        operations = kernels.of(flat)
        place = narrowed(operations, flat, count, 0, ThresholdPosition())
        left = Candidates(*operations.choose_from(flat, place.edge(1), self._left))
        for digit in range(1, len(DIGITS)):
            place = narrowed(operations, left.values, count, digit, place)
        threshold = place.edge(len(DIGITS))
        sent = parted(chosen(operations, left, threshold, self._kept), place, count)
        passes = 2 + len(DIGITS) * left.count / size
        return Sparse(
            size, sent.indices, sent.values, how=Selection(passes, threshold, place.tied - 1)
        )
