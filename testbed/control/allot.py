"""Bytes shared out among layers: the densities with the least total error whose bytes keep to a budget.

    least Σ E_l(k_l)    with    Σ bytes_l(k_l) ≤ budget,    k_min ≤ k_l ≤ k_max

Each layer's points (bytes, error) are replaced by their lower convex hull, and the hulls' edges are taken in the order of error saved
by byte, from all layers at k_min on. The last edge that does not fit is taken in part. So the result is the optimum of the hulls, which is
never worse than the best choice among the points.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from testbed.control.adalag import lower_hull
from testbed.control.base import LEVELS
from testbed.control.curves import error_at

Cost = Callable[[float], float]
"""Bytes by density; they do not fall."""
_HALVINGS = 60


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
    curves: Mapping[str, list[float]], costs: Mapping[str, Cost], budget: float, steps: Sequence[float]
) -> dict[str, float]:  # fmt: skip
    """Densities by name. Where not even the least of ``steps`` fits the budget, all have that."""
    chosen = dict.fromkeys(curves, steps[0])
    left = budget - sum(costs[name](steps[0]) for name in curves)
    found = [edge for name in curves for edge in edges(name, curves[name], costs[name], steps)]
    for edge in sorted(found, key=lambda edge: -edge.saved):
        if left < edge.cost:
            if left > 0:
                chosen[edge.name] = _partly(costs[edge.name], edge, left)
            break
        chosen[edge.name] = edge.to
        left -= edge.cost
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


def one_for_all(costs: Mapping[str, Cost], budget: float, k_min: float, k_max: float) -> float:
    """The highest density that all can have within the budget; k_min where none fits."""
    return highest(lambda k: sum(cost(k) for cost in costs.values()), budget, k_min, k_max)


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
