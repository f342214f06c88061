"""What happens to links while a scenario runs. Times count from a run's ``t0``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from testbed.units import Duration, Rate

LinkNames = Annotated[tuple[str, ...], Field(min_length=1, description="Nodes, groups, or `all`.")]
Directions = Literal["up", "down", "both"]


class _Event(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    links: LinkNames
    direction: Directions = Field("both", description="`up` leaves the node, `down` arrives.")
    at: Duration = Field(Duration(0.0), description="When it begins.")


class TraceEvent(_Event):
    """The rate follows a recorded trace from ``at`` on."""

    kind: Literal["trace"] = Field(description="What happens.")
    file: str = Field(description="Path, relative to the scenario file.")
    at_end: Literal["loop", "hold", "stop"] = Field(
        description="After the last point: start over, keep the last rate, or return to the base rate."
    )
    offset: Duration = Field(Duration(0.0), description="Where in the trace to begin.")
    scale: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        1.0, description="Factor on the trace's rates."
    )


class StepEvent(_Event):
    """The rate jumps to a value and stays there."""

    kind: Literal["step"] = Field(description="What happens.")
    rate: Rate = Field(description="The rate from then on. 0 is an outage.")


class RampEvent(_Event):
    """The rate moves in a straight line to a value, in equal steps."""

    kind: Literal["ramp"] = Field(description="What happens.")
    rate: Rate = Field(description="The rate at the end.")
    over: Duration = Field(description="How long the move takes.")
    every: Duration = Field(Duration(0.1), description="Time between two changes.")


class OutageEvent(_Event):
    """No service for a while; then the rate is what it would have been."""

    kind: Literal["outage"] = Field(description="What happens.")
    for_: Duration = Field(alias="for", description="How long.")
    packets: Literal["wait", "drop"] = Field(
        "wait", description="What happens to packets meanwhile."
    )


Event = Annotated[TraceEvent | StepEvent | RampEvent | OutageEvent, Field(discriminator="kind")]
