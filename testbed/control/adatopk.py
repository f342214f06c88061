"""AdaTopK (Huang and Gao): the density follows how fast accuracy and communication delay change;
its options, with a choice for every point its text leaves open. Equation (2), from which the paper
derives it, is a controller too.

Algorithm 1, with dd and da the last w first differences of delay and of accuracy:

    dratio = |dd_newest| / Σ|dd|        aratio = |da_newest| / Σ|da|        rdiffer = Σ dd
    if α·aratio ≥ β·dratio:  raise   always if rdiffer ≤ 0, otherwise with probability 1 − p_inc
    else:                    lower   always if rdiffer > 0, otherwise with probability 1 − p_dec
    raise:  k ← m_inc·k + (1 − m_inc)·k_max
    lower:  k ← m_dec·k − (1 − m_dec)·k_dec         then k is clipped to [k_min, k_max]

k is carried from epoch to epoch. ``AdaTopKOptions`` lists the points that the paper leaves open.

Equation (2), over candidate densities, with accuracy μ and delay v:

    argmax over k:  α·N(μ − μ_min) + β·N(v_max − v)          N(x) = (x − x_min) / (x_max − x_min)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from math import isfinite
from random import Random
from typing import Annotated, Any, Literal

from pydantic import Field

from testbed.control.base import (
    Controller,
    Density,
    DensityLimits,
    Observation,
    Share,
)
from testbed.registry import Options

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
    """One for each worker, as in the paper. All randomness comes from ``seed``."""

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


class EquationTwoOptions(Options):
    """Options of ``adatopk-eq2``. The paper has α and β; all else is a choice of ours."""

    alpha: Weight = Field(3.0, description="Weight of the gain of accuracy (α).")
    beta: Weight = Field(2.0, description="Weight of the gain of delay (β).")
    candidates: Annotated[list[Density], Field(min_length=1, max_length=1000)] = Field(
        [0.001, 0.01, 0.05, 0.1, 0.15, 0.29], description="Densities to choose from (k_all)."
    )
    least_accuracy: Share = Field(
        0.0, description="μ_min: candidates below it are left out, unless all are."
    )
    most_delay_s: Annotated[float, Field(gt=0.0)] | None = Field(
        None, description="v_max: candidates above it are left out, unless all are. None: none is."
    )
    memory: Annotated[float, Field(ge=0.0, lt=1.0)] = Field(
        0.9, description="Weight of what was known of a candidate, when it is used again."
    )
    explore: Share = Field(
        0.1, description="Probability of a step with any candidate, once each was used."
    )
    accuracy: Literal["level", "gain"] = Field(
        "level",
        description="level: μ is the accuracy of a step, as printed, so that later steps look "
        "better. gain: its difference to the step before.",
    )


class EquationTwo(Controller[EquationTwoOptions]):
    """The candidate with the greatest normalised gain. Each is used once to begin with, from the
    densest on.

    N maps the candidates' least to 0 and their greatest to 1, so that μ_min and v_max cancel in
    it; they say which candidates are acceptable. Where all are equal, N is 0.
    """

    name, model = "adatopk-eq2", EquationTwoOptions
    carried = {
        "choice": "_choice",
        "delays": "_delays",
        "accuracies": "_accuracies",
        "last": "_last",
        "random": "_random",
    }

    def __init__(self, *, seed: int, **options: Any) -> None:
        super().__init__(seed=seed, **options)
        self._ks = sorted(set(self.options.candidates), reverse=True)
        self._choice = 0
        self._delays: list[float] = []
        self._accuracies: list[float] = []
        self._last: float | None = None
        self._random = Random(seed)

    def density(self) -> float:
        """The candidate of the coming step."""
        return self._ks[self._choice]

    def observe(self, observed: Observation) -> None:
        """Take in a step with the candidate chosen, and choose the next."""
        delay_s, accuracy = observed.delay_s, observed.accuracy
        if not (isfinite(delay_s) and isfinite(accuracy)):
            raise self.fail(
                observed, f" has delay {delay_s} s and accuracy {accuracy}; both must be finite"
            )
        gain = 0.0 if self._last is None else accuracy - self._last
        self._last = accuracy
        self._learn(self._delays, delay_s)
        self._learn(self._accuracies, gain if self.options.accuracy == "gain" else accuracy)
        self._choice = self._chosen()

    def _learn(self, known: list[float], value: float) -> None:
        if self._choice == len(known):
            known.append(value)
            return
        weight = self.options.memory
        known[self._choice] = weight * known[self._choice] + (1 - weight) * value

    def _chosen(self) -> int:
        """Place of the next candidate, the densest of equally good ones."""
        known = len(self._delays)
        if known < len(self._ks):
            return known
        if self._random.random() < self.options.explore:
            return self._random.randrange(known)
        places = self._acceptable() or list(range(known))
        accuracies = normalised([self._accuracies[index] for index in places])
        delays = normalised([-self._delays[index] for index in places])
        gains = [
            self.options.alpha * a + self.options.beta * d
            for a, d in zip(accuracies, delays, strict=True)
        ]
        return places[gains.index(max(gains))]

    def _acceptable(self) -> list[int]:
        most, least = self.options.most_delay_s, self.options.least_accuracy
        if self.options.accuracy == "gain":
            least = -1.0
        return [
            index
            for index, (delay_s, accuracy) in enumerate(
                zip(self._delays, self._accuracies, strict=True)
            )
            if accuracy >= least and (most is None or delay_s <= most)
        ]


def normalised(values: Sequence[float]) -> list[float]:
    """N of equation (2): least 0, greatest 1; zeros where all are equal."""
    low, high = min(values), max(values)
    return [(value - low) / (high - low) if high > low else 0.0 for value in values]


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
