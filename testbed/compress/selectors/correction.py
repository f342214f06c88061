"""Exact selection among candidates by the digits of their magnitudes, and what is needed to narrow them down."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from testbed.compress.kernels import Operations, Workspace
from testbed.compress.kernels.grid import DIGITS

if TYPE_CHECKING:
    from torch import Tensor

LEAST_MAGNITUDE = float(np.finfo(np.float32).smallest_subnormal)
"""The least float32 above 0: a threshold that leaves out zeros alone."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """All elements at or above some magnitude: ``indices`` int64 (c,) ascending, ``values`` float32 (c,)."""

    indices: Tensor
    values: Tensor

    @property
    def count(self) -> int:
        """How many there are."""
        return int(self.values.numel())


@dataclass(frozen=True, slots=True)
class Place:
    """Where some rank lies, the greatest magnitude having rank 1: the leading bits of its magnitude.

    ``above`` elements have greater leading bits, ``tied`` have the same.
    """

    bits: int = 0
    above: int = 0
    tied: int = 0

    def edge(self, digits: int) -> float:
        """The least magnitude that begins with ``bits``, which are the first ``digits`` digits."""
        return float(np.uint32(self.bits << DIGITS[digits - 1][0]).view(np.float32))


def narrowed(operations: Operations, flat: Tensor, rank: int, digit: int, place: Place) -> Place:
    """``place`` of ``rank`` with one digit more: number ``digit`` of the radix select. One pass over ``flat``."""
    counts = operations.digit_counts(flat, digit, place.bits).numpy()
    from_above = counts[::-1].cumsum()
    steps = int(from_above.searchsorted(rank - place.above))
    value = counts.size - 1 - steps
    tied = int(counts[value])
    above = place.above + int(from_above[steps]) - tied
    return Place(place.bits << DIGITS[digit][1] | value, above, tied)


def chosen(
    operations: Operations, given: Candidates, threshold: float, space: Workspace
) -> Candidates:
    """Those of ``given`` at or above ``threshold``, in ``space``; one pass over ``given``."""
    import torch

    places, values = operations.choose_from(given.values, threshold, space)
    room = space.tensor("chosen", places.numel(), given.indices)
    return Candidates(torch.index_select(given.indices, 0, places, out=room), values)


def parted(given: Candidates, place: Place, count: int) -> Candidates:
    """The first ``count`` of ``given`` (all at or above ``place``), were ties ordered by their index."""
    surplus = place.above + place.tied - count
    if not surplus:
        return given
    tied = (given.values.abs() == place.edge(len(DIGITS))).nonzero().flatten()
    keep = given.indices.new_ones(given.count).bool()
    keep[tied[tied.numel() - surplus :]] = False
    return Candidates(given.indices[keep], given.values[keep])
