"""How much longer than its constant delay a message takes on a way with jitter or slots. Pure."""

from __future__ import annotations

from random import Random
from statistics import NormalDist

from testbed.scenario.impairments import Impairments

_NORMAL = NormalDist()
_SHAPE = 3.0
"""Of the Pareto distribution whose tables ship with netem."""


def extra_s(asked: Impairments, packets: float, random: Random) -> float:
    """What the last of about ``packets`` packets that are under way together adds to the delay, in s.

    Packets stay in order, so the slowest of them holds up those behind it: its delay is drawn.
    """
    held = 0.0
    if asked.jitter_ns:
        level = random.random() ** (1 / max(1.0, packets))
        held = max(-asked.delay_ns, asked.jitter_ns * _quantile(asked.distribution, level)) / 1e9
    if asked.slot is not None:
        held += random.uniform(0.0, asked.slot.longest_ns) / 1e9
    return held


def _quantile(distribution: str, level: float) -> float:
    """Of the jitter, in units of what is asked for (netem: half the width, or the standard deviation)."""
    level = min(max(level, 1e-9), 1 - 1e-9)
    if distribution == "uniform":
        return 2 * level - 1
    normal = _NORMAL.inv_cdf(level)
    if distribution == "normal":
        return normal
    pareto = _pareto(level)
    return pareto if distribution == "pareto" else 0.25 * normal + 0.75 * pareto


def _pareto(level: float) -> float:
    """With mean 0 and standard deviation 1."""
    mean = _SHAPE / (_SHAPE - 1)
    deviation = (_SHAPE / ((_SHAPE - 1) ** 2 * (_SHAPE - 2))) ** 0.5
    return (float((1 - level) ** (-1 / _SHAPE)) - mean) / float(deviation)
