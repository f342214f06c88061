"""Bytes shared out among layers: the densities with the least total error whose bytes keep to
limits.

    least Σ E_l(k_l)  with  Σ_{l in S} bytes_l(k_l) ≤ limit_S  for every S,  k_min ≤ k_l ≤ k_max

Each layer's points (bytes, error) are replaced by their lower convex hull, and the hulls' edges are
taken in the order of error saved by byte, from all layers at k_min on. An edge that does not fit is
taken in part, and is its layer's last. Where of two sets S one is part of the other, and a layer
takes the same bytes in both, the result is the optimum of the hulls, which is never worse than the
best choice among the points; where bytes differ, it is near to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf

from testbed.control.adalag import lower_hull
from testbed.control.base import LEVELS
from testbed.control.layerwise import error_at

Cost = Callable[[float], float]
"""Bytes by density; they do not fall."""
_HALVINGS = 60
_LEAST = 1e-6
"""Bytes that are none."""


@dataclass(frozen=True, slots=True)
class Limit:
    """Bytes that some layers may have together."""

    costs: Mapping[str, Cost]
    """Bytes that each layer takes of the budget, as a function of its density."""
    budget: float

    def left(self, densities: Mapping[str, float]) -> float:
        """Beside what is spent; layers that are not its own do not count."""
        own = (cost(densities[name]) for name, cost in self.costs.items() if name in densities)
        return self.budget - sum(own)

    def without(self, densities: Mapping[str, float]) -> Limit:
        """Return the limit of the other layers, when those of ``densities`` have had theirs."""
        others = {name: cost for name, cost in self.costs.items() if name not in densities}
        return Limit(others, self.left(densities))


@dataclass(frozen=True, slots=True)
class Edge:
    """From one density to a higher one of the layer ``name``."""

    name: str
    from_: float
    to: float
    saved: float
    """Error by byte."""


def ladder(k_min: float, k_max: float) -> list[float]:
    """Densities to choose from, ascending: the limits and the ``LEVELS`` between."""
    return sorted({k_min, k_max, *(level for level in LEVELS if k_min < level < k_max)})


def minimise_error(
    curves: Mapping[str, list[float]],
    costs: Mapping[str, Cost],
    limits: Sequence[Limit],
    steps: Sequence[float],
) -> dict[str, float]:
    """Densities by name; ``costs`` are those by which errors are weighed. Where not even the least
    of ``steps`` fits a limit, its layers have that."""
    chosen, full = dict.fromkeys(curves, steps[0]), set[str]()
    lefts = [limit.left(chosen) for limit in limits]
    candidates = [e for name in curves for e in edges(name, curves[name], costs[name], steps)]
    for edge in sorted(candidates, key=lambda edge: -edge.saved):
        own = [number for number, limit in enumerate(limits) if edge.name in limit.costs]
        if edge.name in full or any(lefts[number] <= _LEAST for number in own):
            continue
        uses = [(limits[number].costs[edge.name], lefts[number]) for number in own]
        to = _as_far_as(uses, edge)
        if to < edge.to:
            full.add(edge.name)
        for number, (cost, _) in zip(own, uses, strict=True):
            lefts[number] -= cost(to) - cost(edge.from_)
        chosen[edge.name] = to
    return chosen


def edges(name: str, curve: list[float], cost: Cost, steps: Sequence[float]) -> list[Edge]:
    """Return the edges of a layer's hull, as long as error falls."""
    at = {(cost(k), error_at(curve, k)): k for k in reversed(steps)}
    hull = lower_hull(at)
    return [
        Edge(name, at[low], at[high], (low[1] - high[1]) / (high[0] - low[0]))
        for low, high in pairwise(hull)
        if high[1] < low[1]
    ]


def one_for_all(names: Sequence[str], limits: Sequence[Limit], k_min: float, k_max: float) -> float:
    """The highest density that all ``names`` can have within the limits; k_min where none fits."""

    def over(k: float) -> float:
        densities = dict.fromkeys(names, k)
        return max((-limit.left(densities) for limit in limits), default=-inf)

    return highest(over, 0.0, k_min, k_max)


def highest(cost: Cost, budget: float, low: float, high: float) -> float:
    """The highest density in [low, high] whose ``cost`` fits, by bisection in log k; ``low`` where
    none does."""
    if cost(high) <= budget:
        return high
    for _ in range(_HALVINGS):
        middle = float((low * high) ** 0.5)
        if cost(middle) <= budget:
            low = middle
        else:
            high = middle
    return low


def _as_far_as(uses: Sequence[tuple[Cost, float]], edge: Edge) -> float:
    """The highest density of ``edge`` at which no cost has grown by more than is left for it."""

    def over(k: float) -> float:
        return max((cost(k) - cost(edge.from_) - left for cost, left in uses), default=-inf)

    return highest(over, 0.0, edge.from_, edge.to)
