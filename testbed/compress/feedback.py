"""Error feedback (Seide 2014, Stich 2018): what was not sent is added to the next gradient.

    p = g + e        send C(p)        e ← p − C(p)

so that at any time Σ sent + residual = Σ gradients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from testbed.compress.base import Sparse
from testbed.errors import GradientError

if TYPE_CHECKING:
    from torch import Tensor


class Feedback:
    """One residual per bucket, float32 (n,), on the gradient's device.

    p and e share one buffer: ``compensate`` adds the gradient to it, ``update`` takes away what was sent.
    They are called in turn; a residual does not depend on the density, which may change every step.
    """

    def __init__(self) -> None:
        self._residuals: dict[str, Tensor] = {}

    def compensate(self, name: str, flat: Tensor) -> Tensor:
        """g + e. Valid until ``update``; ``flat`` float32 (n,) stays as it is."""
        residual = self._residuals.get(name)
        if residual is None:
            residual = self._residuals[name] = flat.new_zeros(flat.shape)
        if residual.shape != flat.shape:
            raise GradientError(
                f"bucket {name!r} had {residual.numel()} elements and now has {flat.numel()}"
            )
        return residual.add_(flat)

    def update(self, name: str, compensated: Tensor, sent: Sparse) -> None:
        """e ← p − sent. ``sent`` may be a view of ``compensated``; it is then void afterwards."""
        residual = self._residuals[name]
        if residual.data_ptr() != compensated.data_ptr():
            residual.copy_(compensated)
        if sent.indices is None:
            residual.sub_(sent.values)
        else:
            residual.index_add_(0, sent.indices, sent.values, alpha=-1)

    def state(self) -> dict[str, Tensor]:
        """Copies of the residuals by bucket name."""
        return {name: residual.clone() for name, residual in self._residuals.items()}

    def load(self, state: dict[str, Tensor]) -> None:
        """Restore what ``state`` returned; a change of device is the caller's."""
        self._residuals = {name: residual.clone() for name, residual in state.items()}
