"""What happens to links and nodes while a scenario runs. Times count from a run's ``t0``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from testbed.scenario.link import Changeable, Model
from testbed.units import Duration, Rate

LinkNames = Annotated[
    tuple[str, ...], Field(min_length=1, description="Nodes, groups, racks, or `all` nodes.")
]
NodeNames = Annotated[tuple[str, ...], Field(min_length=1, description="Nodes or groups.")]
Directions = Literal["up", "down", "both"]
Packets = Literal["wait", "drop"]


class _Event(Model):
    at: Duration = Field(Duration(0.0), description="When it begins.")


class _LinkEvent(_Event):
    links: LinkNames
    direction: Directions = Field("both", description="`up` leaves the node, `down` arrives.")


class TraceEvent(_LinkEvent):
    """The rate follows a recorded trace from ``at`` on."""

    kind: Literal["trace"] = Field(description="What happens.")
    file: str = Field(description="Path, relative to the scenario file.")
    column: str | None = Field(
        None, description="Name of the CSV column with the rate, where there are several."
    )
    at_end: Literal["loop", "hold", "stop"] = Field(
        description="After the last point: start over, keep the last rate, or return to the base rate."
    )
    repeat: Annotated[int, Field(ge=1, lt=2**31)] = Field(
        1, description="How many times it is played before `at_end` (`hold` or `stop`) applies."
    )
    offset: Duration = Field(
        Duration(0.0), description="Where in the trace to begin, in the file's own time."
    )
    offset_per_seed: Duration = Field(
        Duration(0.0),
        description="`loop` only: so much later in the trace for every number of the run's seed.",
    )
    scale: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        1.0, description="Factor on the trace's rates."
    )
    stretch: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)] = Field(
        1.0, description="Factor on the trace's times."
    )

    @property
    def key(self) -> str:
        """What a scenario's traces are kept by: the file, and the column where one is named."""
        return self.file if self.column is None else f"{self.file}:{self.column}"


class StepEvent(_LinkEvent, Changeable):
    """What is named jumps to a value and stays there; the rest stays as it was."""

    kind: Literal["step"] = Field(description="What happens.")


class RampEvent(_LinkEvent):
    """The rate moves in a straight line to a value, in equal steps."""

    kind: Literal["ramp"] = Field(description="What happens.")
    rate: Rate = Field(description="The rate at the end.")
    over: Duration = Field(description="How long the move takes.")
    every: Duration = Field(Duration(0.1), description="Time between two changes.")


class OutageEvent(_LinkEvent):
    """No service for a while; then the rate is what it would have been."""

    kind: Literal["outage"] = Field(description="What happens.")
    for_: Duration = Field(alias="for", description="How long.")
    packets: Packets = Field("wait", description="What happens to packets meanwhile.")


class FlapEvent(_LinkEvent):
    """Outages one after the other."""

    kind: Literal["flap"] = Field(description="What happens.")
    for_: Duration = Field(alias="for", description="How long each outage lasts.")
    every: Duration = Field(description="From the beginning of one to that of the next.")
    times: Annotated[int, Field(ge=1)] = Field(description="How many.")
    packets: Packets = Field("wait", description="What happens to packets meanwhile.")


class PartitionEvent(_Event):
    """The named links carry nothing, either way; packets are lost."""

    kind: Literal["partition"] = Field(description="What happens.")
    links: LinkNames
    for_: Duration = Field(alias="for", description="How long.")


class PauseEvent(_Event):
    """The processes of nodes stand still for a while."""

    kind: Literal["pause"] = Field(description="What happens.")
    nodes: NodeNames
    for_: Duration = Field(alias="for", description="How long; shorter than `peer_timeout`.")


class KillEvent(_Event):
    """The processes of nodes die at once, without a word to anyone."""

    kind: Literal["kill"] = Field(description="What happens.")
    nodes: NodeNames
    restart_after: Duration | None = Field(
        None, description="Start them again so much later (role `host` only); absent: never."
    )


class AbsentEvent(_Event):
    """Workers leave, and return after a while; the run goes on without them, and they take its parameters."""

    kind: Literal["absent"] = Field(description="What happens.")
    nodes: NodeNames
    for_: Duration = Field(alias="for", description="How long; a step that has begun is made.")


LinkEvent = TraceEvent | StepEvent | RampEvent | OutageEvent | FlapEvent | PartitionEvent
NodeEvent = PauseEvent | KillEvent | AbsentEvent
Event = Annotated[LinkEvent | NodeEvent, Field(discriminator="kind")]
