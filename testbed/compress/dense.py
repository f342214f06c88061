"""The selector that sends everything: the uncompressed baseline, and what quantizers work on."""

from __future__ import annotations

from random import Random
from typing import ClassVar

from testbed.compress.base import Compensated, Selection, Sparse, Stateless
from testbed.compress.elements import check_density


class Dense(Stateless):
    """All elements, whatever the density."""

    takes_density: ClassVar[bool] = False

    def select(self, given: Compensated, density: float, rng: Random) -> Sparse:
        """The values are the given vector itself, not a copy."""
        del rng
        check_density(density)
        return Sparse(given.flat.numel(), None, given.flat, how=Selection(passes=0.0))
