"""A factorial experiment: what each of some factors, on or off, does to a measure, and what several do together. Pure.

There is a cell for every choice of factors that are on. With y the measure in a cell and s = +1 for a factor that is on,
−1 for one that is off, the effect of a set S of factors with one seed is the usual contrast of logarithms

    e_S = 2^(1 − n) · Σ over cells of (Π over S of s) · log y

(Box, Hunter and Hunter). For one factor that is the mean logarithm with it minus that without; for two, half of what the second
changes about that: A adds e_A + e_AB with B on, e_A − e_AB with B off. A seed has all cells in common, so effects are paired by it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import exp, isfinite, log

from analysis.statistics import Interval, interval, ratio

Cell = frozenset[str]
"""The factors that are on."""
Values = Mapping[Cell, Mapping[int, float]]
"""A positive measure by cell and seed."""


@dataclass(frozen=True, slots=True)
class Effect:
    """By what ``factors`` together multiply the measure: the interval of exp e_S over ``seeds``. 1: not at all."""

    factors: tuple[str, ...]
    ratio: Interval
    seeds: int

    @property
    def name(self) -> str:
        """``threshold × overlap``."""
        return " × ".join(self.factors)

    @property
    def differs(self) -> bool:
        """Whether no effect lies outside the interval."""
        return self.ratio.leaves_out(1.0)


def cells(factors: Sequence[str]) -> list[Cell]:
    """All 2ⁿ: none on first, then one, and so on."""
    return [frozenset(chosen) for chosen in _sets(factors)]


def complete(factors: Sequence[str], values: Values) -> list[int]:
    """The seeds with a positive and finite measure in every cell, ascending. Only these count."""
    known = [
        {seed for seed, y in values.get(cell, {}).items() if isfinite(y) and y > 0}
        for cell in cells(factors)
    ]
    return sorted(set.intersection(*known))


def effects(factors: Sequence[str], values: Values) -> list[Effect]:
    """Main effects, then those of two factors, and so on."""
    seeds = complete(factors, values)
    found = []
    for chosen in list(_sets(factors))[1:]:
        contrasts = [_contrast(factors, chosen, values, seed) for seed in seeds]
        found.append(Effect(chosen, interval(contrasts).through(exp), len(seeds)))
    return found


def conditional(factors: Sequence[str], factor: str, values: Values) -> dict[Cell, Interval]:
    """What ``factor`` multiplies the measure by, for each choice of the others."""
    seeds = complete(factors, values)
    found = {}
    for cell in cells([other for other in factors if other != factor]):
        own, without = values[cell | {factor}], values[cell]
        found[cell] = ratio([own[seed] for seed in seeds], [without[seed] for seed in seeds])
    return found


def means(factors: Sequence[str], values: Values) -> dict[Cell, Interval]:
    """Geometric mean in each cell, unpaired."""
    seeds = complete(factors, values)
    return {
        cell: interval([log(values[cell][seed]) for seed in seeds]).through(exp)
        for cell in cells(factors)
    }


def _sets(factors: Sequence[str]) -> Iterator[tuple[str, ...]]:
    for many in range(len(factors) + 1):
        yield from combinations(factors, many)


def _contrast(factors: Sequence[str], chosen: Sequence[str], values: Values, seed: int) -> float:
    signed = (
        (-1) ** sum(factor not in cell for factor in chosen) * log(values[cell][seed])
        for cell in cells(factors)
    )
    return float(2.0 ** (1 - len(factors)) * sum(signed))
