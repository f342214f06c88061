"""Quantiles that are values which occurred, and what few values can say of them."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, lgamma, log, log1p


def spread(values: Sequence[float], fewest: int = 1) -> dict[str, float | None]:
    """``{"p50", "p99", "p99_at_least", "max"}``, each one of the values (nearest rank); None of nothing.

    ``p99_at_least``: what the p99 is not below, with 95 % confidence; ``fewest`` values must be as large, so
    of fewer it is None.
    """
    ordered = sorted(values)
    if not ordered:
        return dict.fromkeys(("p50", "p99", "p99_at_least", "max"))
    needed = max(fewest, significant(len(ordered)))
    rank = {share: max(0, -(-share * len(ordered) // 100) - 1) for share in (50, 99)}
    return {
        "p50": ordered[rank[50]],
        "p99": ordered[rank[99]],
        "p99_at_least": ordered[-min(needed, len(ordered))] if fewest <= len(ordered) else None,
        "max": ordered[-1],
    }


def significant(count: int, share: float = 0.01, confidence: float = 0.95) -> int:
    """The fewest of ``count`` values above a limit that show that more than ``share`` of all are above it.

    Fewer are likely enough (over 1 - ``confidence``) where exactly ``share`` is: the second largest of
    160 values says little about their p99.
    """
    fewer, above = 0.0, 0
    while fewer < confidence and above < count:
        fewer += _exactly(above, count, share)
        above += 1
    return above


def _exactly(above: int, count: int, share: float) -> float:
    """Probability that ``above`` of ``count`` are; by logarithms, since there may be a million."""
    ways = lgamma(count + 1) - lgamma(above + 1) - lgamma(count - above + 1)
    return exp(ways + above * log(share) + (count - above) * log1p(-share))
