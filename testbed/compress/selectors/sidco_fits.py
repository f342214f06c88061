"""Where the tail of a fitted distribution begins: SIDCo (Abdelmoniem et al., MLSys 2021).

Every function gives the t with P(X > t) = ``share``, in (0, 1), for magnitudes X ≥ 0 with the moments given.
"""

from __future__ import annotations

from math import expm1, isinf, log, sqrt

NEARLY_ZERO = 1e-6
"""Below it, a shape parameter's limit stands for a quotient of two small numbers."""


def exponential(mean: float, share: float) -> float:
    """t = −mean·ln(share): maximum likelihood of the double exponential (Laplace) distribution."""
    return -mean * log(share)


def pareto(mean: float, variance: float, share: float) -> float:
    """Generalised Pareto by its moments: with q = mean²/variance, c = (q − 1)/2 and a = mean·(q + 1)/2,

    t = a·(1 − shareᶜ)/c, which for c → 0 is the exponential and for variance → 0 the mean itself (a
    variance below 0 is a rounding error).
    """
    ratio = mean * mean / variance if variance > 0 else float("inf")
    if isinf(ratio):
        return mean
    shape = (ratio - 1) / 2
    if abs(shape) < NEARLY_ZERO:
        return exponential(mean, share)
    return -mean * ((ratio + 1) / (ratio - 1)) * expm1(shape * log(share))


def gamma(mean: float, mean_log: float, share: float) -> float:
    """Gamma by Minka's closed form near maximum likelihood: with s = ln(mean) − mean of the logarithms,

    shape = (3 − s + √((s − 3)² + 24 s))/(12 s), scale = mean/shape. For s → 0 all values are the mean.
    """
    from scipy.special import gammainccinv

    spread = log(mean) - mean_log
    if spread < NEARLY_ZERO:
        return mean
    shape = (3 - spread + sqrt((spread - 3) ** 2 + 24 * spread)) / (12 * spread)
    return float(mean / shape * gammainccinv(shape, share))
