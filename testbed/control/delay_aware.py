"""The delay-aware family DA1 to DA5, in the style of DC2 (Abdelmoniem and Canini, INFOCOM 2021),
and the delays it remembers.

DA1-DA5.

    v ← 3/4·v + 1/4·|d − s|        s ← 7/8·s + 1/8·d

with the weights of TCP's timer (RFC 6298, section 2). As there, v is changed first, against
the s of before, and the first delay sets s = d and v = d/2. Window: the newest W delays, the newest
of all included. All in the unit of the delays: seconds, or seconds per byte.

A reconstruction of ours. DC2's thresholds, windows and limits are not public, so nothing that these
rules do is a statement about DC2 itself. d: delay of the newest step; s, v and the window W:
``delays``.

    DA1  two levels    k_max if d ≤ 1.2·d_min, else k_min; the other level only after 2 such steps
                       in a row
    DA2  AIMD          d > 1.05·s: k ← max(k_min, k/2); else k ← min(k_max, k + (k_max − k_min)/100)
    DA3  proportional  k = k_max − (k_max − k_min)·clip((s − d_min)/(d_max − d_min))
    DA4  lenient       5 levels in equal ratios; one down if d > m + 2·sd, one up if d < m + 0.5·sd
    DA5  strict        the same levels; one down if d > m + 0.5·sd, one up if d < m − 0.5·sd

The first 20 steps have k_max. What those lines leave open, and what is done here:

* Delays of the warm-up are taken in, but ask for nothing: hysteresis counts from its end.
* The window includes the newest delay; sd is the population's.
* DA2 compares d with the s of before it, which knows nothing of d yet; DA3 takes the s that
  includes d.
* DA3 has k_max where d_max = d_min, since nothing was ever slower.
* DA4 and DA5 begin at the uppermost level, stay there or at the lowest where there is no further
  one, and hold where neither threshold is passed, as with delays that are all equal.
* v is kept as part of the common state; none of the five reads it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Mapping
from math import exp, fsum, hypot, isfinite, log, sqrt
from random import Random
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import Field, model_validator

from testbed.control.base import Controller, Density, DensityLimits, Observation
from testbed.registry import Carried

Unit = Literal["seconds", "per_byte"]


class Delays(Carried):
    """The delays of one worker, newest last."""

    carried = {"s": "smoothed", "v": "deviation", "window": "window"}

    def __init__(self, window: int) -> None:
        self.window: deque[float] = deque(maxlen=window)
        self.smoothed = 0.0
        """s."""
        self.before = 0.0
        """s as it was before the newest delay."""
        self.deviation = 0.0
        """v."""

    def take(self, delay: float) -> None:
        """Take in the next one."""
        if self.window:
            self.before = self.smoothed
            self.deviation += (abs(delay - self.before) - self.deviation) / 4
            self.smoothed += (delay - self.before) / 8
        else:
            self.before = self.smoothed = delay
            self.deviation = delay / 2
        self.window.append(delay)

    @property
    def newest(self) -> float:
        """d."""
        return self.window[-1]

    @property
    def least(self) -> float:
        """d_min of the window."""
        return min(self.window)

    @property
    def greatest(self) -> float:
        """d_max of the window."""
        return max(self.window)

    def spread(self) -> tuple[float, float]:
        """Mean and population standard deviation of the window.

        Taken relative to the oldest delay, so that equal ones deviate by exactly 0.
        """
        oldest, count = self.window[0], len(self.window)
        mean = oldest + fsum((delay - oldest) / count for delay in self.window)
        return mean, hypot(*((delay - mean) / sqrt(count) for delay in self.window))


def measured(controller: Controller[Any], observed: Observation, unit: Unit = "seconds") -> float:
    """The delay of a step in ``unit``. Raises ExperimentError if it is negative or not finite."""
    delay_s = observed.delay_s
    if not (isfinite(delay_s) and delay_s >= 0):
        raise controller.fail(
            observed, f" has delay {delay_s} s; it must be finite and not negative"
        )
    return delay_s / max(1, observed.bytes_sent) if unit == "per_byte" else delay_s


Count = Annotated[int, Field(ge=1, le=100_000)]


class DelayOptions(DensityLimits):
    """Options that every rule of the family has.

    The constants are ours: DC2's own are not public.
    """

    k_max: Density = Field(
        0.29, description="Largest density, and that of the warm-up; as AdaTopK's."
    )
    k_min: Density = Field(0.001, description="Smallest density; as AdaTopK's.")
    warm_up: Annotated[int, Field(ge=0, le=100_000)] = Field(
        20, description="Steps at k_max before the rule decides; their delays are taken in."
    )
    window: Count = Field(50, description="Newest delays looked at (W).")
    delay: Unit = Field(
        "seconds",
        description=(
            "seconds: of the step. per_byte: divided by the bytes sent, free of k's own influence."
        ),
    )


class TwoLevelOptions(DelayOptions):
    """Options of DA1."""

    tolerance: Annotated[float, Field(ge=1.0)] = Field(
        1.2, description="k_max is asked for up to so many times the window's least delay."
    )
    hysteresis: Count = Field(
        2, description="Steps in a row that must ask for the other level before it is taken."
    )


class GradientOptions(DelayOptions):
    """Options of DA2."""

    tolerance: Annotated[float, Field(ge=1.0)] = Field(
        1.05,
        description="Delay grows where it is above so many times the smoothed delay of before.",
    )
    factor: Annotated[float, Field(gt=0.0, lt=1.0)] = Field(
        0.5, description="Of k where delay grows."
    )
    rises: Count = Field(100, description="Steps from k_min to k_max where it does not.")


class ThresholdOptions(DelayOptions):
    """Options of DA4 and DA5: levels, and two thresholds in standard deviations from the mean."""

    levels: Annotated[int, Field(ge=2, le=1000)] = Field(
        5, description="Densities from k_max to k_min in equal ratios."
    )
    down_above: float = Field(description="One level down above mean + this · standard deviation.")
    up_below: float = Field(description="One level up below mean + this · standard deviation.")

    @model_validator(mode="after")
    def _apart(self) -> Self:
        if self.up_below > self.down_above:
            raise ValueError(f"up_below {self.up_below} is above down_above {self.down_above}")
        return self


class LenientOptions(ThresholdOptions):
    """Options of DA4."""

    down_above: float = Field(
        2.0, description="One level down above mean + this · standard deviation."
    )
    up_below: float = Field(0.5, description="One level up below mean + this · standard deviation.")


class StrictOptions(ThresholdOptions):
    """Options of DA5."""

    down_above: float = Field(
        0.5, description="One level down above mean + this · standard deviation."
    )
    up_below: float = Field(
        -0.5, description="One level up below mean + this · standard deviation."
    )


Given = TypeVar("Given", bound=DelayOptions)
Limits = TypeVar("Limits", bound=ThresholdOptions)


class DelayAware(Controller[Given]):
    """One for each worker; without randomness. Begins with the largest density."""

    carried = {"k": "_k", "taken": "_taken"}

    def __init__(self, *, seed: int, **options: Any) -> None:
        super().__init__(seed=seed, **options)
        self.delays = Delays(self.options.window)
        self._taken = 0
        """Steps that were taken in."""

    def observe(self, observed: Observation) -> None:
        """Take in a step; from the last one of the warm-up on, one decision follows each."""
        self.delays.take(measured(self, observed, self.options.delay))
        self._taken += 1
        if self._taken >= self.options.warm_up:
            self._k = self.options.clipped(self._decided())

    def state(self) -> dict[str, Any]:
        """Also the delays."""
        return {**super().state(), **self.delays.state()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue exactly where ``state`` was taken; the options must be the same."""
        super().load(state)
        self.delays.load(state)

    @abstractmethod
    def _decided(self) -> float:
        """k after the newest delay; not yet clipped."""


class TwoLevel(DelayAware[TwoLevelOptions]):
    """DA1."""

    name, model = "dc2-da1", TwoLevelOptions
    carried = {**DelayAware.carried, "asked": "_requests"}
    _requests = 0
    """Steps in a row that asked for the other level."""

    def _decided(self) -> float:
        options, delays = self.options, self.delays
        fast = delays.newest <= options.tolerance * delays.least
        wanted = options.k_max if fast else options.k_min
        self._requests = 0 if wanted == self._k else self._requests + 1
        if self._requests < options.hysteresis:
            return self._k
        self._requests = 0
        return wanted


class Gradient(DelayAware[GradientOptions]):
    """DA2."""

    name, model = "dc2-da2", GradientOptions

    def _decided(self) -> float:
        options = self.options
        if self.delays.newest > options.tolerance * self.delays.before:
            return self._k * options.factor
        return self._k + (options.k_max - options.k_min) / options.rises


class Proportional(DelayAware[DelayOptions]):
    """DA3."""

    name, model = "dc2-da3", DelayOptions

    def _decided(self) -> float:
        options, delays = self.options, self.delays
        least, greatest = delays.least, delays.greatest
        if greatest == least:
            return options.k_max
        share = min(max((delays.smoothed - least) / (greatest - least), 0.0), 1.0)
        return options.k_max - (options.k_max - options.k_min) * share


class DelayThresholds(DelayAware[Limits]):
    """DA4 and DA5."""

    carried = {**DelayAware.carried, "level": "_level"}
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


class Lenient(DelayThresholds[LenientOptions]):
    """DA4."""

    name, model = "dc2-da4", LenientOptions


class Strict(DelayThresholds[StrictOptions]):
    """DA5."""

    name, model = "dc2-da5", StrictOptions


def drawn_settings(number: int) -> dict[str, dict[str, Any]]:
    """Options of DA2, DA4 and DA5 in setting ``number`` of the family, to tell which orderings
    depend on the constants that are ours.

    All that the rules leave open is drawn: limits, warm-up, window and unit for the three together;
    DA2's three constants; levels and two pairs of thresholds. Of the pairs nothing is known but
    that they differ: DA4 is the one that goes down at the larger delay.
    """
    random = Random(f"delay-aware family {number}")

    def between(low: float, high: float) -> float:
        return float(f"{random.uniform(low, high):.4g}")

    def in_ratio(low: float, high: float) -> float:
        return float(f"{exp(random.uniform(log(low), log(high))):.4g}")

    common: dict[str, Any] = {
        "k_max": in_ratio(0.1, 0.5),
        "k_min": in_ratio(0.0003, 0.01),
        "warm_up": random.randint(0, 40),
        "window": random.randint(10, 100),
        "delay": random.choice(["seconds", "per_byte"]),
    }
    slope = {
        "tolerance": between(1.01, 1.25),
        "factor": between(0.3, 0.9),
        "rises": round(in_ratio(20, 300)),
    }
    levels = {"levels": random.randint(3, 10)}
    downs = sorted(between(0.0, 3.0) for _ in range(2))
    strict, lenient = (
        {**levels, "down_above": down, "up_below": min(down, between(-1.0, 1.0))} for down in downs
    )
    return {
        Gradient.name: {**common, **slope},
        Lenient.name: {**common, **lenient},
        Strict.name: {**common, **strict},
    }
