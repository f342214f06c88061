"""Exact top-k: the elements that are largest in magnitude."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from testbed.compress.base import Sparse
from testbed.compress.elements import element_count

if TYPE_CHECKING:
    from torch import Tensor


class TopK:
    """The ``round(density · n)`` elements of greatest magnitude; of equal ones the first in the vector.

    The rule for ties makes the choice a function of the vector alone, on every device.
    """

    def select(self, flat: Tensor, density: float, rng: Random) -> Sparse:
        """``flat`` float32 (n,), contiguous, finite. Dense when every element is asked for."""
        del rng
        size = flat.numel()
        count = element_count(size, density)
        if count == size:
            return Sparse(size, None, flat)
        indices = _largest(flat.abs(), count)
        return Sparse(size, indices, flat[indices])


def _largest(magnitudes: Tensor, count: int) -> Tensor:
    """Ascending int64 indices of the ``count`` largest; scanning for them needs no sort."""
    threshold = magnitudes.topk(count, sorted=False).values.min()
    indices = (magnitudes >= threshold).nonzero().flatten()
    surplus = indices.numel() - count
    if surplus:
        tied = (magnitudes[indices] == threshold).nonzero().flatten()
        keep = indices.new_ones(indices.numel()).bool()
        keep[tied[tied.numel() - surplus :]] = False
        indices = indices[keep]
    return indices
