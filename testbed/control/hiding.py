"""Rules that let communication take as long as it can behind computation."""

from __future__ import annotations

from typing import Annotated, Self, TypeVar

from pydantic import Field, model_validator

from testbed.control.layered import Layered, LayeredOptions
from testbed.control.options import Density, Share, check_initial
from testbed.control.way import Known


class HidingOptions(LayeredOptions):
    """Limits, and how long communication may take."""

    k_max: Density = Field(1.0, description="Largest density of a layer.")
    k_min: Density = Field(0.001, description="Smallest density of a layer.")
    initial_k: Density = Field(0.05, description="Density before the first decision.")
    forward: Share = Field(
        0.0,
        description="Of what is left of the backward pass, as much again that hides in the next forward pass.",
    )
    unhidden: Annotated[float, Field(ge=0.0, le=100.0)] = Field(
        0.667,
        description="Communication's time, as a multiple of computation's, where nothing overlaps.",
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        check_initial(self.initial_k, self.k_min, self.k_max)
        return self


Given = TypeVar("Given", bound=HidingOptions)


class Hiding(Layered[Given]):
    """Begins with ``initial_k``."""

    @property
    def first(self) -> float:
        """``initial_k``."""
        return self.options.initial_k

    def _room_s(self, known: Known) -> float:
        """Seconds that communication may take."""
        return known.room_s(self.options.forward, self.options.unhidden)
