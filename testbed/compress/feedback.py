"""Error feedback (Seide 2014, Stich 2018): what was not sent is added to the next gradient.

    p = g + e        send C(p)        e ← p − C(p)

so that at any time Σ sent + residual = Σ gradients.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from testbed.compress import kernels
from testbed.compress.base import Compensated, Sparse
from testbed.compress.layout import Layout
from testbed.compress.parts import gathered, taken_apart

if TYPE_CHECKING:
    from torch import Tensor


class Feedback:
    """One residual, float32 (n,), on the gradient's device; it does not depend on the density.

    p is made beside e, and takes its place once something was sent: a gradient that is refused leaves
    no trace. The two buffers change places at every step.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._residual: Tensor | None = None
        self._spare: Tensor | None = None

    def compensate(self, flat: Tensor) -> Compensated:
        """g + e, valid until ``update``."""
        if self._residual is None:
            self._residual = flat.new_zeros(flat.shape)
        elif self._residual.device != flat.device:  # loaded from a checkpoint
            self._residual = self._residual.to(flat.device)
        if self._spare is None:
            self._spare = flat.new_empty(flat.shape)
        seen = kernels.of(flat).add(self._residual, flat, self._spare)
        return Compensated(self._spare, seen.sum_abs, seen.max_abs)

    def update(self, given: Compensated, sent: Sparse) -> None:
        """e ← p − sent, whose values may view p and are void afterwards."""
        if sent.indices is None:
            given.flat.sub_(sent.values)
        else:
            kernels.of(given.flat).take_away(given.flat, sent.indices, sent.values)
        self._residual, self._spare = given.flat, self._residual

    def state(self) -> dict[str, Tensor]:
        """Copies of the residual's parts, by the name of the parameter."""
        return {} if self._residual is None else taken_apart(self._residual, self._layout)

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Zeros for parts that ``state`` does not have."""
        self._residual = gathered(state, self._layout)
