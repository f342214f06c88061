"""Refusing gradients that are not numbers, by the name of the parameter they belong to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from testbed.compress.layout import Layout
from testbed.errors import GradientError

if TYPE_CHECKING:
    from torch import Tensor


def refuse(
    values: Tensor, layout: Layout, indices: Tensor | None = None, what: str = "gradient"
) -> None:
    """Raise GradientError naming the first parameter with NaN or infinity among ``values`` (float32 (m,)).

    ``indices`` int64 (m,): which elements of the layout's vector they are; None: all of it.
    """
    wrong = (~values.isfinite()).nonzero().flatten()
    if not wrong.numel():
        return
    first = int(wrong[0])
    position = first if indices is None else int(indices[first])
    part = layout.at(position)
    raise GradientError(
        f"the {what} of {part.name!r} holds {float(values[first])} at element {position - part.offset} "
        f"({wrong.numel()} such elements in all): the training has diverged, or its data are not finite"
    )
