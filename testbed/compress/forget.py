"""The memory that keeps nothing: what is not sent is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from testbed.compress.base import Sparse

if TYPE_CHECKING:
    from torch import Tensor


class Forget:
    """No compensation."""

    def compensate(self, name: str, flat: Tensor) -> Tensor:
        """``flat`` itself."""
        del name
        return flat

    def update(self, name: str, compensated: Tensor, sent: Sparse) -> None:
        """Keep nothing."""

    def state(self) -> dict[str, Tensor]:
        """Nothing to keep."""
        return {}

    def load(self, state: dict[str, Tensor]) -> None:
        """Nothing to restore; residuals of another memory are refused."""
        if state:
            raise ValueError(f"memory 'none' cannot take over residuals of {', '.join(state)}")
