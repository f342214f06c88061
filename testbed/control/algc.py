"""ALGC after Wang and Zhu (2025): a compression threshold, and a density of its own for every layer
above it; and bytes shared out among layers.

Only the paper's abstract is public; all rules are ours (``docs/explanation/algc.md``). α, β: what
a message and each of its bytes take; a, c: what compression takes for every parameter and element
(``cost_model``); E_l(k): energy that top-k leaves of layer l (``curves``).

    threshold   l is compressed iff  β·(bytes_l(1) − bytes_l(k_l)) > a + c·n_l,  bytes of both
                ways; else k_l = 1
    layer-wise  least Σ E_l(k_l)  with  Σ bytes_l(k_l) ≤ B_j  over bucket j and all that are ready
                later, for every j (``minimise_error``); or one k for all within the same limits
    budget      B_j = (min(T, t_j + x·T) − α)/β, with t_j the computation that is left when bucket
                j is ready, T = t_1, and x the share of it for which communication may go on after
                the computation has ended

The abstract's server aggregates each layer's gradients and residuals. Residuals stay with the
workers here, or travel whole with the gradient of every step number ``residuals_every``.

Densities are chosen for all layers, those that are not worth it are sent dense, and what they leave
is shared out once more among the others.

``minimise_error`` replaces each layer's points (bytes, error) by their lower convex hull, and
takes the hulls' edges in the order of error saved by byte, from all layers at k_min on. An edge
that does not fit is taken in part, and is its layer's last. Where of two limits' sets of layers one
is part of the other, and a layer takes the same bytes in both, the result is the optimum of the
hulls, which is never worse than the best choice among the points; where bytes differ, it is near to
it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import inf
from typing import Annotated, Any, Literal

from pydantic import Field

from testbed.control.adalag import lower_hull
from testbed.control.base import LEVELS, Density
from testbed.control.cost_model import CostEstimate
from testbed.control.layerwise import HidingOptions, OverlapBudget, error_at

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


class AlgcOptions(HidingOptions):
    """Options of ``algc``."""

    threshold: bool = Field(
        True, description="Layers for which compression takes longer than it saves are sent dense."
    )
    layerwise: bool = Field(
        True, description="Every layer has a density of its own; otherwise one for all."
    )
    budget: Literal["hidden"] | Density = Field(
        "hidden",
        description=(
            "Bytes: what hides behind computation, or those of this density for all layers."
        ),
    )
    residuals_every: Annotated[int, Field(ge=0)] = Field(
        0,
        description="Steps after which workers send their residuals too, all of them, so that the "
        "server aggregates both. 0: residuals stay with the workers.",
    )


class Algc(OverlapBudget[AlgcOptions]):
    """One for each worker."""

    name, model = "algc", AlgcOptions

    def __init__(self, *, seed: int, **options: Any) -> None:
        super().__init__(seed=seed, **options)
        self._steps = ladder(self.options.k_min, self.options.k_max)
        if self.options.layerwise:
            self.watches = frozenset({"buckets", "curves"})

    def densities(self, names: Sequence[str]) -> list[float]:
        """For the coming step; 1 in those whose messages carry the residuals."""
        every = self.options.residuals_every
        if every and (self._taken + 1) % every == 0:
            return [1.0] * len(names)
        return super().densities(names)

    def _decided(self, known: CostEstimate) -> dict[str, float]:
        """All layers, then those that are worth it, with what the others leave of the limits."""
        names = known.names
        curves = self._curves.means(names) if self.options.layerwise else {}
        limits = self._limits(known)
        chosen = self._shared_out(names, curves, known, limits)
        if not self.options.threshold:
            return chosen
        dense = {name: 1.0 for name in names if not self._worth(known, name, chosen[name])}
        others = [name for name in names if name not in dense]
        left = [limit.without(dense) for limit in limits]
        return {**dense, **self._shared_out(others, curves, known, left)}

    def _limits(self, known: CostEstimate) -> list[Limit]:
        """Return the limits of every bucket and all that are ready later; or one for all, where
        bytes are given."""
        later, limits = self._costs(known.names, known.sizes.fuller), list[Limit]()
        if (density := self.options.budget) != "hidden":
            return [Limit(later, sum(cost(density) for cost in later.values()))]
        for message, time_s in zip(known.messages, self._times_s(known), strict=True):
            own = self._costs(message.names, known.sizes.both)
            limits.append(Limit({**later, **own}, known.bytes_in(time_s)))
            later = {name: cost for name, cost in later.items() if name not in own}
        return limits

    def _costs(
        self, names: Sequence[str], cost: Callable[[float, float], float]
    ) -> dict[str, Cost]:
        """Return the costs by name: bytes as a function of density."""
        return {name: partial(cost, self._elements[name]) for name in names}

    def _shared_out(
        self,
        names: Sequence[str],
        curves: Mapping[str, list[float]],
        known: CostEstimate,
        limits: Sequence[Limit],
    ) -> dict[str, float]:
        """Densities of ``names``, within ``limits``."""
        options = self.options
        if not options.layerwise:
            return dict.fromkeys(names, one_for_all(names, limits, options.k_min, options.k_max))
        costs = self._costs(names, known.sizes.fuller)
        return minimise_error({n: curves[n] for n in names}, costs, limits, self._steps)

    def _worth(self, known: CostEstimate, name: str, density: float) -> bool:
        """Return whether compression saves more time than it takes."""
        elements, sizes = self._elements[name], known.sizes
        saved = sizes.both(elements, 1.0) - sizes.both(elements, density)
        return known.transfer.per_s * saved > known.packing.seconds(elements)
