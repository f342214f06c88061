"""AdaTopK (Huang and Gao): the density follows how fast accuracy and communication delay change.

Algorithm 1, with dd and da the last w first differences of delay and of accuracy:

    dratio = |dd_newest| / Σ|dd|        aratio = |da_newest| / Σ|da|        rdiffer = Σ dd
    if α·aratio ≥ β·dratio:  raise   always if rdiffer ≤ 0, otherwise with probability 1 − p_inc
    else:                    lower   always if rdiffer > 0, otherwise with probability 1 − p_dec
    raise:  k ← m_inc·k + (1 − m_inc)·k_max
    lower:  k ← m_dec·k − (1 − m_dec)·k_dec         then k is clipped to [k_min, k_max]

k is carried from epoch to epoch. ``adatopk_options`` lists the points that the paper leaves open.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from math import isfinite
from random import Random
from typing import Any

from testbed.control.adatopk_options import AdaTopKOptions
from testbed.control.base import Observation
from testbed.control.options import read_options
from testbed.control.seed import generator, generator_state
from testbed.errors import ExperimentError


class AdaTopK:
    """One agent, for one worker, as in the paper. All randomness comes from ``seed``."""

    def __init__(self, *, seed: int, **options: Any) -> None:
        self.options = read_options("adatopk", AdaTopKOptions, options)
        samples = self.options.window + 1
        self._delays: deque[float] = deque(maxlen=samples)
        self._accuracies: deque[float] = deque(maxlen=samples)
        self._random = Random(seed)
        self._k = self.options.first_k

    def density(self) -> float:
        """k for the coming step, in [k_min, k_max]."""
        return self._k

    def observe(self, seen: Observation) -> None:
        """Take in a step; once w + 1 are known, one decision follows each."""
        if not (isfinite(seen.delay_s) and isfinite(seen.accuracy)):
            raise ExperimentError(
                f"controller 'adatopk': step {seen.step} has delay {seen.delay_s} s and accuracy "
                f"{seen.accuracy}; both must be finite"
            )
        self._delays.append(self._delay(seen))
        self._accuracies.append(seen.accuracy)
        if len(self._delays) > self.options.window:
            self._k = min(max(self._decided(), self.options.k_min), self.options.k_max)

    def state(self) -> dict[str, Any]:
        """k, the samples of the window, and the random state, as JSON values."""
        return {
            "k": self._k,
            "delays": list(self._delays),
            "accuracies": list(self._accuracies),
            "random": generator_state(self._random),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Continue exactly where ``state`` was taken; the options must be the same."""
        samples = self.options.window + 1
        self._k = float(state["k"])
        self._delays = deque(state["delays"], maxlen=samples)
        self._accuracies = deque(state["accuracies"], maxlen=samples)
        self._random = generator(state["random"])

    def _delay(self, seen: Observation) -> float:
        if self.options.delay == "per_byte":
            return seen.delay_s / max(1, seen.bytes_sent)
        return seen.delay_s

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
    return sum((place - middle) * (sample - first) for place, sample in enumerate(samples))
