"""The Laplacian threshold (Chen, Liu, Han 2021): estimate, then correct until the count is right.

Gradients after error feedback are close to a Laplace distribution, whose maximum-likelihood scale is
b = mean |p|, so that t = −b·ln k is about the threshold of density k. On real gradients that alone finds
0.01 to 40 times as many elements as it should: the correction is the method. Here it takes

    one pass    takes out all elements above a threshold somewhat lower than expected (``aim``);
    the rest    is looked for among these few (``probing``), and is as good as free.

The pass that made p has given b. From the second step on, the last step's threshold over b takes the
place of the estimate. Where the pass finds too few, one that counts leading bits tells exactly where to
look, and a third takes them out: never more than that, whatever the distribution.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import log
from random import Random
from typing import TYPE_CHECKING

from testbed.compress import fit, kernels
from testbed.compress.base import Compensated, Selection, Sparse
from testbed.compress.elements import element_count
from testbed.compress.kernels import Operations, Workspace
from testbed.compress.kernels.grid import DIGITS
from testbed.compress.options import whole_number
from testbed.compress.selectors.aim import Aim
from testbed.compress.selectors.correction import (
    LEAST_MAGNITUDE,
    Candidates,
    Place,
    chosen,
    narrowed,
    parted,
)
from testbed.compress.selectors.probing import Window, guessed, probed, rounded
from testbed.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

_SMALL = 512
"""Vectors of so many elements or fewer are selected from without tolerance."""


class Laplace:
    """``density · n`` elements of greatest magnitude, give or take the share ``tolerance`` of them.

    Zeros are never sent for their own sake: where fewer elements than asked for are not 0, these are
    sent. Where equal magnitudes leave no threshold within the tolerance, exactly ``density · n`` are sent,
    of equal ones the first. ``fit_every``: every so many steps, from the first on, ``fit`` is set to how
    well the distribution fits (``fit.report``); 0: never.
    """

    def __init__(self, tolerance: float = 0.05, fit_every: int = 0) -> None:
        if not 0 <= tolerance < 1:
            raise InputError(f"tolerance {tolerance!r} is outside [0, 1)", hint="Usual is 0.05.")
        self._tolerance, self._fit_every = tolerance, whole_number("fit_every", fit_every, 0)
        self._aim, self._steps = Aim(), 0
        self._left, self._kept = Workspace(), Workspace()
        self.fit: fit.Fit | None = None

    def select(self, given: Compensated, density: float, rng: Random) -> Sparse:
        """Dense when every element is asked for; exact for small vectors."""
        self._report(given, rng)
        flat = given.flat
        size = flat.numel()
        count = element_count(size, density)
        if count == size:
            return Sparse(size, None, flat, how=Selection(passes=0.0))
        if not given.sum_abs:
            return Sparse(size, flat.new_zeros(1).long(), flat[:1], how=Selection(passes=1.0))
        window = Window.around(count, self._tolerance if size > _SMALL else 0.0)
        sent, how = self._selected(given, window)
        return Sparse(size, sent.indices, sent.values, how=how)

    def state(self) -> dict[str, float]:
        """Where the threshold was, and the number of steps."""
        return {**self._aim.state(), "steps": float(self._steps)}

    def load(self, state: Mapping[str, float]) -> None:
        """Go on from there."""
        aim = dict(state)
        self._steps = int(aim.pop("steps"))
        self._aim = Aim.load(aim)

    def _report(self, given: Compensated, rng: Random) -> None:
        if self._fit_every and self._steps % self._fit_every == 0:
            self.fit = fit.report(given.flat, rng, given.sum_abs)
        self._steps += 1

    def _selected(self, given: Compensated, window: Window) -> tuple[Candidates, Selection]:
        """For a vector that is not all zeros and a count below its size."""
        flat, aim, operations = given.flat, self._aim, kernels.of(given.flat)
        size, scale = flat.numel(), given.sum_abs / flat.numel()
        low = max(rounded(aim.cautious(window.aim / size) * scale), LEAST_MAGNITUDE)
        left, passes = self._taken_out(operations, flat, low), 2.0
        if left.count >= window.least or low == LEAST_MAGNITUDE:
            aim.met()
        else:
            aim.missed()
            low = max(narrowed(operations, flat, window.aim, 0, Place()).edge(1), LEAST_MAGNITUDE)
            left, passes = self._taken_out(operations, flat, low), 4.0
        if left.count <= window.most:
            aim.learn(low / scale, left.count / size, None)
            return left, Selection(passes, low)
        sent, threshold, ties, reads = self._corrected(operations, left, low, scale, window)
        if sent.count < left.count:
            slope = (threshold - low) / scale / log(left.count / sent.count)
            aim.learn(threshold / scale, sent.count / size, slope)
        return sent, Selection(passes + reads * left.count / size, threshold, ties)

    def _taken_out(self, operations: Operations, flat: Tensor, low: float) -> Candidates:
        return Candidates(*operations.choose_from(flat, low, self._left))

    def _corrected(
        self, operations: Operations, left: Candidates, low: float, scale: float, window: Window
    ) -> tuple[Candidates, float, int, int]:
        """What is sent of more than enough, its least magnitude, ties at that, and readings of ``left``."""
        slope = self._aim.slope * scale
        threshold = guessed(left, low, slope, window.aim)
        sent = chosen(operations, left, threshold, self._kept)
        if window.holds(sent.count):
            return sent, threshold, 0, 1
        tried, more = (threshold, sent.count), sent.count > window.most
        many, few = (tried, None) if more else ((low, left.count), tried)
        found = probed(partial(operations.count_from, left.values), many, few, slope, window)
        if found.threshold is not None:
            sent = chosen(operations, left, found.threshold, self._kept)
            return sent, found.threshold, 0, found.probes + 2
        place = Place()
        for digit in range(len(DIGITS)):
            place = narrowed(operations, left.values, window.aim, digit, place)
        threshold = place.edge(len(DIGITS))
        sent = parted(chosen(operations, left, threshold, self._kept), place, window.aim)
        return sent, threshold, place.tied - 1, found.probes + len(DIGITS) + 2
