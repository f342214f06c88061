"""A link direction, its state at one instant, one change of it, and the directions between two
nodes: plain numbers in base units. Pure.

The models are those of Linux's netem. Shares and correlations are fractions, times whole
nanoseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

Distribution = Literal["uniform", "normal", "pareto", "paretonormal"]
HIGHEST_CORRELATION = 0.99
"""Limit of a share's correlation with the packet before.

Above, netem's random number hardly ever changes, and the share is not kept.
"""


@dataclass(frozen=True, slots=True)
class GilbertElliott:
    """Loss in two states: ``p`` good to bad, ``r`` bad to good; what each state loses."""

    p: float
    r: float
    loss_bad: float = 1.0
    loss_good: float = 0.0

    @property
    def mean_loss(self) -> float:
        """Share of packets lost in the long run."""
        bad = self.p / (self.p + self.r)
        return bad * self.loss_bad + (1 - bad) * self.loss_good

    @property
    def mean_burst(self) -> float:
        """Packets that the bad state lasts on average."""
        return 1 / self.r


@dataclass(frozen=True, slots=True)
class FourState:
    """Loss in four states (gap, burst gap, burst loss, gap loss); ``pxy``: from x to y."""

    p13: float
    p31: float = 1.0
    p32: float = 0.0
    p23: float = 1.0
    p14: float = 0.0

    @property
    def mean_loss(self) -> float:
        """Share of packets lost in the long run; netem begins in the gap."""
        if not self.p13:
            return self.p14 / (1 + self.p14)
        if not self.p31:  # the gap is left for good
            return self.p23 / (self.p23 + self.p32) if self.p23 + self.p32 else 1.0
        if self.p32 and not self.p23:  # and so is loss
            return 0.0
        in_burst = self.p13 / self.p31
        between = in_burst * self.p32 / self.p23 if self.p32 else 0.0
        return (in_burst + self.p14) / (1 + between + in_burst + self.p14)


@dataclass(frozen=True, slots=True)
class Slot:
    """Slots in which packets leave together, so many at most (0: any)."""

    shortest_ns: int
    longest_ns: int
    packets: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Impairments:
    """The treatment of a packet after the queue, on its way to the other end."""

    delay_ns: int = 0
    jitter_ns: int = 0
    distribution: Distribution = "uniform"
    delay_correlation: float = 0.0
    loss: float | GilbertElliott | FourState = 0.0
    reorder: float = 0.0
    """Share of packets that overtake those being delayed."""
    reorder_correlation: float = 0.0
    reorder_gap: int = 0
    """With ``n`` every nth packet overtakes (with probability ``reorder``); 0: any may."""
    duplicate: float = 0.0
    duplicate_correlation: float = 0.0
    corrupt: float = 0.0
    corrupt_correlation: float = 0.0
    slot: Slot | None = None
    ecn: bool = False
    """Packets that would be lost are marked instead, where they can be."""
    ordered: bool = True
    """Jitter, and a delay that becomes shorter, do not reorder packets."""
    seed: int | None = None
    """Seed of the random numbers; None: the kernel's choice."""

    def __bool__(self) -> bool:
        """Return whether anything is asked for at all."""
        return bool(
            self.delay_ns
            or self.jitter_ns
            or self.loss
            or self.reorder
            or self.duplicate
            or self.corrupt
            or self.slot
        )

    def to_json(self) -> dict[str, Any]:
        """Return what differs from no impairment, as a plain object; a loss model says its name."""
        plain = {key: value for key, value in asdict(self).items() if value != _DEFAULTS[key]}
        for name, kind in _MODELS.items():
            if isinstance(self.loss, kind):
                plain["loss"] = {"model": name, **plain["loss"]}
        return plain

    @classmethod
    def from_json(cls, given: dict[str, Any]) -> Impairments:
        """Read what ``to_json`` wrote."""
        fields = dict(given)
        if isinstance(fields.get("loss"), dict):
            numbers = dict(fields["loss"])
            fields["loss"] = _MODELS[numbers.pop("model")](**numbers)
        if fields.get("slot"):
            fields["slot"] = Slot(**fields["slot"])
        return cls(**fields)


_MODELS: dict[str, type[GilbertElliott] | type[FourState]] = {
    "gilbert-elliott": GilbertElliott,
    "four-state": FourState,
}
NONE = Impairments()
"""A link that only queues and paces."""
_DEFAULTS = asdict(NONE)


MTU_BYTES = 1500
FRAME_BYTES = MTU_BYTES + 14
"""A full-size packet as the queueing disciplines count it: Ethernet header included."""

SEGMENT_HEADER_BYTES = 66
"""Ethernet 14, IPv4 20, TCP 20, timestamps 12: what a TCP segment adds to its payload."""

UNKNOWN_RTT_US = 0xFFFFFFFF
"""The least round-trip time, in the kernel's words, of a TCP socket that has measured none."""

SEGMENT_BYTES = FRAME_BYTES - SEGMENT_HEADER_BYTES
"""Payload of a full segment: 1448."""


def wire_bytes(frame_bytes: int) -> int:
    """Bytes that ``frame_bytes`` of a TCP stream take at the link layer, in full segments."""
    return frame_bytes + SEGMENT_HEADER_BYTES * -(-frame_bytes // SEGMENT_BYTES)


class LinkDirection(NamedTuple):
    """One direction of one link: ``("worker-0", "up")``."""

    link: str
    direction: Literal["up", "down"]

    def __str__(self) -> str:
        return f"{self.link} {self.direction}"


@dataclass(frozen=True, slots=True)
class LinkState:
    """The state of a link direction. ``rate_bits`` 0 is an outage; ``drop``: packets are lost in
    it.

    ``overhead_bytes`` are charged for every packet on top of what it has at the link layer.
    """

    rate_bits: int
    queue_bytes: int
    drop: bool = False
    overhead_bytes: int = 0
    impairments: Impairments = NONE

    def to_json(self) -> list[Any]:
        """A list, since there are many; what is usual is left out at its end."""
        plain: list[Any] = [self.rate_bits, self.queue_bytes, self.drop]
        if self.overhead_bytes or self.impairments != NONE:
            plain += [self.overhead_bytes, self.impairments.to_json()]
        return plain

    @classmethod
    def from_json(cls, given: list[Any]) -> LinkState:
        """Read what ``to_json`` wrote."""
        rate, queue, drop, *unusual = given
        if not unusual:
            return cls(rate, queue, drop)
        overhead, impairments = unusual
        return cls(rate, queue, drop, overhead, Impairments.from_json(impairments))


@dataclass(frozen=True, slots=True)
class LinkChange:
    """From ``time_s`` (seconds after t0, wall) on, ``end`` has ``shape``."""

    time_s: float
    end: LinkDirection
    shape: LinkState


def route(rack_of: Mapping[str, str], source: str | None, sink: str | None) -> list[LinkDirection]:
    """Return the link directions that a packet passes, in order.

    ``rack_of``: the rack of each node that is in one. None is the switch itself.
    """
    here, sink_rack = rack_of.get(source or ""), rack_of.get(sink or "")
    up = [source, here if here != sink_rack else None]
    down = [sink_rack if here != sink_rack else None, sink]
    passed = [LinkDirection(link, "up") for link in up if link]
    return [*passed, *(LinkDirection(link, "down") for link in down if link)]
