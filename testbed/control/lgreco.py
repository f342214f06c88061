"""One choice for every item, least cost within a total error: a dynamic programme over errors in
whole parts.

L-GreCo (Markov et al., MLSys 2024): the fewest bytes whose error is at most that of one density for
all layers.

    least Σ bytes_l(k_l)    with    Σ E_l(k_l) ≤ α·Σ E_l(k),    k/2 ≤ k_l ≤ 2·k

every 100 steps, by a dynamic programme over errors in 10 000 parts. k: the user's density; E_l(k):
energy that top-k leaves of layer l. Choices of ours: each worker decides for itself, by the mean of
the curves since its last decision; errors are rounded up, so that the bound is kept, and where
nothing keeps it after rounding, or nothing is shorter, all layers have k.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from testbed.control.base import LEVELS, Density
from testbed.control.cost_model import CostEstimate
from testbed.control.layerwise import Layered, LayeredOptions, error_at

PARTS = 10_000
"""Into which the error that is allowed is divided (L-GreCo's number)."""


def cheapest(
    costs: Sequence[Sequence[float]], errors: Sequence[Sequence[float]], allowed: float
) -> list[int] | None:
    """The number of each item's choice; None where no choice keeps to ``allowed``, which must be
    above 0.

    ``costs``, ``errors``: of every choice of every item, at least 0. Errors are rounded up to
    ``PARTS`` of ``allowed``, so that what is chosen keeps to it; the result is the optimum among
    the choices that do so after rounding.
    """
    least, taken = np.zeros(PARTS + 1), []
    for own, lost in zip(costs, errors, strict=True):
        parts = [_parts(error, allowed) for error in lost]
        table = np.full((len(own), PARTS + 1), np.inf)
        for choice, (cost, part) in enumerate(zip(own, parts, strict=True)):
            if part <= PARTS:
                table[choice, part:] = least[: PARTS + 1 - part] + cost
        taken.append((table.argmin(axis=0), parts))
        least = table.min(axis=0)
    if not np.isfinite(least[PARTS]):
        return None
    left, chosen = PARTS, []
    for best, parts in reversed(taken):
        chosen.append(int(best[left]))
        left -= parts[chosen[-1]]
    return chosen[::-1]


def _parts(error: float, allowed: float) -> int:
    """Rounded up, but for what rounding of float64 alone would add."""
    return int(min(np.ceil(error / allowed * PARTS * (1 - 1e-12)), PARTS + 1))


class LgrecoOptions(LayeredOptions):
    """Options of ``lgreco``."""

    density: Density = Field(0.01, description="Of all layers in the setting to compare with (k).")
    tolerance: Annotated[float, Field(gt=0.0, le=100.0)] = Field(
        1.0, description="Error that is allowed, by that of this setting (α)."
    )
    factor: Annotated[float, Field(gt=1.0, le=1000.0)] = Field(
        2.0, description="Most that a layer's density differs from it by."
    )
    levels: Annotated[int, Field(ge=1, le=50)] = Field(
        4, description="Densities to choose from above it, and as many below, in equal ratios."
    )
    every: Annotated[int, Field(ge=1, le=100_000)] = Field(
        100, description="Steps between two decisions."
    )


class Lgreco(Layered[LgrecoOptions]):
    """One for each worker."""

    name, model = "lgreco", LgrecoOptions
    watches = frozenset({"buckets", "curves"})

    def __init__(self, *, seed: int, **options: Any) -> None:
        super().__init__(seed=seed, **options)
        given = self.options
        steps = range(-given.levels, given.levels + 1)
        ratios = [given.factor ** (step / given.levels) for step in steps]
        least = min(given.density, LEVELS[-1])  # below it curves say the same of all densities
        self._choices = sorted({min(1.0, max(least, given.density * ratio)) for ratio in ratios})

    @property
    def first(self) -> float:
        """k."""
        return self.options.density

    def _decided(self, known: CostEstimate) -> dict[str, float]:
        names, k = known.names, self.options.density
        curves = self._curves.means(names)
        uniform = dict.fromkeys(names, k)
        allowed = self.options.tolerance * sum(error_at(curves[name], k) for name in names)
        if not allowed:
            return uniform

        def bytes_of(name: str, density: float) -> float:
            return known.sizes.up(self._elements[name], density)

        costs = [[bytes_of(name, choice) for choice in self._choices] for name in names]
        errors = [[error_at(curves[name], choice) for choice in self._choices] for name in names]
        numbers = cheapest(costs, errors, allowed)
        if numbers is None:
            return uniform
        chosen = {name: self._choices[n] for name, n in zip(names, numbers, strict=True)}
        both = [sum(bytes_of(name, k) for name, k in c.items()) for c in (chosen, uniform)]
        return chosen if both[0] < both[1] else uniform
