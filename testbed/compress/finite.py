"""Refusing gradients that are not numbers, by the name of the parameter they belong to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from testbed.compress.layout import Layout
from testbed.errors import GradientError

if TYPE_CHECKING:
    from torch import Tensor


def refuse(flat: Tensor, layout: Layout) -> None:
    """Raise GradientError naming the first parameter of ``flat`` (float32 (n,)) with NaN or infinity."""
    wrong = (~flat.isfinite()).nonzero().flatten()
    if not wrong.numel():
        return
    position = int(wrong[0])
    part = layout.at(position)
    raise GradientError(
        f"the gradient of {part.name!r} holds {float(flat[position])} at element {position - part.offset} "
        f"({wrong.numel()} such elements in all): the training has diverged, or its data are not finite"
    )
