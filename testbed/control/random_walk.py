"""A density that looks at nothing: log k makes normal steps between two limits, which reflect it.

The ablation of a controller that adapts: is it better than one that moves as much, and knows nothing? Between
reflecting limits log k is spread evenly in the long run, so that the mean of k is (high − low) ÷ ln(high/low). With
``mean`` the limits are a factor ``spread`` below and above a middle that gives exactly this mean:

    middle = mean · 2·ln(spread) ÷ (spread − 1/spread)      0.924·mean for spread 2

Limits of mean/spread and mean·spread would give 1.082·mean for spread 2, and the comparison would be of two means.
"""

from __future__ import annotations

from math import exp, log
from random import Random
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from testbed.control.base import Observation
from testbed.control.options import Density, Options, read_options
from testbed.control.seed import generator, generator_state


class RandomWalkOptions(Options):
    """Options of ``random-walk``."""

    step: Annotated[float, Field(ge=0.0, le=10.0)] = Field(
        0.05, description="Standard deviation of a step of log k."
    )
    k_max: Density = Field(0.29, description="Upper limit, where the walk starts; not with mean.")
    k_min: Density = Field(0.001, description="Lower limit; not with mean.")
    mean: Density | None = Field(
        None, description="Mean of k in the long run, where the walk starts then. None: limits as they are."
    )  # fmt: skip
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
                f"mean {self.mean} with spread {self.spread} has an upper limit of {high:.4g}, above 1"
            )
        return self

    @property
    def limits(self) -> tuple[float, float]:
        """Least and greatest k."""
        if self.mean is None:
            return self.k_min, self.k_max
        middle = self.mean * 2 * log(self.spread) / (self.spread - 1 / self.spread)
        return middle / self.spread, middle * self.spread


class RandomWalk:
    """One walk for each worker; all randomness comes from ``seed``."""

    def __init__(self, *, seed: int, **options: Any) -> None:
        self.options = read_options("random-walk", RandomWalkOptions, options)
        self._low, self._high = self.options.limits
        self._k = self._high if self.options.mean is None else self.options.mean
        self._random = Random(seed)

    def density(self) -> float:
        """k for the coming step, within the limits."""
        return self._k

    def observe(self, seen: Observation) -> None:
        """One step of the walk, whatever was seen."""
        del seen
        moved = log(self._k) + self._random.gauss(0.0, self.options.step)
        inside = reflected(moved, log(self._low), log(self._high))
        self._k = min(max(exp(inside), self._low), self._high)

    def state(self) -> dict[str, Any]:
        """k and the random state."""
        return {"k": self._k, "random": generator_state(self._random)}

    def load(self, state: dict[str, Any]) -> None:
        """Continue exactly where ``state`` was taken; the options must be the same."""
        self._k, self._random = float(state["k"]), generator(state["random"])


def reflected(place: float, low: float, high: float) -> float:
    """Where something at ``place`` is that mirrors at ``low`` and ``high`` have turned back."""
    if low <= place <= high:
        return place
    width = high - low
    if width == 0:
        return low
    along = (place - low) % (2 * width)
    return low + min(along, 2 * width - along)
