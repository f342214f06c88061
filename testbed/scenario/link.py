"""What may be written about one direction of a link: rate, queue, and everything done to its packets."""

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

from testbed.scenario.impairments import Distribution
from testbed.units import Duration, Packets, Rate, Size, parse_queue

Fraction = Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False, strict=True)]
Queue = Annotated[
    Duration | Size | Packets,
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
                "random loss has no `correlation`: for losses that come in bursts use `model: gilbert-elliott`"
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
    """Loss by a chain of four states: 1 gap, 2 within a burst, 3 lost in a burst, 4 lost in a gap."""

    model: Literal["four-state"] = Field(description="The model.")
    p13: Fraction = Field(description="From gap to lost in a burst.")
    p31: Fraction = Field(1.0, description="From lost in a burst to gap.")
    p32: Fraction = Field(0.0, description="From lost in a burst to received within it.")
    p23: Fraction = Field(1.0, description="From received within a burst to lost in it.")
    p14: Fraction = Field(0.0, description="From gap to a single loss in it.")


class Share(Model):
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
"""What pydantic puts behind `loss`, `reorder`, `duplicate` and `corrupt` in the place of an error."""

Loss = Annotated[
    Annotated[Fraction, Tag("Fraction")]
    | Annotated[RandomLoss, Tag("RandomLoss")]
    | Annotated[GilbertElliottLoss, Tag("GilbertElliottLoss")]
    | Annotated[FourStateLoss, Tag("FourStateLoss")],
    Discriminator(_loss_tag),
]
Shared = Annotated[
    Annotated[Fraction, Tag("Fraction")] | Annotated[Share, Tag("Mapping")],
    Discriminator(_share_tag),
]
Reordered = Annotated[
    Annotated[Fraction, Tag("Fraction")] | Annotated[Reordering, Tag("Mapping")],
    Discriminator(_share_tag),
]


class Changeable(Model):
    """What a step may change about a link direction. None: not said here."""

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
