"""Modelled access links: bytes on the wire, serialisation first in first out, latency.

A node's messages leave one after the other at the rate of its uplink. Packets cross the switch as they
come, so that a message is received while it is still being sent: it is complete when the slower of both
links has carried it. A downlink spends on each message the time that its bytes take, and works on the
messages in the order in which they began to arrive; queues are unbounded and nothing is lost.
"""

from __future__ import annotations

from dataclasses import dataclass

from testbed.scenario.shape import SEGMENT_BYTES, wire_bytes


@dataclass(frozen=True, slots=True)
class LinkModel:
    """A node's access link: bit/s in both directions, one-way seconds to (or from) the switch."""

    up_bits: float
    down_bits: float
    latency_s: float = 0.0


class Pipe:
    """One direction of a link, busy until ``free_s``."""

    def __init__(self, rate_bits: float) -> None:
        self.rate_bits, self.free_s = rate_bits, 0.0

    def seconds(self, size: int) -> float:
        """Time that ``size`` bytes take."""
        return size * 8 / self.rate_bits

    def occupy(self, from_s: float, size: int) -> float:
        """Be busy with ``size`` bytes as soon as possible from ``from_s`` on; returns when it begins."""
        start_s = max(from_s, self.free_s)
        self.free_s = start_s + self.seconds(size)
        return start_s


@dataclass(frozen=True, slots=True)
class Passage:
    """When a message had left its sender, and when its first packet and all of it had arrived."""

    left_s: float
    first_s: float
    last_s: float


def carry(up: Pipe, down: Pipe, latency_s: float, now_s: float, frame_bytes: int) -> Passage:
    """Send a frame of ``frame_bytes`` at ``now_s`` through ``up`` and ``down``, which become busy."""
    size = wire_bytes(frame_bytes)
    packet = wire_bytes(min(frame_bytes, SEGMENT_BYTES))
    last_packet = wire_bytes((frame_bytes - 1) % SEGMENT_BYTES + 1)
    start_s = up.occupy(now_s, size)
    left_s = start_s + up.seconds(size)
    begin_s = down.occupy(start_s + up.seconds(packet) + latency_s, size)
    carried_s = begin_s + down.seconds(size)
    trickled_s = left_s + latency_s + down.seconds(last_packet)
    return Passage(left_s, begin_s + down.seconds(packet), max(carried_s, trickled_s))
