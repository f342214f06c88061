"""The densities that would have reached a target earliest on a known history, by a dynamic programme. Pure.

A bound under a quasi-static model of progress: a step with density k does 1/N(k) of the work, whatever came before.
docs/step-responses.md says what that leaves out.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import floor, inf
from statistics import fmean
from typing import NamedTuple, Protocol

import numpy as np

GRID = 20_000
"""Parts that progress is counted in, rounded down."""
_TAIL = 20
"""Steps whose mean length is that of all steps after a run's end."""


class Clock(Protocol):
    """When a step that is begun at some time ends."""

    def after(self, time_s: float, steps: float) -> float:
        """When so many steps have passed since ``time_s``."""
        ...


class RunClock:
    """The clock of a run with a fixed density: where it was among its steps tells how fast steps were then.

    Within a step time passes evenly, so that a later start never ends earlier.
    """

    def __init__(self, start_s: Sequence[float], end_s: Sequence[float]) -> None:
        self._bounds = [*start_s, end_s[-1]]
        tail = self._bounds[-_TAIL - 1 :]
        self._tail_s = fmean(b - a for a, b in pairwise(tail))

    def after(self, time_s: float, steps: float) -> float:
        """When so many steps have passed since ``time_s``."""
        return self._time(self._place(time_s) + steps)

    def _place(self, time_s: float) -> float:
        bounds, last = self._bounds, len(self._bounds) - 1
        if time_s >= bounds[last]:
            return last + (time_s - bounds[last]) / self._tail_s
        i = max(0, bisect_right(bounds, time_s) - 1)
        return i + max(0.0, time_s - bounds[i]) / (bounds[i + 1] - bounds[i])

    def _time(self, place: float) -> float:
        bounds, last = self._bounds, len(self._bounds) - 1
        if place >= last:
            return bounds[last] + (place - last) * self._tail_s
        i = floor(place)
        return bounds[i] + (place - i) * (bounds[i + 1] - bounds[i])


@dataclass(frozen=True, slots=True)
class Demand:
    """Steps to the target by density: N(k) = n0 + c/k."""

    n0: float
    c: float
    worst: float
    """The largest relative error at the densities that it was found from."""

    def steps(self, k: float) -> float:
        """N(k)."""
        return self.n0 + self.c / k


def fit(observed: Mapping[float, float]) -> Demand:
    """The least squares of relative errors, with n0 ≥ 0 and c ≥ 0. ``observed``: steps by density, two at least."""
    from scipy.optimize import nnls

    k, steps = (np.array(list(each)) for each in (observed.keys(), observed.values()))
    (n0, c), _ = nnls(np.stack([1 / steps, 1 / (k * steps)], axis=1), np.ones(len(k)))
    return Demand(float(n0), float(c), float(np.max(np.abs((n0 + c / k) / steps - 1))))


class Plan(NamedTuple):
    """What the programme found."""

    time_s: float
    """E(1)."""
    starts_s: list[float]
    densities: list[float]
    """Of every step, in order."""


def earliest(steps: Mapping[float, float], clocks: Mapping[float, Clock], grid: int = GRID) -> Plan:
    """The sequence of densities that completes the work earliest from 0 on.

    ``steps``: N by density; ``clocks``: of the same densities. The last step counts for the share of it that is
    needed. Since a later start never ends earlier, the earliest time at every progress is enough to know.
    """
    times, came = [inf] * (grid + 1), [(0, 0.0)] * (grid + 1)
    times[0] = 0.0
    for place in range(grid):
        if times[place] == inf:
            continue
        for k, needed in steps.items():
            gain = floor(grid / needed + 1e-9)
            share = min(1.0, (grid - place) / (grid / needed))
            then, ends = min(grid, place + gain), clocks[k].after(times[place], share)
            if share == 1.0 and then == place:
                continue
            then = grid if share < 1.0 else then
            if ends < times[then]:
                times[then], came[then] = ends, (place, k)
    return _backward(times, came)


def _backward(times: Sequence[float], came: Sequence[tuple[int, float]]) -> Plan:
    at, starts, densities = len(times) - 1, [], []
    while at > 0:
        before, k = came[at]
        starts.append(times[before])
        densities.append(k)
        at = before
    return Plan(times[-1], starts[::-1], densities[::-1])
