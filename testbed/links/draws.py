"""How netem draws: tables of delays, and what to tell it so that a share with a correlation is that share.

A packet's delay is ``delay + jitter * x``, where ``x`` is an entry of the table, in 1/8192: so the jitter is
half the width of a uniform spread and the standard deviation of a normal one. The other two are those that
the ``tc`` program ships: a Pareto distribution of shape 3, shifted by its mean and stretched by 4/3 (its
standard deviation is 0.82 of the jitter, since entries end at 4), and a quarter of the normal one plus three
quarters of that.

Where a share has a correlation, netem draws for every packet ``x = (1 - c) * v + c * x'`` with a fresh uniform ``v`` and
the last ``x'``, and acts where ``x`` is below the share that it was told. But such an ``x`` keeps to the middle: told
10 % with a correlation of 25 % it would act on 1.7 %. So it is told the value below which ``x`` lies as often as was
asked. A correlation of delays changes nothing: netem takes an entry of its table by the lowest bits of ``x``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from testbed.scenario.impairments import HIGHEST_CORRELATION, Distribution, Impairments

if TYPE_CHECKING:
    import numpy as np

    Values = np.ndarray[Any, np.dtype[np.float64]]

DELAY_UNIT, ENTRIES = 8192, 4096
_LOWEST, _HIGHEST = -(1 << 15), (1 << 15) - 1
_WAVES, _FLAT = 1 << 15, 1e-4
_PARETO_SHAPE, _PARETO_MEAN, _PARETO_STRETCH, _NORMAL_PART = 3, 1.5, 4 / 3, 0.25


_normal = NormalDist().inv_cdf


def _pareto(share: float) -> float:
    exact: float = (1 - share) ** (-1 / _PARETO_SHAPE)
    return (exact - _PARETO_MEAN) * _PARETO_STRETCH


_QUANTILES: dict[Distribution, Callable[[float], float]] = {
    "uniform": lambda share: 2 * share - 1,
    "normal": _normal,
    "pareto": _pareto,
    "paretonormal": lambda at: _NORMAL_PART * _normal(at) + (1 - _NORMAL_PART) * _pareto(at),
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


def told(impairments: Impairments) -> Impairments:
    """Impairments with the shares to tell netem in the place of those that are asked for."""
    shares: dict[str, Any] = {
        name: threshold(getattr(impairments, name), getattr(impairments, f"{name}_correlation"))
        for name in ("reorder", "duplicate", "corrupt")
    }
    return replace(impairments, **shares)


def threshold(share: float, correlation: float) -> float:
    """The value below which netem's correlated random number lies with probability ``share``.

    Scenarios are refused a correlation above ``HIGHEST_CORRELATION``; with one the share is told as it is.
    """
    if not 0 < share < 1 or not 0 < correlation <= HIGHEST_CORRELATION:
        return share
    import numpy as np

    values, below = _distribution(correlation)
    return float(np.interp(share, below, values))


@cache
def _distribution(correlation: float) -> tuple[Values, Values]:
    """Values, and how often ``x`` is below each: a Fourier series.

    ``x`` is a sum of uniform numbers of the widths ``(1-c) * c**n``: a wave's height is the product of theirs.
    """
    import numpy as np

    waves, width = np.arange(1, _WAVES), 1 - correlation
    heights = np.where(waves % 2, -1.0, 1.0) / (np.pi * waves)
    while width * _WAVES > _FLAT:
        heights *= np.sinc(waves * width)
        width *= correlation
    values = np.linspace(0, 1, 2 * _WAVES, endpoint=False)
    sines = np.fft.irfft([0, *(-1j * _WAVES * heights), 0])
    return values, np.maximum.accumulate(np.clip(values + sines, 0, 1))
