"""How elements are chosen: exactly, by a threshold that a distribution suggests, at random. One
file each."""

from __future__ import annotations

from abc import abstractmethod
from random import Random

from testbed.compress.base import AccumulatedGradient, Given, Selection, Selector, Sparse
from testbed.compress.gradient_stats import element_count
from testbed.compress.kernels.base import Fetching


def whole(given: AccumulatedGradient) -> Fetching[Sparse]:
    """All elements, on the host."""
    (values,) = yield [given.flat]
    return Sparse(given.flat.numel(), None, values, selection=Selection(passes=0.0))


class CountSelector(Selector[Given]):
    """A selector that chooses a number of elements, ``round(density · n)`` or about so many."""

    def select(self, given: AccumulatedGradient, density: float, rng: Random) -> Sparse:
        """Dense when every element is asked for. Views buffers that the next call reuses."""
        size = given.flat.numel()
        count = element_count(size, density)
        if count == size:
            return Sparse(size, None, given.flat, selection=Selection(passes=0.0))
        return self.choose(given, count, rng)

    def selecting(self, given: AccumulatedGradient, density: float) -> Fetching[Sparse]:
        """As ``select``, by ``choosing``."""
        size = given.flat.numel()
        count = element_count(size, density)
        return whole(given) if count == size else self.choosing(given, count)

    def choosing(self, given: AccumulatedGradient, count: int) -> Fetching[Sparse]:
        """As ``choose``, of a selector that ``queues``; the elements are on the host."""
        raise NotImplementedError

    @abstractmethod
    def choose(self, given: AccumulatedGradient, count: int, rng: Random) -> Sparse:
        """The elements of a vector of more than ``count``."""
