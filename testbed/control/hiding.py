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
    exposed: Share = Field(
        0.25, description="Time after the computation that communication may take, as a share of T."
    )
    forward: Share = Field(
        0.0, description="Time that hides in the next forward pass on top, as a share of T."
    )
    backward: Annotated[float, Field(gt=0.0, le=1.0)] = Field(
        0.667,
        description="T as a share of the computation, at least, where little or nothing overlaps.",
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

    def _times_s(self, known: Known) -> list[float]:
        """Of every bucket: what it and those after it may take, to the end of what hides or is allowed to be seen."""
        options, all_s = self.options, known.longest_s(self.options.backward)
        forward_s = options.forward * all_s if known.hides else 0.0
        more_s = forward_s + options.exposed * all_s
        return [min(all_s + forward_s, message.left_s + more_s) for message in known.messages]
