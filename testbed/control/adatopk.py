"""AdaTopK (Huang and Gao): the density follows how fast accuracy and communication delay change;
its options, with a choice for every point its text leaves open.

Algorithm 1, with dd and da the last w first differences of delay and of accuracy:

    dratio = |dd_newest| / Σ|dd|        aratio = |da_newest| / Σ|da|        rdiffer = Σ dd
    if α·aratio ≥ β·dratio:  raise   always if rdiffer ≤ 0, otherwise with probability 1 − p_inc
    else:                    lower   always if rdiffer > 0, otherwise with probability 1 − p_dec
    raise:  k ← m_inc·k + (1 − m_inc)·k_max
    lower:  k ← m_dec·k − (1 − m_dec)·k_dec         then k is clipped to [k_min, k_max]

k is carried from epoch to epoch. ``AdaTopKOptions`` lists the points that the paper leaves open.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from math import isfinite
from random import Random
from typing import Annotated, Any, Literal

from pydantic import Field

from testbed.control.base import Controller, Density, DensityLimits, Observation, Share

Weight = Annotated[float, Field(ge=0.0)]


class AdaTopKOptions(DensityLimits):
    """Defaults are the paper's; where it is silent or contradicts itself, descriptions say so."""

    alpha: Weight = Field(3.0, description="Weight of accuracy in the comparison (α).")
    beta: Weight = Field(2.0, description="Weight of delay in the comparison (β).")
    window: Annotated[int, Field(ge=1, le=100_000)] = Field(
        18, description="Differences looked at (w); w + 1 samples are kept."
    )
    k_max: Density = Field(0.29, description="Largest density. The paper has 0.29 or 0.26.")
    rho: Share = Field(
        0.78, description="Probability of holding k when trend and comparison disagree (ρ)."
    )
    p_inc: Share | None = Field(
        None,
        description=(
            "The same for raising alone. None: rho, as the text has it. Table 2 also lists ε = 0.9."
        ),
    )
    p_dec: Share | None = Field(None, description="The same for lowering alone. None: rho.")
    m_inc: Share = Field(0.98, description="Weight of the old k when raising.")
    m_dec: Share = Field(0.97, description="Weight of the old k when lowering.")
    k_dec: Share | Literal["k_min", "k_max"] = Field(
        "k_min",
        description="The paper's k_dec, which it never defines: a density, or one of the limits.",
    )
    initial_k: Density | None = Field(
        None, description="Density until the window is full; not in the paper. None: k_max."
    )
    decrease: Literal["minus", "toward_min"] = Field(
        "minus",
        description=(
            "minus: m_dec·k − (1−m_dec)·k_dec, as printed. toward_min: m_dec·k + (1−m_dec)·k_min."
        ),
    )
    trend: Literal["telescoped", "slope"] = Field(
        "telescoped",
        description="telescoped: the sum of differences as printed, which is newest − oldest. "
        "slope: least squares over the window.",
    )
    accuracy: Literal["unsigned", "signed"] = Field(
        "unsigned",
        description=(
            "unsigned: |newest difference|, as printed. signed: falling accuracy counts "
            "against raising."
        ),
    )
    delay: Literal["seconds", "per_byte"] = Field(
        "seconds",
        description="seconds: as printed. per_byte: delay ÷ bytes sent, free of k's own influence.",
    )
    zero_denominator: Literal["hold", "raise"] = Field(
        "hold",
        description="A ratio with nothing under the line is 0. When both are, k holds, or (≥ taken "
        "literally) is raised.",
    )

    @property
    def hold_raising(self) -> float:
        """Probability of not raising although accuracy asks for it, while delay grows."""
        return self.rho if self.p_inc is None else self.p_inc

    @property
    def hold_lowering(self) -> float:
        """Probability of not lowering although delay asks for it, while delay shrinks."""
        return self.rho if self.p_dec is None else self.p_dec

    @property
    def decrement(self) -> float:
        """k_dec as a number."""
        if isinstance(self.k_dec, str):
            return self.k_min if self.k_dec == "k_min" else self.k_max
        return self.k_dec


class AdaTopK(Controller[AdaTopKOptions]):
    """One agent, for one worker, as in the paper. All randomness comes from ``seed``."""

    name, model = "adatopk", AdaTopKOptions
    carried = {"k": "_k", "delays": "_delays", "accuracies": "_accuracies", "random": "_random"}

    def __init__(self, *, seed: int, **options: Any) -> None:
        super().__init__(seed=seed, **options)
        samples = self.options.window + 1
        self._delays: deque[float] = deque(maxlen=samples)
        self._accuracies: deque[float] = deque(maxlen=samples)
        self._random = Random(seed)

    def observe(self, observed: Observation) -> None:
        """Take in a step; once w + 1 are known, one decision follows each."""
        delay_s, accuracy = observed.delay_s, observed.accuracy
        if not (isfinite(delay_s) and isfinite(accuracy)):
            raise self.fail(
                observed, f" has delay {delay_s} s and accuracy {accuracy}; both must be finite"
            )
        per_byte = self.options.delay == "per_byte"
        self._delays.append(delay_s / max(1, observed.bytes_sent) if per_byte else delay_s)
        self._accuracies.append(accuracy)
        if len(self._delays) > self.options.window:
            self._k = self.options.clipped(self._decided())

    def _decided(self) -> float:
        """Lines 4 to 15; not yet clipped."""
        options = self.options
        delays, accuracies = differences(self._delays), differences(self._accuracies)
        if not (any(delays) or any(accuracies)) and options.zero_denominator == "hold":
            return self._k
        signed = options.accuracy == "signed"
        gain = options.alpha * ratio(accuracies, signed=signed)
        loss = options.beta * ratio(delays)
        congested = self._trend() > 0
        if gain >= loss:
            return self._k if congested and self._holds(options.hold_raising) else self._raised()
        return self._lowered() if congested or not self._holds(options.hold_lowering) else self._k

    def _trend(self) -> float:
        """rdiffer: above zero, delay grows."""
        if self.options.trend == "slope":
            return slope(self._delays)
        return self._delays[-1] - self._delays[0]

    def _holds(self, probability: float) -> bool:
        return self._random.random() < probability

    def _raised(self) -> float:
        weight = self.options.m_inc
        return weight * self._k + (1 - weight) * self.options.k_max

    def _lowered(self) -> float:
        weight = self.options.m_dec
        if self.options.decrease == "toward_min":
            return weight * self._k + (1 - weight) * self.options.k_min
        return weight * self._k - (1 - weight) * self.options.decrement


def differences(samples: Sequence[float]) -> list[float]:
    """First differences, oldest first."""
    return [later - earlier for earlier, later in pairwise(samples)]


def ratio(steps: Sequence[float], *, signed: bool = False) -> float:
    """Share of the newest difference in the sum of all; 0 when nothing changed."""
    total = sum(abs(step) for step in steps)
    newest = steps[-1] if signed else abs(steps[-1])
    return newest / total if total > 0 else 0.0


def slope(samples: Sequence[float]) -> float:
    """Least-squares slope per sample, but for a positive factor: only its sign is asked for.

    Samples are taken relative to the first, so that equal ones give exactly 0.
    """
    middle, first = (len(samples) - 1) / 2, samples[0]
    return sum((number - middle) * (sample - first) for number, sample in enumerate(samples))
