"""ALGC after Wang and Zhu (2025): a compression threshold, and a density of its own for every layer above it.

Only the paper's abstract is public; all rules are ours (``docs/algc.md``). α, β: what a message and each of its bytes take;
a, c: what compression takes for every parameter and element (``way``); E_l(k): energy that top-k leaves of layer l (``curves``).

    threshold   l is compressed iff  β·(bytes_l(1) − bytes_l(k_l)) > a + c·n_l,  bytes of both ways; else k_l = 1
    layer-wise  least Σ E_l(k_l)  with  Σ bytes_l(k_l) ≤ B  (``allot``); or one k for all within the same B
    budget      B = (T − α)/β, with T the computation that is left when the first bucket is ready

Densities are chosen for all layers, those that are not worth it are sent dense, and what they leave of B is shared out
once more among the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

from pydantic import Field

from testbed.control.allot import Cost, ladder, least_error, one_for_all
from testbed.control.hiding import Hiding, HidingOptions
from testbed.control.options import Density
from testbed.control.way import Known


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
        description="Bytes: what hides behind computation, or those of this density for all layers.",
    )


class Algc(Hiding[AlgcOptions]):
    """One agent, for one worker."""

    name, model = "algc", AlgcOptions

    def __init__(self, *, seed: int, **options: Any) -> None:
        super().__init__(seed=seed, **options)
        self._steps = ladder(self.options.k_min, self.options.k_max)
        if self.options.layerwise:
            self.watches = frozenset({"buckets", "curves"})

    def _decided(self, known: Known) -> dict[str, float]:
        """All layers, then those that are worth it, with what the others leave of the budget."""
        names = known.names
        costs: dict[str, Cost] = {
            name: partial(known.sizes.busy, self._elements[name]) for name in names
        }
        curves = self._curves.means(names) if self.options.layerwise else {}
        budget = self._budget(known, costs)
        chosen = self._shared_out(names, curves, costs, budget)
        if not self.options.threshold:
            return chosen
        dense = [name for name in names if not self._worth(known, name, chosen[name])]
        others = [name for name in names if name not in dense]
        left = budget - sum(costs[name](1.0) for name in dense)
        return {**dict.fromkeys(dense, 1.0), **self._shared_out(others, curves, costs, left)}

    def _budget(self, known: Known, costs: Mapping[str, Cost]) -> float:
        """B in bytes."""
        budget = self.options.budget
        if budget == "hidden":
            return known.bytes_in(self._room_s(known))
        return sum(cost(budget) for cost in costs.values())

    def _shared_out(
        self, names: Sequence[str], curves: Mapping[str, list[float]], costs: Mapping[str, Cost], budget: float
    ) -> dict[str, float]:  # fmt: skip
        """Densities of ``names``, within ``budget``."""
        own = {name: costs[name] for name in names}
        if self.options.layerwise:
            return least_error({n: curves[n] for n in names}, own, budget, self._steps)
        options = self.options
        return dict.fromkeys(names, one_for_all(own, budget, options.k_min, options.k_max))

    def _worth(self, known: Known, name: str, density: float) -> bool:
        """Whether compression saves more than it takes."""
        elements, sizes = self._elements[name], known.sizes
        saved = sizes.both(elements, 1.0) - sizes.both(elements, density)
        return known.way.per_s * saved > known.packing.seconds(elements)
