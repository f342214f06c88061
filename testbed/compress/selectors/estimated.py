"""What all selectors that estimate a threshold share: the cases in which there is nothing to estimate."""

from __future__ import annotations

from abc import ABC, abstractmethod
from random import Random
from typing import ClassVar

from testbed.compress.base import Compensated, Selection, Sparse, Stateless
from testbed.compress.elements import element_count
from testbed.compress.selectors.pool import Buffers, Pool


class Estimated(Stateless, ABC):
    """A selector whose ``narrow`` leaves about as many elements as are asked for.

    At least one element of a vector is sent, and no zeros as long as it has anything else. An element
    below the smallest normal float32 counts as zero.
    """

    exact_below: ClassVar[int] = 1024
    """Vectors of fewer elements are too small for statistics: the largest are chosen exactly."""

    def __init__(self) -> None:
        self._buffers = Buffers()

    def select(self, given: Compensated, density: float, rng: Random) -> Sparse:
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
        """Leave in ``pool``, which has more than ``count`` elements, what is to be sent; at least one."""


def _first_of(given: Compensated) -> Sparse:
    """One zero, of a vector of nothing else."""
    import torch

    index = torch.zeros(1, dtype=torch.int64, device=given.flat.device)
    return Sparse(given.flat.numel(), index, given.flat[:1].clone(), how=Selection(passes=1.0))
