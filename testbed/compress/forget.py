"""The memory that keeps nothing: what is not sent is lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from testbed.compress import kernels
from testbed.compress.base import Compensated, Sparse
from testbed.compress.layout import Layout

if TYPE_CHECKING:
    from torch import Tensor


class Forget:
    """No compensation."""

    def __init__(self, layout: Layout) -> None:
        del layout

    def compensate(self, flat: Tensor) -> Compensated:
        """``flat`` itself."""
        seen = kernels.of(flat).measure(flat)
        return Compensated(flat, seen.sum_abs, seen.max_abs)

    def update(self, given: Compensated, sent: Sparse) -> None:
        """Keep nothing."""

    def state(self) -> dict[str, Tensor]:
        """Nothing to keep."""
        return {}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Nothing to restore."""
