"""Momentum correction with masking: Deep Gradient Compression (Lin et al., ICLR 2018, §3.1 and §3.2).

    u ← m·u + g        v ← v + u        send C(v)        v ← v − C(v)        u ← 0 where something was sent

Error feedback alone would apply an element's momentum late and all at once; here momentum is accumulated
before compression. **It takes the place of the optimizer's momentum, which must be 0.**
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from testbed.compress import kernels
from testbed.compress.base import Compensated, Sparse
from testbed.compress.layout import Layout
from testbed.compress.options import yes_or_no
from testbed.compress.parts import gathered, taken_apart
from testbed.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

VELOCITY, RESIDUAL = "velocity", "residual"


class MomentumCorrection:
    """Velocity u and residual v, float32 (n,) each, on the gradient's device.

    ``momentum`` in [0, 1); with 0 it is error feedback. ``masking``: forget the velocity of elements that
    were sent, so that it does not push them on in an old direction. A message of all elements (no
    indices) masks nothing: sent exactly, it is plain momentum. Where values are rounded, v keeps what
    the receiver does not read.

    New vectors are made beside the old ones and take their place once something was sent: a gradient
    that is refused leaves no trace.
    """

    def __init__(self, layout: Layout, momentum: float = 0.9, masking: bool = True) -> None:
        if not 0.0 <= momentum < 1.0:  # also refuses NaN
            raise InputError(f"momentum {momentum!r} is outside [0, 1)", hint="DGC takes 0.9.")
        self._layout, self._momentum = layout, momentum
        self._masking = yes_or_no("masking", masking)
        self._held: dict[str, Tensor] = {}
        self._next: dict[str, Tensor] = {}

    def compensate(self, flat: Tensor) -> Compensated:
        """v + m·u + g, valid until ``update``."""
        import torch

        for kind in (VELOCITY, RESIDUAL):
            held = self._held.get(kind)
            # what a checkpoint brought may lie elsewhere
            self._held[kind] = flat.new_zeros(flat.shape) if held is None else held.to(flat.device)
            if kind not in self._next:
                self._next[kind] = flat.new_empty(flat.shape)
        velocity, residual = self._next[VELOCITY], self._next[RESIDUAL]
        torch.add(flat, self._held[VELOCITY], alpha=self._momentum, out=velocity)
        seen = kernels.of(flat).add(self._held[RESIDUAL], velocity, residual)
        return Compensated(residual, seen.sum_abs, seen.max_abs)

    def update(self, given: Compensated, sent: Sparse) -> None:
        """v ← v − sent, u ← 0 there; ``sent.values`` may view v and are void afterwards."""
        if sent.indices is None:
            given.flat.sub_(sent.values)
        else:
            kernels.of(given.flat).take_away(given.flat, sent.indices, sent.values)
            if self._masking:
                self._next[VELOCITY].index_fill_(0, sent.indices, 0.0)
        self._held, self._next = self._next, self._held

    def state(self) -> dict[str, Tensor]:
        """Copies of both vectors' parts, ``<name>/velocity`` and ``<name>/residual``."""
        return {
            name: part
            for kind, held in self._held.items()
            for name, part in taken_apart(held, self._layout, kind).items()
        }

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Zeros for parts that ``state`` does not have. Raises InputError for parts of another size."""
        found = {kind: gathered(state, self._layout, kind) for kind in (VELOCITY, RESIDUAL)}
        self._held = {kind: vector for kind, vector in found.items() if vector is not None}
