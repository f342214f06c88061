"""A threshold that stays the same for the whole training (Strom 2015; Sahu et al. 2021)."""

from __future__ import annotations

from random import Random
from typing import ClassVar

from testbed.compress import kernels
from testbed.compress.base import AccumulatedGradient, Selection, Sparse, Stateless
from testbed.compress.gradient_stats import check_density
from testbed.compress.kernels.base import Workspace
from testbed.compress.kernels.compilation import as_float32
from testbed.errors import InputError


class Threshold(Stateless):
    """All elements of magnitude ``at`` or more, however many, and be it none.

    With values that are written as ``±at`` this is Strom's threshold quantization.
    """

    takes_density: ClassVar[bool] = False

    def __init__(self, at: float) -> None:
        if not 0.0 < as_float32(at) < float("inf"):  # also refuses NaN
            raise InputError(
                f"threshold {at!r} is not a positive float32",
                hint="Elements of at least this magnitude are sent, e.g. at: 0.001",
            )
        self._at, self._space = float(at), Workspace()

    def select(self, given: AccumulatedGradient, density: float, rng: Random) -> Sparse:
        """Dense where all are chosen."""
        del rng
        check_density(density)
        flat = given.flat
        size = flat.numel()
        indices, values = kernels.of(flat).choose_from(flat, self._at, self._space)
        how = Selection(1.0, self._at)
        if values.numel() == size:
            return Sparse(size, None, flat, how=how)
        return Sparse(size, indices, values, how=how)
