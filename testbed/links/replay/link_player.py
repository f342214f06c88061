"""One link direction while its history is replayed: changes prepared and made, packets charged
right at low rates and in outages, and what became of it.

HTB charges a packet when it leaves, at the rate in force, keeps the debt as a time, and never
thinks again: at 1 kbit/s one full frame would keep a link dead for 12 s, whatever its rate has
become meanwhile. So where a frame takes longer than the next change, the class is *adjusted*: it
charges what the service curve says, over all the changes that are known to come. An outage is the
lowest of all rates: the one bundle that still leaves in it puts the class in debt until the outage
is over and the bundle's own time has passed, to the kernel's own timer's precision.

Bytes charged on top of a packet's length make a full frame and, before a rise, a bare
acknowledgement both come out right; before a fall an acknowledgement costs its share of a full
frame. The setting is right for one instant of leaving, and is renewed every few milliseconds until
a packet has left.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice
from math import ceil
from typing import Any, NamedTuple

from testbed.errors import LinkError
from testbed.links.netem_stage import NetemConfig, NetemStage
from testbed.links.replay.delivery_report import RECHARGED_S, EndReport, measures
from testbed.links.replay.sampler import LinkSampler
from testbed.links.shaper import ShapedQueue
from testbed.links.tc.parameters import LARGEST_CHARGE_BYTES, TICK_NS, LinkPace, pace
from testbed.scenario.link_state import (
    FRAME_BYTES,
    SEGMENT_HEADER_BYTES,
    LinkChange,
    LinkDirection,
    LinkState,
)

LONGEST_NS = round(RECHARGED_S * 1e9)
"""One charge never counts for more than this: the kernel forgets debts beyond 60 s."""

RENEW_NS = SLOW_NS = 5_000_000
"""Rates at which a full frame takes longer than this are low (1514 B: below 2.42 Mbit/s)."""

MOST_OVERHEAD_BYTES = 65_535
_SLOW_BURST_TICKS = round(0.5e-3 * 1e9 / TICK_NS)
_SHORTEST_NS = 10_000
_SHORTEST_CHARGE_NS = 100_000
_SAME_NS = 1_000

Step = tuple[int, int]
"""From when on (nanoseconds of the monotonic clock) a link has which rate (bit/s)."""


@dataclass(slots=True)
class LowRateDebt:
    """A class at a low rate: when it can next send. Times: ns of the monotonic clock."""

    packets: int = -1
    looked_ns: int = 0
    awake_ns: int = 0
    """Not before this, as far as was seen."""
    spread_ns: int = 0
    """Half of how much later than that it may be."""

    def saw(self, now_ns: int, packets: int, debt_ns: int) -> None:
        """Note the class; a debt counts from the packet that made it, of unknown time."""
        if 0 <= self.packets < packets:
            if self.awake_ns <= self.looked_ns:
                self.spread_ns = min(RENEW_NS, now_ns - self.looked_ns) // 2
            self.awake_ns = min(now_ns, max(self.looked_ns, self.awake_ns)) + debt_ns
        self.packets, self.looked_ns = packets, now_ns

    def blocked(self, now_ns: int) -> bool:
        """Return whether nothing can leave before the next renewal, even one that comes late."""
        return self.awake_ns > now_ns + 2 * RENEW_NS


def frame_ns(rate_bits: int, overhead_bytes: int = 0) -> int:
    """Return how long a full frame takes at a rate above 0, in ns."""
    return ceil(8e9 * (FRAME_BYTES + overhead_bytes) / rate_bits)


def is_slow(shape: LinkState) -> bool:
    """Return whether a rate is so low, or 0, that its changes must be looked ahead for.

    A link that drops all packets has none to charge.
    """
    if not shape.rate_bits:
        return not shape.drop
    return frame_ns(shape.rate_bits, shape.overhead_bytes) > SLOW_NS


def ends_ns(leaves_ns: int, bits: float, rate_bits: int, upcoming: Iterable[Step]) -> int | None:
    """When ``bits`` from ``leaves_ns`` on have been served; None: not as far as is known."""
    at_ns = leaves_ns
    for from_ns, following in upcoming:
        if from_ns > at_ns:
            served = rate_bits * (from_ns - at_ns) / 1e9
            if served >= bits:
                break
            bits, at_ns = bits - served, from_ns
        rate_bits = following
    return at_ns + ceil(bits * 1e9 / rate_bits) if rate_bits else None


def pace_at(
    shape: LinkState,
    leaves_ns: int,
    known_ns: int,
    upcoming: Callable[[], Iterable[Step]],
    bundle_bytes: int = FRAME_BYTES,
    *,
    early: bool = False,
) -> LinkPace:
    """The class's setting for what leaves at ``leaves_ns``: the plain one where nothing changes
    soon enough.

    ``upcoming`` gives the changes after ``shape``, known up to ``known_ns``: nothing is charged
    beyond that. ``bundle_bytes``: the most that leaves at once; bundles of several frames are all
    charged the same. ``early``: the kernel is told before the change is due, so that a packet of
    any length costs what a full frame does.
    """
    latest_ns = max(min(known_ns, leaves_ns + LONGEST_NS), leaves_ns)
    rate = _rate_at(leaves_ns, shape.rate_bits, upcoming())

    def takes(size: int) -> int:
        bits = 8 * (size + shape.overhead_bytes)
        end_ns = ends_ns(leaves_ns, bits, shape.rate_bits, upcoming())
        return (latest_ns if end_ns is None else min(end_ns, latest_ns)) - leaves_ns

    full_ns = takes(bundle_bytes)
    plain_ns = frame_ns(rate, shape.overhead_bytes) * bundle_bytes // FRAME_BYTES if rate else None
    if plain_ns is not None and abs(full_ns - plain_ns) <= _SAME_NS:
        return pace(rate, shape.overhead_bytes)
    small_ns = takes(SEGMENT_HEADER_BYTES)
    alike = early or bundle_bytes > FRAME_BYTES
    if alike or (not rate and not _told_apart(full_ns, small_ns)):
        return charge_of(full_ns)  # which is never too short
    charged = charge_for(full_ns, small_ns, shape.overhead_bytes)
    return charged if rate else charged._replace(burst_ticks=1)  # in an outage nothing is saved up


def _rate_at(time_ns: int, rate_bits: int, upcoming: Iterable[Step]) -> int:
    for from_ns, following in upcoming:
        if from_ns > time_ns:
            break
        rate_bits = following
    return rate_bits


def charge_of(time_ns: int) -> LinkPace:
    """The setting under which any packet costs ``time_ns``, and nothing may be saved up."""
    time_ns = max(time_ns, _SHORTEST_CHARGE_NS)
    rate = max(1, int(LARGEST_CHARGE_BYTES * 1e9 / time_ns))
    # The rate is a whole number of byte/s: over a long time the rest is made up in bytes.
    return LinkPace(rate, 1, min(LARGEST_CHARGE_BYTES, round(rate * time_ns / 1e9)))


def _told_apart(full_ns: int, small_ns: int) -> bool:
    """Return whether ``charge_for`` can give both their own cost, and so all sizes between them."""
    share = (FRAME_BYTES - SEGMENT_HEADER_BYTES) / (FRAME_BYTES + MOST_OVERHEAD_BYTES)
    return full_ns - small_ns >= share * full_ns


def charge_for(full_ns: int, small_ns: int, overhead_bytes: int = 0) -> LinkPace:
    """Have a full frame cost ``full_ns`` and, where possible, an acknowledgement ``small_ns``."""
    full_ns = max(full_ns, _SHORTEST_NS)
    least = (FRAME_BYTES + overhead_bytes) * 1e9 / full_ns
    most = (FRAME_BYTES + MOST_OVERHEAD_BYTES) * 1e9 / full_ns
    between = (FRAME_BYTES - SEGMENT_HEADER_BYTES) * 1e9 / max(full_ns - small_ns, 1)
    rate = max(ceil(least), int(min(between, most)))
    charged = round(rate * full_ns / 1e9) - FRAME_BYTES
    charged = min(MOST_OVERHEAD_BYTES, max(overhead_bytes, charged))
    return LinkPace(rate, _SLOW_BURST_TICKS, overhead_bytes=charged)


FOREVER_NS = 1 << 62
EARLIEST_NS = 5_000_000
"""No change is made earlier than this before it is due."""
TELLING_NS = 150_000
"""The kernel is told of an outage this much earlier: so late it usually has the message."""
NEAR_NS = 100_000_000
"""Time before an outage at which its message is prepared, knowing what follows it."""
_FARTHEST = 1000
"""So many changes ahead are looked at where a low rate changes."""


class PreparedChange(NamedTuple):
    """A change with its prepared messages; its times are of the monotonic clock."""

    at_ns: int
    """When the kernel is told."""
    due_ns: int
    end: LinkDirection
    shape: LinkState
    message: bytes | None
    """For the class; None for an outage."""
    line: NetemConfig | None
    """For the delay line; None where it stays as it is, or there is none."""


class LinkPlayer:
    """Belongs to the replay's thread, but for ``due``, which whoever feeds it calls."""

    def __init__(
        self,
        shaped: ShapedQueue,
        shape: LinkState,
        line: NetemStage | None = None,
        *,
        bundle_bytes: int = FRAME_BYTES,
        gapped: bool = False,
    ) -> None:
        self.shaped, self.shape, self.line = shaped, shape, line
        self._bundle_bytes = bundle_bytes
        self.sampler = LinkSampler(
            shaped, shape, shaped.where.index, line, bundle_bytes=bundle_bytes, gapped=gapped
        )
        self.upcoming: deque[PreparedChange] = deque()
        """Changes still to be applied, as far as they are known; kept by the replay."""
        self.slow = LowRateDebt() if is_slow(shape) else None
        self.adjusted: LinkPace | None = None
        """Setting that the class has instead of the plain setting of its low rate."""
        self._outage: tuple[LinkPace, bytes] | None = None
        """Setting and message for the outage that comes next, once it is near."""
        self.failure: str | None = None
        self._began = (0, shape.rate_bits)
        self._rate_before = shape.rate_bits
        self._announced_ns, self._announced = 0, shape
        self._announced_line = line.setting if line is not None else None

    def due(self, change: LinkChange, due_ns: int) -> PreparedChange:
        """Prepare a change; they must come in order of time.

        A busy class takes on a new rate at the end of the bundle that it has just sent. That is
        half a bundle's time late on average, which on rises would never be made up: so the kernel
        is told that much before the change is due. Before an outage it is a whole one and
        ``TELLING_NS``: the bundle by which the link falls silent leaves before the outage is due;
        where packets are lost instead, none is needed. No packet of the delay line would see the
        difference. A low rate looks ahead itself (``slow``).
        """
        before, shape = self._announced, change.shape
        early_ns = 0
        changes = shape.rate_bits != before.rate_bits
        if (
            changes
            and not is_slow(before)
            and before.rate_bits
            and not (shape.drop and not shape.rate_bits)
        ):
            half_ns = self._half_bundle_ns(before.rate_bits)
            early_ns = half_ns if shape.rate_bits else 2 * half_ns + TELLING_NS
        at_ns = max(self._announced_ns, due_ns - min(EARLIEST_NS, early_ns))
        line = self._next_line(shape)
        self._announced_ns, self._announced = at_ns, shape
        message = self.shaped.class_message(_pace(shape)) if shape.rate_bits else None
        return PreparedChange(at_ns, due_ns, change.end, shape, message, line)

    def _next_line(self, shape: LinkState) -> NetemConfig | None:
        if self.line is None or self._announced_line is None:
            return None
        following = self.line.following(self._announced_line, shape)
        self._announced_line = following or self._announced_line
        return following

    @property
    def needs_care(self) -> bool:
        """True if the class must be looked after every few milliseconds."""
        return self.slow is not None and (
            bool(self.upcoming) or self.adjusted is not None or not self.shape.rate_bits
        )

    def apply(self, due: PreparedChange, now_ns: int, known_ns: int) -> None:
        """Have the kernel take a change; what stays as it is is not told. Raises KernelRefused.

        ``upcoming`` must be what follows it, complete up to ``known_ns``.
        """
        before, self.shape = self.shape, due.shape
        if before.rate_bits != due.shape.rate_bits:
            self._began, self._rate_before = (due.due_ns, due.shape.rate_bits), before.rate_bits
        if due.line is not None and self.line is not None:
            self.line.apply(due.line)
        if due.message is None:
            if _queueing(before) != _queueing(due.shape):
                self.begin_outage(now_ns, known_ns)
            return
        if before.queue_bytes != due.shape.queue_bytes or not before.rate_bits:
            self.shaped.send(self.shaped.limit_message(due.shape.queue_bytes))
        if _pacing(before) != _pacing(due.shape):
            self._serve(due.message, now_ns, known_ns)

    def _serve(self, plain: bytes, now_ns: int, known_ns: int) -> None:
        if not is_slow(self.shape):
            self.slow = None
        else:
            self.slow = self.slow or LowRateDebt()
            self._look_after(self.slow, now_ns)
            if self._ease(max(now_ns, self.slow.awake_ns), known_ns):
                return
        self.adjusted = None
        self.shaped.send(plain)

    def prepare_outage(self, now_ns: int, known_ns: int) -> None:
        """Prepare the message for a near outage: what leaves before it costs the same any time."""
        if self._outage is not None or self.slow is not None or not self.upcoming:
            return
        first = self.upcoming[0]
        near = first.at_ns - now_ns < NEAR_NS
        if near and first.message is None and not first.shape.drop:
            # less would be served before
            latest_ns = first.due_ns - self._half_bundle_ns(self.shape.rate_bits)
            leaves_ns = max((first.at_ns + first.due_ns) // 2, latest_ns)
            steps, bundle = self._following, self._bundle_bytes
            setting = pace_at(self.shape, leaves_ns, known_ns, steps, bundle, early=True)
            self._outage = setting, self.shaped.class_message(setting)

    def begin_outage(self, now_ns: int, known_ns: int) -> None:
        """Let packets wait, or lose them, from now on."""
        if self.shape.drop:
            self.slow = self.adjusted = None
            self.shaped.flush()
            return
        if self.slow is None and self._outage is not None:
            self.adjusted, message = self._outage
            self.slow = LowRateDebt()
            # the debt of a packet that left long ago counts no more
            self._look_after(self.slow, now_ns)
            self.shaped.send(message)
            self._look_after(self.slow, now_ns)
        else:
            self.slow = self.slow or LowRateDebt()
            self.maintain(now_ns, known_ns)
        self._outage = None
        self.shaped.send(self.shaped.limit_message(self.shape.queue_bytes))

    def maintain(self, now_ns: int, known_ns: int) -> None:
        """Keep an outage going, or a low rate right; changes before ``known_ns`` are known."""
        if self.slow is not None and self._matters(self.slow, now_ns):
            self._look_after(self.slow, now_ns)
            if not self._ease(self._leaving(self.slow, now_ns), known_ns):
                self.restore_plain_rate()

    def restore_plain_rate(self) -> None:
        """Give the class the plain setting of its rate; in an outage it has none."""
        if self.adjusted is not None and self.shape.rate_bits:
            self.adjusted = None
            self.shaped.send(self.shaped.class_message(_pace(self.shape)))

    def _matters(self, slow: LowRateDebt, now_ns: int) -> bool:
        """Return whether something that leaves before the next look could reach the next change."""
        if slow.blocked(now_ns) and self.adjusted is not None:
            return False
        if not self.shape.rate_bits:
            return True
        if not self.upcoming:
            return self.adjusted is not None
        reach_ns = frame_ns(self.shape.rate_bits, self.shape.overhead_bytes) + 2 * RENEW_NS
        return self.upcoming[0].due_ns - now_ns <= reach_ns or self.adjusted is not None

    def _leaving(self, slow: LowRateDebt, now_ns: int) -> int:
        """When something is likely to leave: what is awake may do so at any time until the next
        look or change.

        In an outage that is taken for the earliest, or the link would be back before it ends.
        """
        first_ns = max(now_ns, slow.awake_ns)
        spread_ns = slow.spread_ns if slow.awake_ns > now_ns else RENEW_NS // 2
        following_ns = self.upcoming[0].due_ns if self.upcoming else FOREVER_NS
        if now_ns < self._began[0]:  # told early: what was on its way leaves before it is due
            following_ns = self._began[0]
            if not self.shape.rate_bits:
                return max(first_ns, following_ns - self._half_bundle_ns(self._rate_before))
        elif not self.shape.rate_bits:
            return first_ns
        return first_ns + max(0, min(spread_ns, (following_ns - first_ns) // 2))

    def _half_bundle_ns(self, rate_bits: int) -> int:
        return round(4e9 * self._bundle_bytes / rate_bits) if rate_bits else 0

    def _look_after(self, slow: LowRateDebt, now_ns: int) -> None:
        counters = self.shaped.read()
        slow.saw(now_ns, counters.packets, counters.debt_ns)

    def _ease(self, leaves_ns: int, known_ns: int) -> bool:
        """Set the class for what leaves then; False if the plain setting is right."""
        before = replace(self.shape, rate_bits=self._rate_before)
        early = not self.shape.rate_bits
        pace = pace_at(before, leaves_ns, known_ns, self._steps, self._bundle_bytes, early=early)
        if self.shape.rate_bits and pace == _pace(self.shape):
            return False
        if pace != self.adjusted:
            self.adjusted = pace
            self.shaped.send(self.shaped.class_message(pace))
        return True

    def _steps(self) -> Iterator[Step]:
        return chain([self._began], self._following())

    def _following(self) -> Iterator[Step]:
        return ((due.due_ns, due.shape.rate_bits) for due in islice(self.upcoming, _FARTHEST))


def _pace(shape: LinkState) -> LinkPace:
    return pace(shape.rate_bits, shape.overhead_bytes)


def _queueing(shape: LinkState) -> tuple[int, int, bool]:
    return shape.rate_bits, shape.queue_bytes, shape.drop


def _pacing(shape: LinkState) -> tuple[int, int]:
    return shape.rate_bits, shape.overhead_bytes


def end_report(track: LinkPlayer, segments: int, realtime: bool) -> EndReport:
    """The report of a player at its end; what cannot be read becomes its failure."""
    names = ("drops", "direct_packets", "class_bytes", "class_packets")
    failure, counted = track.failure, dict[str, Any](dict.fromkeys(names, 0))
    try:
        counted = _counted(track)
        if failure is None:
            _verify(track)
    except (OSError, LinkError) as error:
        failure = failure or str(error)
    return EndReport(
        link=track.shaped.end.link,
        direction=track.shaped.end.direction,
        gso_max_segs=segments,
        realtime=realtime,
        failure=failure,
        **counted,
        **measures(track.sampler.record),
    )


def _counted(track: LinkPlayer) -> dict[str, Any]:
    shaped, line = track.shaped, track.line
    now = shaped.read()
    counted: dict[str, Any] = {
        "drops": shaped.drops(now),
        "direct_packets": shaped.direct_packets(),
        "class_bytes": now.bytes - shaped.zero.bytes,
        "class_packets": now.packets - shaped.zero.packets,
    }
    if line is not None:
        names = ("line_packets", "line_lost", "line_limit")
        counted |= zip(names, line.passage(), strict=True)
    return counted


def _verify(track: LinkPlayer) -> None:
    """In an outage the class is at whatever holds the link dead."""
    if track.shape.rate_bits:
        track.shaped.verify(track.shape)
    if track.line is not None:
        track.line.verify()
