"""A threshold that stays the same for the whole training (Strom 2015; Sahu et al. 2021)."""

from __future__ import annotations

from random import Random
from typing import Any

from pydantic import Field

from testbed.compress import kernels
from testbed.compress.base import (
    AccumulatedGradient,
    Options,
    PositiveFloat32,
    Selection,
    Selector,
    Sparse,
)
from testbed.compress.gradient_stats import check_density
from testbed.compress.kernels.base import Workspace


class FixedThresholdOptions(Options):
    """Options of ``threshold``."""

    at: PositiveFloat32 = Field(description="Least magnitude that is sent, e.g. 0.001.")


class Threshold(Selector[FixedThresholdOptions]):
    """All elements of magnitude ``at`` or more, however many, and be it none.

    With values that are written as ``±at`` this is Strom's threshold quantization.
    """

    name, model = "threshold", FixedThresholdOptions
    takes_density = False

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._space = Workspace()

    def select(self, given: AccumulatedGradient, density: float, rng: Random) -> Sparse:
        """Dense where all are chosen."""
        del rng
        check_density(density)
        flat, at = given.flat, float(self.options.at)
        size = flat.numel()
        indices, values = kernels.of(flat).select_above(flat, at, self._space)
        if values.numel() == size:
            return Sparse(size, None, flat, selection=Selection(1.0, at))
        return Sparse(size, indices, values, selection=Selection(1.0, at))
