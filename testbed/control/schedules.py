"""Densities that look at nothing: fixed, schedules over steps, DGC's warm-up over epochs, a
script, and a random walk.

    schedule     linear: k_i = from + (to − from)·i/steps;
                 exponential: k_i = from·(to/from)^(i/steps); then ``to``
    dgc-warmup   a density for every epoch; the last one stays
                 (Lin et al., Deep Gradient Compression, section 3.3)
    script       a density for every step; the last one stays

Steps are counted from 0, as they are taken in. An epoch is counted from the first that is seen. A
controller hears of an epoch after its first step, so that this step still has the density of the
epoch before.

The ablation of a controller that adapts: is it better than one that moves as much, and knows
nothing? Between reflecting limits log k is spread evenly in the long run, so that the mean of k is
(high − low) ÷ ln(high/low). With ``mean`` the limits are a factor ``spread`` below and above a
middle that gives exactly this mean:

    middle = mean · 2·ln(spread) ÷ (spread − 1/spread)      0.924·mean for spread 2

Limits of mean/spread and mean·spread would give 1.082·mean for spread 2, and the comparison would
be of two means.
"""

from __future__ import annotations

from math import exp, log
from random import Random
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import Field, model_validator

from testbed.control.base import Controller, Density, Observation
from testbed.registry import Options

Densities = Annotated[list[Density], Field(min_length=1)]
Given = TypeVar("Given", bound=Options)


class _Counting(Controller[Given]):
    """Steps are all that is seen."""

    carried = {"step": "_step"}
    _step = 0

    def observe(self, observed: Observation) -> None:
        """Count it."""
        del observed
        self._step += 1


class ScheduleOptions(Options):
    """Options of ``schedule``."""

    form: Literal["linear", "exponential"] = Field(
        "linear", description="linear: equal differences. exponential: equal ratios."
    )
    from_: Density = Field(0.29, alias="from", description="Density of the first step.")
    to: Density = Field(0.001, description="Density after all steps.")
    steps: Annotated[int, Field(ge=1)] = Field(200, description="Steps from the one to the other.")


class DensitySchedule(_Counting[ScheduleOptions]):
    """From one density to another in so many steps."""

    name, model = "schedule", ScheduleOptions

    def density(self) -> float:
        """k_i, between ``from`` and ``to``."""
        first, last = self.options.from_, self.options.to
        share = self._step / self.options.steps
        if share >= 1:
            return last
        if self.options.form == "linear":
            return first + (last - first) * share
        return float(first * (last / first) ** share)


class DgcWarmupOptions(Options):
    """Options of ``dgc-warmup``."""

    densities: Densities = Field(
        [0.25, 0.0625, 0.015625, 0.004, 0.001],
        description="Of every epoch; that of the last stays.",
    )


class DgcWarmup(Controller[DgcWarmupOptions]):
    """A density for every epoch."""

    name, model = "dgc-warmup", DgcWarmupOptions
    carried = {"first": "_first", "epochs": "_epochs"}
    _first: int | None = None
    """The first epoch."""
    _epochs = 0
    """Those before the one that was last heard of."""

    def density(self) -> float:
        """That of the epoch last heard of."""
        densities = self.options.densities
        return densities[min(self._epochs, len(densities) - 1)]

    def observe(self, observed: Observation) -> None:
        """Hear of the epoch."""
        if self._first is None:
            self._first = observed.epoch
        self._epochs = max(self._epochs, observed.epoch - self._first)


class ScriptOptions(Options):
    """Options of ``script``."""

    densities: Densities = Field([1.0], description="Of every step; that of the last stays.")


class Script(_Counting[ScriptOptions]):
    """A density for every step."""

    name, model = "script", ScriptOptions

    def density(self) -> float:
        """The next one of the list."""
        densities = self.options.densities
        return densities[min(self._step, len(densities) - 1)]


class FixedOptions(Options):
    """Options of ``fixed``."""

    density: Density = Field(1.0, description="Share of the elements sent in every step.")


class Fixed(Controller[FixedOptions]):
    """The same density in every step."""

    name, model = "fixed", FixedOptions
    carried = {}

    def density(self) -> float:
        """``options.density``."""
        return self.options.density

    def observe(self, observed: Observation) -> None:
        """Nothing to learn."""


class RandomWalkOptions(Options):
    """Options of ``random-walk``."""

    step: Annotated[float, Field(ge=0.0, le=10.0)] = Field(
        0.05, description="Standard deviation of a step of log k."
    )
    k_max: Density = Field(0.29, description="Upper limit, where the walk starts; not with mean.")
    k_min: Density = Field(0.001, description="Lower limit; not with mean.")
    mean: Density | None = Field(
        None,
        description=(
            "Mean of k in the long run, where the walk starts then. None: limits as they are."
        ),
    )
    spread: Annotated[float, Field(gt=1.0, le=1000.0)] = Field(
        2.0, description="With mean: the factor between the middle and either limit."
    )

    @model_validator(mode="after")
    def _possible(self) -> Self:
        low, high = self.limits
        if low > high:
            raise ValueError(f"k_min {self.k_min} is above k_max {self.k_max}")
        if high > 1:
            raise ValueError(
                f"mean {self.mean} with spread {self.spread} has an upper limit of {high:.4g}, "
                "above 1"
            )
        return self

    @property
    def limits(self) -> tuple[float, float]:
        """Least and greatest k."""
        if self.mean is None:
            return self.k_min, self.k_max
        middle = self.mean * 2 * log(self.spread) / (self.spread - 1 / self.spread)
        return middle / self.spread, middle * self.spread


class RandomWalk(Controller[RandomWalkOptions]):
    """One walk for each worker; all randomness comes from ``seed``."""

    name, model = "random-walk", RandomWalkOptions
    carried = {"k": "_k", "random": "_random"}

    def __init__(self, *, seed: int, **options: Any) -> None:
        super().__init__(seed=seed, **options)
        self._low, self._high = self.options.limits
        self._k = self._high if self.options.mean is None else self.options.mean
        self._random = Random(seed)

    def observe(self, observed: Observation) -> None:
        """One step of the walk, whatever was observed."""
        del observed
        moved = log(self._k) + self._random.gauss(0.0, self.options.step)
        inside = reflected(moved, log(self._low), log(self._high))
        self._k = min(max(exp(inside), self._low), self._high)


def reflected(position: float, low: float, high: float) -> float:
    """Where something at ``position`` is that mirrors at ``low`` and ``high`` have turned back."""
    if low <= position <= high:
        return position
    width = high - low
    if width == 0:
        return low
    along = (position - low) % (2 * width)
    return low + min(along, 2 * width - along)
