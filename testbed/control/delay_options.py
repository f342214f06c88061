"""Options of the delay-aware family DA1 to DA5: one model for what all have, one for each rule."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from testbed.control.delays import Unit
from testbed.control.options import Density, Options

Count = Annotated[int, Field(ge=1, le=100_000)]


class DelayOptions(Options):
    """What every rule of the family has. The constants are ours: DC2's own are not public."""

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
        description="seconds: of the step. per_byte: divided by the bytes sent, free of k's own influence.",
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.k_min > self.k_max:
            raise ValueError(f"k_min {self.k_min} is above k_max {self.k_max}")
        return self


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


class ProportionalOptions(DelayOptions):
    """Options of DA3: those that all have."""


class ThresholdOptions(DelayOptions):
    """What DA4 and DA5 have: levels, and two thresholds in standard deviations from the mean delay."""

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

    down_above: float = Field(2.0, description="One level down above mean + this · standard deviation.")  # fmt: skip
    up_below: float = Field(0.5, description="One level up below mean + this · standard deviation.")


class StrictOptions(ThresholdOptions):
    """Options of DA5."""

    down_above: float = Field(0.5, description="One level down above mean + this · standard deviation.")  # fmt: skip
    up_below: float = Field(-0.5, description="One level up below mean + this · standard deviation.")  # fmt: skip
