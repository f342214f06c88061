"""Bytes shared out among layers: the densities with the least total error whose bytes keep to limits.

    least Σ E_l(k_l)    with    Σ_{l in S} bytes_l(k_l) ≤ limit_S  for every S,    k_min ≤ k_l ≤ k_max

where of two sets S one is part of the other, as are those of what is ready at one time or later. Each layer's points (bytes,
error) are replaced by their lower convex hull, and the hulls' edges are taken in the order of error saved by byte, from all
layers at k_min on. An edge that does not fit is taken in part, and is its layer's last. So the result is the optimum of the hulls,
which is never worse than the best choice among the points.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf

from testbed.control.adalag import lower_hull
from testbed.control.base import LEVELS
from testbed.control.curves import error_at

Cost = Callable[[float], float]
"""Bytes by density; they do not fall."""
_HALVINGS = 60


@dataclass(frozen=True, slots=True)
class Limit:
    """Bytes that the layers ``names`` may have together."""

    names: frozenset[str]
    budget: float

    def left(self, spent: Mapping[str, float]) -> float:
        """Beside what is spent; layers that are not its own do not count."""
        return self.budget - sum(bytes_ for name, bytes_ in spent.items() if name in self.names)

    def without(self, spent: Mapping[str, float]) -> Limit:
        """Of the other layers, when those of ``spent`` have had theirs."""
        return Limit(self.names.difference(spent), self.left(spent))


@dataclass(frozen=True, slots=True)
class Edge:
    """From one density to a higher one of the layer ``name``."""

    name: str
    from_: float
    to: float
    cost: float
    saved: float
    """Error by byte."""


def ladder(k_min: float, k_max: float) -> list[float]:
    """Densities to choose from, ascending: the limits and the ``LEVELS`` between."""
    return sorted({k_min, k_max, *(level for level in LEVELS if k_min < level < k_max)})


def least_error(
    curves: Mapping[str, list[float]], costs: Mapping[str, Cost], limits: Sequence[Limit], steps: Sequence[float]
) -> dict[str, float]:  # fmt: skip
    """Densities by name. Where not even the least of ``steps`` fits a limit, its layers have that."""
    chosen = dict.fromkeys(curves, steps[0])
    spent, full = {name: costs[name](steps[0]) for name in curves}, set[str]()
    lefts = {limit: limit.left(spent) for limit in limits}
    found = [edge for name in curves for edge in edges(name, curves[name], costs[name], steps)]
    for edge in sorted(found, key=lambda edge: -edge.saved):
        own = [limit for limit in limits if edge.name in limit.names]
        left = min((lefts[limit] for limit in own), default=inf)
        if edge.name in full or left <= 0:
            full.add(edge.name)
            continue
        cost, to = edge.cost, edge.to
        if left < cost:
            cost, to = left, _partly(costs[edge.name], edge, left)
            full.add(edge.name)
        chosen[edge.name] = to
        lefts |= {limit: lefts[limit] - cost for limit in own}
    return chosen


def edges(name: str, curve: list[float], cost: Cost, steps: Sequence[float]) -> list[Edge]:
    """Of a layer's hull, as long as error falls."""
    at = {(cost(k), error_at(curve, k)): k for k in reversed(steps)}
    hull = lower_hull(at)
    return [
        Edge(name, at[low], at[high], high[0] - low[0], (low[1] - high[1]) / (high[0] - low[0]))
        for low, high in pairwise(hull)
        if high[1] < low[1]
    ]


def one_for_all(
    costs: Mapping[str, Cost], limits: Sequence[Limit], k_min: float, k_max: float
) -> float:
    """The highest density that all can have within the limits; k_min where none fits."""

    def over(k: float) -> float:
        spent = {name: cost(k) for name, cost in costs.items()}
        return max((-limit.left(spent) for limit in limits), default=-inf)

    return highest(over, 0.0, k_min, k_max)


def highest(cost: Cost, budget: float, low: float, high: float) -> float:
    """The highest density in [low, high] whose ``cost`` fits, by bisection in log k; ``low`` where none does."""
    if cost(high) <= budget:
        return high
    for _ in range(_HALVINGS):
        middle = float((low * high) ** 0.5)
        if cost(middle) <= budget:
            low = middle
        else:
            high = middle
    return low


def _partly(cost: Cost, edge: Edge, left: float) -> float:
    return highest(cost, cost(edge.from_) + left, edge.from_, edge.to)
