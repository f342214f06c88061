"""Exact top-k by radix select, as the Laplacian-threshold paper's baseline has it, without sorting."""

from __future__ import annotations

from random import Random

from testbed.compress import kernels
from testbed.compress.base import Compensated, Selection, Sparse, Stateless
from testbed.compress.elements import element_count
from testbed.compress.kernels import Workspace
from testbed.compress.kernels.grid import DIGITS
from testbed.compress.selectors.correction import Candidates, Place, chosen, narrowed, parted


class Radix(Stateless):
    """The ``round(density · n)`` elements of greatest magnitude; of equal ones the first, as ``TopK``.

    As integers, the 31 bits of magnitudes are ordered as the numbers are. They are taken in digits of
    11, 11 and 9 bits: one pass counts the values of the first digit, which tells the one that the least
    chosen element has; one pass takes out all elements from there up; what is left of the digits is
    looked for among these.
    """

    def __init__(self) -> None:
        self._left, self._kept = Workspace(), Workspace()

    def select(self, given: Compensated, density: float, rng: Random) -> Sparse:
        """Dense when every element is asked for. The statistics are not used."""
        del rng
        flat = given.flat
        size = flat.numel()
        count = element_count(size, density)
        if count == size:
            return Sparse(size, None, flat, how=Selection(passes=0.0))
        operations = kernels.of(flat)
        place = narrowed(operations, flat, count, 0, Place())
        left = Candidates(*operations.choose_from(flat, place.edge(1), self._left))
        for digit in range(1, len(DIGITS)):
            place = narrowed(operations, left.values, count, digit, place)
        threshold = place.edge(len(DIGITS))
        sent = parted(chosen(operations, left, threshold, self._kept), place, count)
        passes = 2 + len(DIGITS) * left.count / size
        return Sparse(
            size, sent.indices, sent.values, how=Selection(passes, threshold, place.tied - 1)
        )
