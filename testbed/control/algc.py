"""ALGC after Wang and Zhu (2025): a compression threshold, and a density of its own for every layer
above it.

Only the paper's abstract is public; all rules are ours (``docs/explanation/algc.md``). α, β: what
a message and each of its bytes take; a, c: what compression takes for every parameter and element
(``cost_model``); E_l(k): energy that top-k leaves of layer l (``curves``).

    threshold   l is compressed iff  β·(bytes_l(1) − bytes_l(k_l)) > a + c·n_l,  bytes of both
                ways; else k_l = 1
    layer-wise  least Σ E_l(k_l)  with  Σ bytes_l(k_l) ≤ B_j  over bucket j and all that are ready
                later, for every j (``allot``); or one k for all within the same limits
    budget      B_j = (min(T, t_j + x·T) − α)/β, with t_j the computation that is left when bucket
                j is ready, T = t_1, and x the share of it for which communication may go on after
                the computation has ended

The abstract's server aggregates each layer's gradients and residuals. Residuals stay with the
workers here, or travel whole with the gradient of every step number ``residuals_every``.

Densities are chosen for all layers, those that are not worth it are sent dense, and what they leave
is shared out once more among the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field

from testbed.control.base import Density
from testbed.control.byte_budget import Cost, Limit, ladder, minimise_error, one_for_all
from testbed.control.cost_model import CostEstimate
from testbed.control.layerwise import HidingOptions, OverlapBudget


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
    """One agent, for one worker."""

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
