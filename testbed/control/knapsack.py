"""One choice for every item, least cost within a total error: a dynamic programme over errors in whole parts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

PARTS = 10_000
"""Into which the error that is allowed is divided (L-GreCo's number)."""


def cheapest(
    costs: Sequence[Sequence[float]], errors: Sequence[Sequence[float]], allowed: float
) -> list[int] | None:
    """The number of each item's choice; None where no choice keeps to ``allowed``, which must be above 0.

    ``costs``, ``errors``: of every choice of every item, at least 0. Errors are rounded up to ``PARTS`` of ``allowed``, so
    that what is chosen keeps to it; the result is the optimum among the choices that do so after rounding.
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
