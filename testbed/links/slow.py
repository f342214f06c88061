"""Charging packets right where a low rate changes. Pure arithmetic.

HTB charges a packet when it leaves, at the rate in force, keeps the debt as a time, and never thinks again: at
1 kbit/s one full frame would keep a link dead for 12 s, whatever its rate has become meanwhile. So where a
frame takes longer than the next change, the class is *eased*: it charges what the service curve says, over
all the changes that are known to come. Bytes charged on top of a packet's length make a full frame and, before a rise,
a bare acknowledgement both come out right; before a fall an acknowledgement costs its share of a full frame.
The setting is right for one instant of leaving, and is renewed as the outage's is until a packet has left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import ceil

from testbed.links.outage import LONGEST_NS, RENEW_NS
from testbed.links.plan import BURST_S, TICK_NS, Pace, pace
from testbed.scenario.shape import FRAME_BYTES, SEGMENT_HEADER_BYTES, Shape

SLOW_NS = RENEW_NS
"""Rates at which a full frame takes longer than this are low (1514 B: below 2.42 Mbit/s)."""

MOST_OVERHEAD_BYTES = 65_535
_BURST_TICKS = round(BURST_S * 1e9 / TICK_NS)
_SHORTEST_NS = 10_000
_SAME_NS = 1_000

Step = tuple[int, int]
"""From when on (nanoseconds of the monotonic clock) a link has which rate (bit/s)."""


@dataclass(slots=True)
class Slow:
    """A class at a low rate: when it can next send. Times are nanoseconds of the monotonic clock."""

    packets: int = -1
    looked_ns: int = 0
    awake_ns: int = 0
    """Not before this, as far as was seen."""
    spread_ns: int = 0
    """Half of how much later than that it may be."""

    def saw(self, now_ns: int, packets: int, debt_ns: int) -> None:
        """Take note of the class; a debt counts from the packet that made it, of which only the order is known."""
        if 0 <= self.packets < packets:
            if self.awake_ns <= self.looked_ns:
                self.spread_ns = min(RENEW_NS, now_ns - self.looked_ns) // 2
            self.awake_ns = min(now_ns, max(self.looked_ns, self.awake_ns)) + debt_ns
        self.packets, self.looked_ns = packets, now_ns

    def asleep(self, now_ns: int) -> bool:
        """Whether nothing can leave before the next renewal, even one that comes late."""
        return self.awake_ns > now_ns + 2 * RENEW_NS


def frame_ns(shape: Shape) -> int:
    """How long a full frame takes at a rate above 0."""
    return ceil(8e9 * (FRAME_BYTES + shape.overhead_bytes) / shape.rate_bits)


def is_slow(shape: Shape) -> bool:
    """Whether a rate is so low that its changes must be looked ahead for."""
    return shape.rate_bits > 0 and frame_ns(shape) > SLOW_NS


def ends_ns(leaves_ns: int, bits: float, rate_bits: int, coming: Iterable[Step]) -> int | None:
    """When ``bits`` from ``leaves_ns`` on have been served; None: after all that is known, at rate 0."""
    at_ns = leaves_ns
    for from_ns, following in coming:
        if from_ns > at_ns:
            served = rate_bits * (from_ns - at_ns) / 1e9
            if served >= bits:
                break
            bits, at_ns = bits - served, from_ns
        rate_bits = following
    return at_ns + ceil(bits * 1e9 / rate_bits) if rate_bits else None


def pace_at(
    shape: Shape, leaves_ns: int, known_ns: int, coming: Callable[[], Iterable[Step]]
) -> Pace:
    """The class's setting for what leaves at ``leaves_ns``: the plain one where nothing changes soon enough.

    ``coming`` gives the changes after ``shape``, known up to ``known_ns``: nothing is charged beyond that.
    """
    latest_ns = max(min(known_ns, leaves_ns + LONGEST_NS), leaves_ns)

    def takes(size: int) -> int:
        bits = 8 * (size + shape.overhead_bytes)
        end_ns = ends_ns(leaves_ns, bits, shape.rate_bits, coming())
        return (latest_ns if end_ns is None else min(end_ns, latest_ns)) - leaves_ns

    full_ns = takes(FRAME_BYTES)
    if abs(full_ns - frame_ns(shape)) <= _SAME_NS:
        return pace(shape.rate_bits, shape.overhead_bytes)
    return charging(full_ns, takes(SEGMENT_HEADER_BYTES), shape.overhead_bytes)


def charging(full_ns: int, small_ns: int, overhead_bytes: int = 0) -> Pace:
    """The setting under which a full frame costs ``full_ns`` and, where it can, a bare acknowledgement ``small_ns``."""
    full_ns = max(full_ns, _SHORTEST_NS)
    least = (FRAME_BYTES + overhead_bytes) * 1e9 / full_ns
    most = (FRAME_BYTES + MOST_OVERHEAD_BYTES) * 1e9 / full_ns
    between = (FRAME_BYTES - SEGMENT_HEADER_BYTES) * 1e9 / max(full_ns - small_ns, 1)
    rate = max(ceil(least), int(min(between, most)))
    charged = round(rate * full_ns / 1e9) - FRAME_BYTES
    charged = min(MOST_OVERHEAD_BYTES, max(overhead_bytes, charged))
    return Pace(rate, _BURST_TICKS, overhead_bytes=charged)
