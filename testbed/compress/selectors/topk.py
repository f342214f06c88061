"""Exact top-k, by ``torch.topk`` or radix select (as the Laplacian-threshold paper's baseline has
it), and the selector that sends everything.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

from testbed.compress import kernels
from testbed.compress.base import AccumulatedGradient, Options, Selection, Selector, Sparse
from testbed.compress.gradient_stats import check_density
from testbed.compress.kernels.base import Fetching, Workspace
from testbed.compress.kernels.compilation import DIGITS
from testbed.compress.selectors import CountSelector, whole
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


class TopK(CountSelector[Options]):
    """The ``round(density · n)`` elements of greatest magnitude; of equal ones the first in the
    vector.

    It is ``torch.topk`` that chooses; ``Radix`` makes the same choice by compiled kernels. The rule
    for ties makes the choice a function of the vector alone, on every device.
    """

    name = "topk"

    def choose(self, given: AccumulatedGradient, count: int, rng: Random) -> Sparse:
        """Choose by ``torch.topk``."""
        del rng
        flat = given.flat
        indices, selection = _largest(flat.abs(), count)
        return Sparse(flat.numel(), indices, flat[indices], selection=selection)

    @property
    def queues(self) -> bool:
        """Return whether ``choosing`` can be used."""
        return True

    def choosing(self, given: AccumulatedGradient, count: int) -> Fetching[Sparse]:
        """The number is known: so is the room for them."""
        from testbed.compress.kernels.torch_ops import nth_marked, numbered

        flat, magnitudes = given.flat, given.flat.abs()
        threshold = magnitudes.topk(count, sorted=False).values.min()
        tied = magnitudes == threshold
        ties, reach = numbered(tied), magnitudes >= threshold
        first = ties <= count - reach.sum() + ties[-1]  # the last of equal ones are left out
        indices = nth_marked(numbered(reach & (first | ~tied)), count)
        at, number, indices, values = yield [threshold, ties[-1], indices, flat[indices]]
        selection = Selection(PASSES, float(at), int(number) - 1)
        return Sparse(flat.numel(), indices, values, selection=selection)


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


class Dense(Selector[Options]):
    """All elements, whatever the density."""

    name = "dense"
    takes_density = False

    def select(self, given: AccumulatedGradient, density: float, rng: Random) -> Sparse:
        """The values are the given vector itself, not a copy."""
        del rng
        check_density(density)
        return Sparse(given.flat.numel(), None, given.flat, selection=Selection(passes=0.0))

    @property
    def queues(self) -> bool:
        """Return whether ``selecting`` can be used."""
        return True

    def selecting(self, given: AccumulatedGradient, density: float) -> Fetching[Sparse]:
        """Copied to the host."""
        check_density(density)
        return whole(given)


class Radix(CountSelector[Options]):
    """The ``round(density · n)`` elements of greatest magnitude; of equal ones the first, as
    ``TopK``.

    As integers, the 31 bits of magnitudes are ordered as the numbers are. They are taken in digits
    of 11, 11 and 9 bits: one pass counts the values of the first digit, which tells the one that
    the least chosen element has; one pass takes out all elements from there up; what is left of the
    digits is looked for among these.
    """

    name = "radix"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._left, self._kept = Workspace(), Workspace()

    def choose(self, given: AccumulatedGradient, count: int, rng: Random) -> Sparse:
        """The statistics are not used."""
        del rng
        flat, operations = given.flat, kernels.of(given.flat)
        position = narrowed(operations, flat, count, 0, ThresholdPosition())
        left = Candidates(*operations.select_above(flat, position.edge(1), self._left))
        for digit in range(1, len(DIGITS)):
            position = narrowed(operations, left.values, count, digit, position)
        threshold = position.edge(len(DIGITS))
        sent = parted(chosen(operations, left, threshold, self._kept), position, count)
        passes = 2 + len(DIGITS) * left.count / flat.numel()
        selection = Selection(passes, threshold, position.tied - 1)
        return Sparse(flat.numel(), sent.indices, sent.values, selection=selection)
