"""The delay-aware family DA1 to DA5, in the style of DC2 (Abdelmoniem and Canini, INFOCOM 2021).

A reconstruction of ours. DC2's thresholds, windows and limits are not public, so nothing that these rules do
is a statement about DC2 itself. d: delay of the newest step; s, v and the window W: ``delays``.

    DA1  two levels    k_max if d ≤ 1.2·d_min, else k_min; the other level only after 2 such steps in a row
    DA2  AIMD          d > 1.05·s: k ← max(k_min, k/2); else k ← min(k_max, k + (k_max − k_min)/100)
    DA3  proportional  k = k_max − (k_max − k_min)·clip((s − d_min)/(d_max − d_min))
    DA4  lenient       5 levels in equal ratios; one down if d > m + 2·sd, one up if d < m + 0.5·sd
    DA5  strict        the same levels; one down if d > m + 0.5·sd, one up if d < m − 0.5·sd

The first 20 steps have k_max. What those lines leave open, and what is done here:

* Delays of the warm-up are taken in, but ask for nothing: hysteresis counts from its end.
* The window includes the newest delay; sd is the population's.
* DA2 compares d with the s of before it, which knows nothing of d yet; DA3 takes the s that includes d.
* DA3 has k_max where d_max = d_min, since nothing was ever slower.
* DA4 and DA5 begin at the uppermost level, stay there or at the lowest where there is no further one, and
  hold where neither threshold is passed, as with delays that are all equal.
* v is kept as part of the common state; none of the five reads it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

from testbed.control.base import Observation
from testbed.control.delay_options import (
    DelayOptions,
    GradientOptions,
    LenientOptions,
    ProportionalOptions,
    StrictOptions,
    ThresholdOptions,
    TwoLevelOptions,
)
from testbed.control.delays import Delays, measured
from testbed.control.options import read_options

Given = TypeVar("Given", bound=DelayOptions)
Limits = TypeVar("Limits", bound=ThresholdOptions)


class DelayAware(ABC, Generic[Given]):
    """One agent, for one worker; without randomness. A subclass has a name, a model of options, and a rule."""

    name: str
    model: type[Given]

    def __init__(self, *, seed: int, **options: Any) -> None:
        del seed
        self.options = read_options(self.name, self.model, options)
        self.delays = Delays(self.options.window)
        self._taken = 0
        self._k = self.options.k_max

    def density(self) -> float:
        """k for the coming step, in [k_min, k_max]."""
        return self._k

    def observe(self, seen: Observation) -> None:
        """Take in a step; from the last one of the warm-up on, one decision follows each."""
        self.delays.take(measured(self.name, seen, self.options.delay))
        self._taken += 1
        if self._taken >= self.options.warm_up:
            self._k = min(max(self._decided(), self.options.k_min), self.options.k_max)

    def state(self) -> dict[str, Any]:
        """k, the delays, and how many steps were taken in."""
        return {"k": self._k, "taken": self._taken, **self.delays.state()}

    def load(self, state: dict[str, Any]) -> None:
        """Continue exactly where ``state`` was taken; the options must be the same."""
        self._k, self._taken = float(state["k"]), int(state["taken"])
        self.delays.load(state)

    @abstractmethod
    def _decided(self) -> float:
        """k after the newest delay; not yet clipped."""


class TwoLevel(DelayAware[TwoLevelOptions]):
    """DA1."""

    name, model = "dc2-da1", TwoLevelOptions
    _asked = 0
    """Steps in a row that asked for the other level."""

    def _decided(self) -> float:
        options, delays = self.options, self.delays
        fast = delays.newest <= options.tolerance * delays.least
        wanted = options.k_max if fast else options.k_min
        self._asked = 0 if wanted == self._k else self._asked + 1
        if self._asked < options.hysteresis:
            return self._k
        self._asked = 0
        return wanted

    def state(self) -> dict[str, Any]:
        """Also how often in a row the other level was asked for."""
        return {**super().state(), "asked": self._asked}

    def load(self, state: dict[str, Any]) -> None:
        """Continue exactly where ``state`` was taken; the options must be the same."""
        super().load(state)
        self._asked = int(state["asked"])


class Gradient(DelayAware[GradientOptions]):
    """DA2."""

    name, model = "dc2-da2", GradientOptions

    def _decided(self) -> float:
        options = self.options
        if self.delays.newest > options.tolerance * self.delays.before:
            return self._k * options.factor
        return self._k + (options.k_max - options.k_min) / options.rises


class Proportional(DelayAware[ProportionalOptions]):
    """DA3."""

    name, model = "dc2-da3", ProportionalOptions

    def _decided(self) -> float:
        options, delays = self.options, self.delays
        least, greatest = delays.least, delays.greatest
        if greatest == least:
            return options.k_max
        share = min(max((delays.smoothed - least) / (greatest - least), 0.0), 1.0)
        return options.k_max - (options.k_max - options.k_min) * share


class Thresholds(DelayAware[Limits]):
    """DA4 and DA5."""

    _level = 0
    """From 0, the uppermost, down."""

    def level(self, number: int) -> float:
        """Its density: k_max · (k_min / k_max)^(number / (levels − 1))."""
        options = self.options
        ratio = options.k_min / options.k_max
        return float(options.k_max * ratio ** (number / (options.levels - 1)))

    def _decided(self) -> float:
        options, delay = self.options, self.delays.newest
        mean, deviation = self.delays.spread()
        if delay > mean + options.down_above * deviation:
            self._level = min(self._level + 1, options.levels - 1)
        elif delay < mean + options.up_below * deviation:
            self._level = max(self._level - 1, 0)
        return self.level(self._level)

    def state(self) -> dict[str, Any]:
        """Also the level."""
        return {**super().state(), "level": self._level}

    def load(self, state: dict[str, Any]) -> None:
        """Continue exactly where ``state`` was taken; the options must be the same."""
        super().load(state)
        self._level = int(state["level"])


class Lenient(Thresholds[LenientOptions]):
    """DA4."""

    name, model = "dc2-da4", LenientOptions


class Strict(Thresholds[StrictOptions]):
    """DA5."""

    name, model = "dc2-da5", StrictOptions
