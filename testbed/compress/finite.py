"""Refusing gradients that are not numbers, by the name of the parameter they belong to."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import TYPE_CHECKING

from testbed.errors import GradientError

if TYPE_CHECKING:
    from torch import Tensor

Parts = Sequence[tuple[str, int]]
"""Names of what a flat vector is made of, each with the offset of its first element, ascending."""


def check_finite(flat: Tensor, parts: Parts) -> None:
    """Raise GradientError naming the first part of ``flat`` (float32 (n,)) that holds NaN or infinity.

    A finite sum proves that all elements are finite and needs no memory; only otherwise (also when
    the sum of finite elements overflows) are the elements looked at one by one.
    """
    if isfinite(float(flat.sum())):
        return
    wrong = (~flat.isfinite()).nonzero().flatten()
    if not wrong.numel():
        return
    position = int(wrong[0])
    name, offset = _part(parts, position)
    raise GradientError(
        f"the gradient of {name!r} holds {float(flat[position])} at element {position - offset} "
        f"({wrong.numel()} such elements in all): the training has diverged, or its data are not finite"
    )


def _part(parts: Parts, position: int) -> tuple[str, int]:
    """The part that ``position`` falls in: the last one that begins at or before it."""
    return [part for part in parts if part[1] <= position][-1]
