"""How netem spreads delays: tables of quantiles, from which it draws one for every packet.

A packet's delay is ``delay + jitter * x``, where ``x`` is an entry of the table, in 1/8192: so the jitter is
half the width of a uniform spread and the standard deviation of a normal one. The other two are those that
the ``tc`` program ships: a Pareto distribution of shape 3, shifted by its mean and stretched by 4/3 (its
standard deviation is 0.82 of the jitter, since entries end at 4), and a quarter of the normal one plus three
quarters of that.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from statistics import NormalDist

from testbed.scenario.impairments import Distribution

DELAY_UNIT, ENTRIES = 8192, 4096
_LOWEST, _HIGHEST = -(1 << 15), (1 << 15) - 1
_PARETO_SHAPE, _PARETO_MEAN, _PARETO_STRETCH, _NORMAL_PART = 3, 1.5, 4 / 3, 0.25


def _normal(share: float) -> float:
    return NormalDist().inv_cdf(share)


def _uniform(share: float) -> float:
    return 2 * share - 1


def _pareto(share: float) -> float:
    exact: float = (1 - share) ** (-1 / _PARETO_SHAPE)
    return (exact - _PARETO_MEAN) * _PARETO_STRETCH


def _paretonormal(share: float) -> float:
    return _NORMAL_PART * _normal(share) + (1 - _NORMAL_PART) * _pareto(share)


_QUANTILES: dict[Distribution, Callable[[float], float]] = {
    "uniform": _uniform,
    "normal": _normal,
    "pareto": _pareto,
    "paretonormal": _paretonormal,
}


def entries(distribution: Distribution) -> list[int]:
    """4096 quantiles in 1/8192, rising, each in the middle of its share; cut off at 16 bits."""
    quantile = _QUANTILES[distribution]
    exact = (quantile((entry + 0.5) / ENTRIES) * DELAY_UNIT for entry in range(ENTRIES))
    return [max(_LOWEST, min(_HIGHEST, round(value))) for value in exact]


@cache
def table(distribution: Distribution) -> bytes:
    """The entries as the kernel takes them."""
    return struct.pack(f"={ENTRIES}h", *entries(distribution))
