"""Charging packets right where a low rate changes, and where there is none for a while. Pure arithmetic.

HTB charges a packet when it leaves, at the rate in force, keeps the debt as a time, and never thinks again: at
1 kbit/s one full frame would keep a link dead for 12 s, whatever its rate has become meanwhile. So where a
frame takes longer than the next change, the class is *eased*: it charges what the service curve says, over
all the changes that are known to come. An outage is the lowest of all rates: the one bundle that still leaves in it
puts the class in debt until the outage is over and the bundle's own time has passed, to the kernel's own timer's precision.

Bytes charged on top of a packet's length make a full frame and, before a rise, a bare acknowledgement both come out right;
before a fall an acknowledgement costs its share of a full frame. The setting is right for one instant of leaving, and is
renewed every few milliseconds until a packet has left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import ceil

from testbed.links.plan import BURST_S, LARGEST_CHARGE_BYTES, TICK_NS, Pace, pace
from testbed.scenario.shape import FRAME_BYTES, SEGMENT_HEADER_BYTES, Shape

LONGEST_NS = 50_000_000_000
"""One charge never counts for more than this: the kernel forgets debts beyond 60 s."""

RENEW_NS = 5_000_000

SLOW_NS = RENEW_NS
"""Rates at which a full frame takes longer than this are low (1514 B: below 2.42 Mbit/s)."""

MOST_OVERHEAD_BYTES = 65_535
_BURST_TICKS = round(BURST_S * 1e9 / TICK_NS)
_SHORTEST_NS = 10_000
_SHORTEST_CHARGE_NS = 100_000
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


def frame_ns(rate_bits: int, overhead_bytes: int = 0) -> int:
    """How long a full frame takes at a rate above 0."""
    return ceil(8e9 * (FRAME_BYTES + overhead_bytes) / rate_bits)


def is_slow(shape: Shape) -> bool:
    """Whether a rate is so low, or 0, that its changes must be looked ahead for. What drops all packets has none to charge."""
    if not shape.rate_bits:
        return not shape.drop
    return frame_ns(shape.rate_bits, shape.overhead_bytes) > SLOW_NS


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
    shape: Shape,
    leaves_ns: int,
    known_ns: int,
    coming: Callable[[], Iterable[Step]],
    bundle_bytes: int = FRAME_BYTES,
    *,
    early: bool = False,
) -> Pace:
    """The class's setting for what leaves at ``leaves_ns``: the plain one where nothing changes soon enough.

    ``coming`` gives the changes after ``shape``, known up to ``known_ns``: nothing is charged beyond that. ``bundle_bytes``: the most
    that leaves at once; bundles of several frames are all charged the same. ``early``: the kernel is told before the
    change is due, so that a packet of any length costs what a full frame does.
    """
    latest_ns = max(min(known_ns, leaves_ns + LONGEST_NS), leaves_ns)
    rate = _rate_at(leaves_ns, shape.rate_bits, coming())

    def takes(size: int) -> int:
        bits = 8 * (size + shape.overhead_bytes)
        end_ns = ends_ns(leaves_ns, bits, shape.rate_bits, coming())
        return (latest_ns if end_ns is None else min(end_ns, latest_ns)) - leaves_ns

    full_ns = takes(bundle_bytes)
    plain_ns = frame_ns(rate, shape.overhead_bytes) * bundle_bytes // FRAME_BYTES if rate else None
    if plain_ns is not None and abs(full_ns - plain_ns) <= _SAME_NS:
        return pace(rate, shape.overhead_bytes)
    small_ns = takes(SEGMENT_HEADER_BYTES)
    alike = early or bundle_bytes > FRAME_BYTES
    if alike or (not rate and not _told_apart(full_ns, small_ns)):
        return charge_of(full_ns)  # which is never too short
    found = charging(full_ns, small_ns, shape.overhead_bytes)
    return found if rate else found._replace(burst_ticks=1)  # in an outage nothing is saved up


def _rate_at(time_ns: int, rate_bits: int, coming: Iterable[Step]) -> int:
    for from_ns, following in coming:
        if from_ns > time_ns:
            break
        rate_bits = following
    return rate_bits


def charge_of(time_ns: int) -> Pace:
    """The setting under which any packet costs ``time_ns``, and nothing may be saved up."""
    time_ns = max(time_ns, _SHORTEST_CHARGE_NS)
    rate = max(1, int(LARGEST_CHARGE_BYTES * 1e9 / time_ns))
    # The rate is a whole number of byte/s: over a long time the rest is made up in bytes.
    return Pace(rate, 1, min(LARGEST_CHARGE_BYTES, round(rate * time_ns / 1e9)))


def _told_apart(full_ns: int, small_ns: int) -> bool:
    """Whether ``charging`` can give both their own cost, and so all sizes between them."""
    share = (FRAME_BYTES - SEGMENT_HEADER_BYTES) / (FRAME_BYTES + MOST_OVERHEAD_BYTES)
    return full_ns - small_ns >= share * full_ns


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
