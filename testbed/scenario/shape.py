"""What a link direction is at one instant, and one change of it: plain numbers in base units."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

MTU_BYTES = 1500
FRAME_BYTES = MTU_BYTES + 14
"""A full-size packet as the queueing disciplines count it: Ethernet header included."""


class End(NamedTuple):
    """One direction of one link: ``("worker-0", "up")``."""

    link: str
    direction: Literal["up", "down"]

    def __str__(self) -> str:
        return f"{self.link} {self.direction}"


@dataclass(frozen=True, slots=True)
class Shape:
    """The state of a link direction. ``rate_bits`` 0 is an outage; ``drop``: packets are lost in it."""

    rate_bits: int
    queue_bytes: int
    drop: bool = False


@dataclass(frozen=True, slots=True)
class LinkChange:
    """From ``time_s`` (seconds after t0, wall) on, ``end`` has ``shape``."""

    time_s: float
    end: End
    shape: Shape
