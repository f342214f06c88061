"""Exact top-k: the elements that are largest in magnitude."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from testbed.compress.base import Compensated, Selection, Sparse, Stateless
from testbed.compress.elements import element_count

if TYPE_CHECKING:
    from torch import Tensor

PASSES = 3.0
"""Magnitudes, ``torch.topk`` (which reads them more than once), and the scan; statistics are not used."""


class TopK(Stateless):
    """The ``round(density · n)`` elements of greatest magnitude; of equal ones the first in the vector.

    The rule for ties makes the choice a function of the vector alone, on every device.
    """

    def select(self, given: Compensated, density: float, rng: Random) -> Sparse:
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
