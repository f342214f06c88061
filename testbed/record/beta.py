"""The interval that a share lies in, from counts: Clopper and Pearson's, by the incomplete beta function.

C. J. Clopper and E. S. Pearson, "The use of confidence or fiducial limits illustrated in the case of the
binomial", Biometrika 26 (1934). The continued fraction is 8.17.22 of the NIST Digital Library of Mathematical
Functions, evaluated by Lentz's method. Counts need not be whole: what is correlated counts for less.
"""

from __future__ import annotations

from math import exp, lgamma, log, log1p

_TINY, _EXACT, _TERMS, _HALVINGS = 1e-300, 1e-14, 200_000, 200


def interval(hits: float, trials: float, confidence: float) -> tuple[float, float]:
    """The least and the largest share that ``hits`` of ``trials`` leave likely enough."""
    if trials <= 0:
        return 0.0, 1.0
    tail = (1 - confidence) / 2
    low = 0.0 if hits <= 0 else _quantile(tail, hits, trials - hits + 1)
    high = 1.0 if hits >= trials else _quantile(1 - tail, hits + 1, trials - hits)
    return low, high


def regularised(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function I_x(a, b)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (
        a + b + 2
    ):  # there the fraction of the mirrored function is the one that converges
        return 1 - regularised(1 - x, b, a)
    front = lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log1p(-x)
    return exp(front) * _fraction(x, a, b) / a


def _fraction(x: float, a: float, b: float) -> float:
    c, d = 1.0, 1 / _not_zero(1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, _TERMS):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / _not_zero(1 + numerator * d)
            c = _not_zero(1 + numerator / c)
            value *= c * d
        if abs(c * d - 1) < _EXACT:
            break
    return value


def _not_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY


def _quantile(probability: float, a: float, b: float) -> float:
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if regularised(middle, a, b) < probability:
            low = middle
        else:
            high = middle
        if high - low <= 1e-12 * high:
            break
    return (low + high) / 2
