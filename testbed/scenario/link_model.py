"""Settings and events of a link as they may be written, and the same as plain numbers in base
units. Times count from a run's ``t0``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PlainSerializer,
    Tag,
    WithJsonSchema,
    model_validator,
)

from testbed.errors import InputError
from testbed.scenario.link_state import (
    FRAME_BYTES,
    Distribution,
    FourState,
    GilbertElliott,
    Impairments,
    LinkDirection,
    Slot,
)
from testbed.scenario.schedule import nanoseconds
from testbed.units import Duration, Rate, Size, parse_queue
from testbed.units import Packets as PacketCount

Fraction = Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False, strict=True)]
Queue = Annotated[
    Duration | Size | PacketCount,
    BeforeValidator(parse_queue),
    PlainSerializer(str),
    WithJsonSchema({"type": "string", "examples": ["50 ms", "64 kB", "100 packets"]}),
]


class Model(BaseModel):
    """Frozen, and a key we do not know is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


class RandomLoss(Model):
    """Every packet may be lost, whatever became of the others."""

    model: Literal["random"] = Field(description="The model.")
    probability: Fraction = Field(description="Share of packets lost.")

    @model_validator(mode="before")
    @classmethod
    def _apart(cls, given: Any) -> Any:
        if isinstance(given, dict) and "correlation" in given:
            raise ValueError(
                "random loss has no `correlation`: for losses that come in bursts use "
                "`model: gilbert-elliott`"
            )
        return given


class GilbertElliottLoss(Model):
    """Loss in bursts: a good and a bad state, changed between packets."""

    model: Literal["gilbert-elliott"] = Field(description="The model.")
    p: Fraction = Field(description="Probability of going from good to bad, per packet.")
    r: Annotated[float, Field(gt=0.0, le=1.0, allow_inf_nan=False, strict=True)] = Field(
        description="Probability of going from bad to good, per packet; 1/r packets are a burst."
    )
    loss_bad: Fraction = Field(1.0, description="Share lost in the bad state.")
    loss_good: Fraction = Field(0.0, description="Share lost in the good state.")


class FourStateLoss(Model):
    """Loss by a chain of four states: 1 gap, 2 within a burst, 3 lost in a burst, 4 lost in a
    gap."""

    model: Literal["four-state"] = Field(description="The model.")
    p13: Fraction = Field(description="From gap to lost in a burst.")
    p31: Fraction = Field(1.0, description="From lost in a burst to gap.")
    p32: Fraction = Field(0.0, description="From lost in a burst to received within it.")
    p23: Fraction = Field(1.0, description="From received within a burst to lost in it.")
    p14: Fraction = Field(0.0, description="From gap to a single loss in it.")


class LinkShare(Model):
    """A share of packets that something happens to."""

    probability: Fraction = Field(description="Share of packets.")
    correlation: Fraction = Field(0.0, description="With the packet before.")


class Reordering(Model):
    """Packets that skip the delay, and so overtake."""

    probability: Fraction = Field(description="Share of packets.")
    correlation: Fraction = Field(0.0, description="With the packet before.")
    gap: Annotated[int, Field(ge=0, lt=2**31)] = Field(
        0, description="n: only every nth packet may overtake; 0: any may."
    )


class SlotTimes(Model):
    """Packets are held and leave together, as on radio links."""

    shortest: Duration = Field(description="Least time between two slots; 0 alone: no slots.")
    longest: Duration | None = Field(
        None, description="Greatest time between two slots; absent: as the shortest."
    )
    packets: Annotated[int, Field(ge=0, lt=2**31)] = Field(
        0, description="Most packets in a slot; 0: any number."
    )
    bytes: Size | None = Field(None, description="Most bytes in a slot; absent: any number.")


_LOSSES = {
    "random": "RandomLoss",
    "gilbert-elliott": "GilbertElliottLoss",
    "four-state": "FourStateLoss",
}
LOSS_MODELS = tuple(_LOSSES)


def _loss_tag(value: Any) -> str | None:
    if isinstance(value, Mapping):
        model = value.get("model")
        return None if model is None else _LOSSES.get(str(model), str(model))
    return type(value).__name__ if isinstance(value, Model) else "Fraction"


def _share_tag(value: Any) -> str:
    return "Mapping" if isinstance(value, (Mapping, Model)) else "Fraction"


UNION_TAGS = frozenset({"Fraction", "Mapping", *_LOSSES.values()})
"""Tags that pydantic puts behind alternatives of a loss or share in an error's place."""

Loss = Annotated[
    Annotated[Fraction, Tag("Fraction")]
    | Annotated[RandomLoss, Tag("RandomLoss")]
    | Annotated[GilbertElliottLoss, Tag("GilbertElliottLoss")]
    | Annotated[FourStateLoss, Tag("FourStateLoss")],
    Discriminator(_loss_tag),
]
Shared = Annotated[
    Annotated[Fraction, Tag("Fraction")] | Annotated[LinkShare, Tag("Mapping")],
    Discriminator(_share_tag),
]
Reordered = Annotated[
    Annotated[Fraction, Tag("Fraction")] | Annotated[Reordering, Tag("Mapping")],
    Discriminator(_share_tag),
]


class Changeable(Model):
    """The settings of a link direction that a step may change. None: not said here."""

    rate: Rate | None = Field(
        None, description="Line rate, Ethernet header counted. 0 is an outage."
    )
    queue: Queue | None = Field(
        None, description="Tail-drop queue: time at `rate`, bytes, or full-size packets."
    )
    delay: Duration | None = Field(None, description="One-way delay behind the queue.")
    jitter: Duration | None = Field(None, description="How far single delays are from `delay`.")
    distribution: Distribution | None = Field(
        None, description="Of the jitter; `uniform` if it is not said."
    )
    delay_correlation: Fraction | None = Field(
        None, description="Of a packet's delay with that of the one before."
    )
    loss: Loss | None = Field(None, description="Packets lost: a fraction, or a model.")
    reorder: Reordered | None = Field(None, description="Packets that overtake those delayed.")
    duplicate: Shared | None = Field(None, description="Packets that arrive twice.")
    corrupt: Shared | None = Field(None, description="Packets with one bit changed.")
    slot: SlotTimes | None = Field(None, description="Packets held, to leave together.")
    ecn: bool | None = Field(
        None, description="Packets that would be lost are marked instead, where they can be."
    )
    ordered: bool | None = Field(
        None, description="Jitter and shorter delays do not reorder packets; true if not said."
    )
    overhead: Size | None = Field(
        None, description="Charged for every packet on top of its bytes with Ethernet header."
    )


CHANGEABLE = tuple(Changeable.model_fields)


class LinkEnd(Changeable):
    """One direction of a link. A field left out is inherited: default, group, node."""

    at: Literal["nic", "network"] | None = Field(
        None, description="`up` only: where it is shaped, in the sender's own stack or one hop on."
    )
    seed: Annotated[int, Field(ge=0, lt=2**64)] | None = Field(
        None, description="Of the random impairments; absent: the kernel's own choice."
    )


class Link(Model):
    """A node's access link: `up` leaves the node, `down` arrives at it."""

    up: LinkEnd = Field(LinkEnd(), description="From the node into the network.")
    down: LinkEnd = Field(LinkEnd(), description="From the network to the node.")


DEFAULT = "default"
"""The key under ``links`` that every node inherits from."""
LEAST_QUEUE_BYTES = 2 * FRAME_BYTES
MOST_QUEUE_BYTES = 2**32 - 1
"""The largest queue that a kernel can be told to hold."""
_OVERLAID = frozenset(Changeable.model_fields) - {"rate", "queue"}


def queue_bytes(end: LinkDirection, settings: LinkEnd, *, of_rack: bool = False) -> int:
    """Bytes that the queue of ``end`` holds at t0: a time is meant at the base rate.

    Raises InputError when rate or queue is missing, or fewer than two full-size packets fit.
    """
    if settings.rate is None or settings.queue is None:
        missing = "rate" if settings.rate is None else "queue"
        hint = f"Give one under links, in `{DEFAULT}`, its group or the node"
        if of_rack:
            hint = f"Give one in `racks.{end.link}.{end.direction}`: racks inherit nothing"
        raise InputError(f"{end} has no {missing}", hint=hint)
    return held_bytes(end, settings.rate, settings.queue)


def held_bytes(end: LinkDirection, rate: Rate, queue: Duration | Size | PacketCount) -> int:
    """Bytes in ``queue`` at ``rate``. Raises InputError when that is no queue of ``end``."""
    if isinstance(queue, Duration):
        size = round(rate * queue / 8)
    else:
        size = int(queue) * (FRAME_BYTES if isinstance(queue, PacketCount) else 1)
    if LEAST_QUEUE_BYTES <= size <= MOST_QUEUE_BYTES:
        return size
    at_rate = f" at {rate}" if isinstance(queue, Duration) else ""
    if size < LEAST_QUEUE_BYTES:
        raise InputError(
            f"the queue of {end}, {queue}{at_rate}, holds {size} B: fewer than two packets",
            hint=f"Write at least '2 packets' ({LEAST_QUEUE_BYTES} B)",
        )
    raise InputError(
        f"the queue of {end}, {queue}{at_rate}, holds more than {MOST_QUEUE_BYTES} B",
        hint="No kernel holds so many: write a shorter one",
    )


def impairments(settings: LinkEnd) -> Impairments:
    """Return what ``settings`` ask for besides rate and queue. What has no effect is left out."""
    jitter = nanoseconds(settings.jitter or 0.0)
    loss = loss_model(settings)
    reorder, duplicate = _share(settings.reorder), _share(settings.duplicate)
    corrupt = _share(settings.corrupt)
    return Impairments(
        delay_ns=nanoseconds(settings.delay or 0.0),
        jitter_ns=jitter,
        distribution=settings.distribution or "uniform" if jitter else "uniform",
        delay_correlation=settings.delay_correlation or 0.0 if jitter else 0.0,
        loss=loss,
        reorder=reorder.probability,
        reorder_correlation=reorder.correlation,
        reorder_gap=reorder.gap if isinstance(reorder, Reordering) else 0,
        duplicate=duplicate.probability,
        duplicate_correlation=duplicate.correlation,
        corrupt=corrupt.probability,
        corrupt_correlation=corrupt.correlation,
        slot=_slot(settings.slot),
        ecn=bool(settings.ecn and loss),
        ordered=settings.ordered is not False,
        seed=settings.seed,
    )


def overlaid(settings: LinkEnd, change: Changeable) -> LinkEnd:
    """``settings`` with what ``change`` says of delay, loss and so on; rate and queue stay."""
    given = {
        name: value
        for name in change.model_fields_set & _OVERLAID
        if (value := getattr(change, name)) is not None
    }
    return settings.model_copy(update=given) if given else settings


def loss_model(settings: LinkEnd) -> float | GilbertElliott | FourState:
    """The loss asked for."""
    loss = settings.loss
    if isinstance(loss, RandomLoss):
        return loss.probability
    if isinstance(loss, GilbertElliottLoss):
        return GilbertElliott(loss.p, loss.r, loss.loss_bad, loss.loss_good)
    if isinstance(loss, FourStateLoss):
        return FourState(loss.p13, loss.p31, loss.p32, loss.p23, loss.p14)
    return loss or 0.0


def _share(share: float | LinkShare | Reordering | None) -> LinkShare | Reordering:
    if isinstance(share, (LinkShare, Reordering)) and share.probability:
        return share
    return LinkShare(
        probability=0.0 if isinstance(share, (LinkShare, Reordering)) else share or 0.0
    )


def _slot(slot: SlotTimes | None) -> Slot | None:
    if slot is None:
        return None
    longest = slot.shortest if slot.longest is None else slot.longest
    if not longest:
        return None
    times = nanoseconds(slot.shortest), nanoseconds(longest)
    return Slot(*times, slot.packets, int(slot.bytes or 0))


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
        description="After the last point: start over, keep the last rate, or return to the base "
        "rate."
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
        """The key of a scenario's traces: the file, and the column where one is named."""
        return self.file if self.column is None else f"{self.file}:{self.column}"


class StepEvent(_LinkEvent, Changeable):
    """A jump of the named settings to values at which they stay; the rest stays as it was."""

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
    """Workers leave, and return after a while; the run goes on without them, and they take its
    parameters."""

    kind: Literal["absent"] = Field(description="What happens.")
    nodes: NodeNames
    for_: Duration = Field(alias="for", description="How long; a step that has begun is made.")


LinkEvent = TraceEvent | StepEvent | RampEvent | OutageEvent | FlapEvent | PartitionEvent
NodeEvent = PauseEvent | KillEvent | AbsentEvent
Event = Annotated[LinkEvent | NodeEvent, Field(discriminator="kind")]
