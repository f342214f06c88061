"""What a link direction is at one instant, and one change of it: plain numbers in base units."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from testbed.scenario.impairments import NONE, Impairments

MTU_BYTES = 1500
FRAME_BYTES = MTU_BYTES + 14
"""A full-size packet as the queueing disciplines count it: Ethernet header included."""

SEGMENT_HEADER_BYTES = 66
"""Ethernet 14, IPv4 20, TCP 20, timestamps 12: what each TCP segment adds to its payload on a link."""

SEGMENT_BYTES = FRAME_BYTES - SEGMENT_HEADER_BYTES
"""Payload of a full segment: 1448."""


def wire_bytes(frame_bytes: int) -> int:
    """Bytes that ``frame_bytes`` of a TCP stream take at the link layer, in full segments."""
    return frame_bytes + SEGMENT_HEADER_BYTES * -(-frame_bytes // SEGMENT_BYTES)


class End(NamedTuple):
    """One direction of one link: ``("worker-0", "up")``."""

    link: str
    direction: Literal["up", "down"]

    def __str__(self) -> str:
        return f"{self.link} {self.direction}"


@dataclass(frozen=True, slots=True)
class Shape:
    """The state of a link direction. ``rate_bits`` 0 is an outage; ``drop``: packets are lost in it.

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
    def from_json(cls, given: list[Any]) -> Shape:
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
    end: End
    shape: Shape
