"""Fixed densities of exact top-k: the best of them is what an adaptive algorithm has to beat."""

from __future__ import annotations

from collections.abc import Sequence

SWEEP = ("topk-0.001", "topk-0.003", "topk-0.01", "topk-0.03", "topk-0.1", "topk-0.3")
"""What ``--sweep`` adds."""


def swept(names: Sequence[str]) -> list[str]:
    """``names``, then the densities of a sweep that are not among them."""
    there = {fixed_density(name) for name in names}
    return [*names, *(name for name in SWEEP if fixed_density(name) not in there)]


def fixed_density(name: str) -> float | None:
    """The density of ``topk-<density>``, exact top-k with error feedback; None of anything else."""
    prefix, _, number = name.partition("-")
    try:
        return float(number) if prefix == "topk" else None
    except ValueError:
        return None
