"""Finding a threshold for about so many elements, once a first pass has left few candidates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, floor, log

import numpy as np

from testbed.compress.selectors.correction import Candidates

_GREATEST = float(np.finfo(np.float32).max)
_PROBES, _SAMPLE = 4, 8192
_ROUNDING = 1e-9
"""Keeps a share that is worked out from the number within the tolerance, too."""


@dataclass(frozen=True, slots=True)
class Window:
    """The numbers of elements that are right."""

    least: int
    aim: int
    most: int

    @classmethod
    def around(cls, count: int, tolerance: float) -> Window:
        """Those that differ from ``count`` by less than the share ``tolerance`` of it, and ``count``."""
        tolerance = max(0.0, tolerance - _ROUNDING)
        return cls(max(1, ceil(count * (1 - tolerance))), count, floor(count * (1 + tolerance)))

    def holds(self, count: int) -> bool:
        """Whether it is one of them."""
        return self.least <= count <= self.most


@dataclass(frozen=True, slots=True)
class Probed:
    """The outcome of ``probed``; ``threshold`` None: no threshold within the window was found."""

    threshold: float | None
    probes: int


def guessed(given: Candidates, low: float, slope: float, aim: int) -> float:
    """A threshold that about ``aim`` of ``given``, which are all from ``low`` on, are above.

    Of many, that of a sample, one in so many (at most twice ``_SAMPLE``); of few, where the logarithm of
    their number has come down to that of ``aim``, falling by 1 in ``slope``.
    """
    stride = given.count // _SAMPLE
    if stride < 2:
        return rounded(low + slope * log(given.count / aim))
    sample = given.values[::stride].abs()
    rank = min(max(1, round(sample.numel() * aim / given.count)), sample.numel())
    return float(sample.kthvalue(sample.numel() - rank + 1).values)


def probed(
    count_from: Callable[[float], int],
    many: tuple[float, int],
    few: tuple[float, int] | None,
    slope: float,
    window: Window,
) -> Probed:
    """A threshold between two at or above which there are too ``many`` elements and too ``few``.

    Both are given with these numbers. False position: the logarithm of the number is taken to fall in a
    straight line between them, or, before one with too few is known, by 1 in ``slope``.
    """
    for probes in range(_PROBES):
        threshold = rounded(_between(many, few, slope, window.aim))
        if threshold <= many[0] or (few is not None and threshold >= few[0]):
            return Probed(None, probes)  # ties lie between
        found = count_from(threshold)
        if window.holds(found):
            return Probed(threshold, probes + 1)
        if found < window.least:
            few = (threshold, found)
        else:
            slope, many = 2 * slope, (threshold, found)
    return Probed(None, _PROBES)


def _between(
    many: tuple[float, int], few: tuple[float, int] | None, slope: float, aim: int
) -> float:
    """Where the line has come down to ``aim``; half an element stands for none, which has no logarithm."""
    drop = log(many[1] / aim)
    if few is None:
        return many[0] + slope * drop
    return many[0] + (few[0] - many[0]) * drop / log(many[1] / max(few[1], 0.5))


def rounded(threshold: float) -> float:
    """As float32, in which magnitudes are compared; at most its greatest number."""
    return float(np.float32(min(threshold, _GREATEST)))
