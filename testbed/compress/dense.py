"""The selector that sends everything: the uncompressed baseline."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from testbed.compress.base import Sparse
from testbed.compress.elements import check_density

if TYPE_CHECKING:
    from torch import Tensor


class Dense:
    """All elements, whatever the density."""

    def select(self, flat: Tensor, density: float, rng: Random) -> Sparse:
        """``flat`` float32 (n,); the values are ``flat`` itself, not a copy."""
        del rng
        check_density(density)
        return Sparse(flat.numel(), None, flat)
