"""Holding a link dead with packets waiting, and alive again on time. Pure arithmetic.

HTB computes when a class may send again at the moment a packet is charged to it, and a change of the class
does not make it think again. A tiny rate would therefore keep the link dead long after the outage. Instead,
during an outage every packet is charged as about 64 KiB at a rate by which that takes exactly the time
left. The one bundle that still leaves puts the class in debt until the outage ends, to the kernel's own
timer's precision; from then on the class can have its next rate, since the debt is kept as a time.
Until that bundle has left, the rate is renewed every few milliseconds, as the time left shrinks.
"""

from __future__ import annotations

from dataclasses import dataclass

from testbed.links.plan import LARGEST_CHARGE_BYTES, Pace

LONGEST_NS = 50_000_000_000
"""One charge never counts for more than this: the kernel forgets debts beyond 60 s."""

RENEW_NS = 5_000_000
_AHEAD_NS = 500_000_000
_SHORTEST_NS = 1_000_000


@dataclass(slots=True)
class Outage:
    """An outage under way. Times are nanoseconds of the monotonic clock."""

    ends_ns: int
    """When service returns; if that is not known yet, a time before which it does not."""
    packets: int
    """What the class had sent when charging began, or when it was last charged."""
    asleep_until_ns: int = 0
    """When the class wakes, as far as it has been charged."""

    def charging(self, now_ns: int) -> Pace | None:
        """The class's setting if the next packet must be charged; None while it sleeps long enough."""
        if self.asleep_until_ns >= self.ends_ns - RENEW_NS:
            return None
        if self.asleep_until_ns - now_ns > _AHEAD_NS:
            return None
        left = self.ends_ns - max(now_ns, self.asleep_until_ns)
        return charge_of(min(LONGEST_NS, max(_SHORTEST_NS, left)))

    def saw(self, now_ns: int, packets: int, debt_ns: int) -> bool:
        """Take note of the class after charging was set; True if it sleeps until the end.

        Only a debt that came with a packet counts: an older one is what the class owed before. It counts
        from that packet on, so what is seen can be too long by one renewal, never too short.
        """
        left = min(LONGEST_NS, self.ends_ns - max(now_ns, self.asleep_until_ns))
        if packets > self.packets and debt_ns > left // 2:
            self.asleep_until_ns = max(now_ns, self.asleep_until_ns) + debt_ns
            self.packets = packets
        return self.asleep_until_ns >= self.ends_ns - RENEW_NS


def charge_of(time_ns: int) -> Pace:
    """The setting under which any packet costs ``time_ns``, and nothing may be saved up."""
    rate = max(1, int(LARGEST_CHARGE_BYTES * 1e9 / time_ns))
    # The rate is a whole number of byte/s: over a long time the rest is made up in bytes.
    return Pace(rate, 1, min(LARGEST_CHARGE_BYTES, round(rate * time_ns / 1e9)))
