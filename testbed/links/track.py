"""One link direction while its history is replayed: prepared changes, and how the kernel is told of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, islice
from typing import NamedTuple

from testbed.links.end import CLOSED_RATE_BITS, ShapedEnd
from testbed.links.line import DelayLine, Setting
from testbed.links.plan import Pace, pace
from testbed.links.sampling import Sampler
from testbed.links.slow import RENEW_NS, Slow, Step, frame_ns, is_slow, pace_at
from testbed.scenario.shape import FRAME_BYTES, End, LinkChange, Shape

FOREVER_NS = 1 << 62
EARLIEST_NS = 5_000_000
"""No change is made earlier than this before it is due."""
TELLING_NS = 150_000
"""The kernel is told of an outage this much earlier: so late it usually has the message."""
NEAR_NS = 100_000_000
"""An outage's message is prepared this long before: earlier, less of what follows it might be known."""
_FARTHEST = 1000
"""So many changes ahead are looked at where a low rate changes."""


class Due(NamedTuple):
    """A change with its prepared messages; its times are of the monotonic clock."""

    at_ns: int
    """When the kernel is told."""
    due_ns: int
    end: End
    shape: Shape
    message: bytes | None
    """For the class; None for an outage."""
    line: Setting | None
    """For the delay line; None where it stays as it is, or there is none."""


class Track:
    """Belongs to the replay's thread, but for ``due``: the history is prepared by whoever feeds it."""

    def __init__(
        self,
        shaped: ShapedEnd,
        shape: Shape,
        line: DelayLine | None = None,
        *,
        bundle_bytes: int = FRAME_BYTES,
        gapped: bool = False,
    ) -> None:
        self.shaped, self.shape, self.line = shaped, shape, line
        self._bundle_bytes = bundle_bytes
        self.sampler = Sampler(
            shaped, shape, shaped.where.index, line, bundle_bytes=bundle_bytes, gapped=gapped
        )
        self.coming: deque[Due] = deque()
        """What is still to be applied, as far as it is known; kept by the replay."""
        self.slow = Slow() if is_slow(shape) else None
        self.eased: Pace | None = None
        """What the class was set to instead of the plain setting of its low rate."""
        self._outage: tuple[Pace, bytes] | None = None
        """Setting and message for the outage that comes next, once it is near."""
        self.failure: str | None = None
        self._began = (0, shape.rate_bits)
        self._rate_before = shape.rate_bits
        self._told_ns, self._told = 0, shape
        self._told_line = line.setting if line is not None else None

    def due(self, change: LinkChange, due_ns: int) -> Due:
        """Prepare a change; they must come in order of time.

        A busy class takes on a new rate at the end of the bundle that it has just sent. That is half a
        bundle's time late on average, which on rises would never be made up: so the kernel is told that much
        before the change is due. Before an outage it is a whole one and ``TELLING_NS``: the bundle by which the
        link falls silent leaves before the outage is due; where packets are lost instead, none is needed. No
        packet of the delay line would see the difference. A low rate looks ahead itself (``slow``).
        """
        before, shape = self._told, change.shape
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
        at_ns = max(self._told_ns, due_ns - min(EARLIEST_NS, early_ns))
        line = self._next_line(shape)
        self._told_ns, self._told = at_ns, shape
        message = self.shaped.class_message(_pace(shape)) if shape.rate_bits else None
        return Due(at_ns, due_ns, change.end, shape, message, line)

    def _next_line(self, shape: Shape) -> Setting | None:
        if self.line is None or self._told_line is None:
            return None
        following = self.line.following(self._told_line, shape)
        self._told_line = following or self._told_line
        return following

    @property
    def held(self) -> bool:
        """Whether the class must be looked after every few milliseconds."""
        return self.slow is not None and (
            bool(self.coming) or self.eased is not None or not self.shape.rate_bits
        )

    def apply(self, due: Due, now_ns: int, known_ns: int) -> None:
        """Have the kernel take a change; what stays as it is is not told. Raises KernelRefused.

        ``coming`` must be what follows it, complete up to ``known_ns``.
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
            self.slow = self.slow or Slow()
            self._look_after(self.slow, now_ns)
            if self._ease(max(now_ns, self.slow.awake_ns), known_ns):
                return
        self.eased = None
        self.shaped.send(plain)

    def prepare_outage(self, now_ns: int, known_ns: int) -> None:
        """Prepare the message for an outage that is near. What leaves before it is due costs the same whenever that is."""
        if self._outage is not None or self.slow is not None or not self.coming:
            return
        first = self.coming[0]
        near = first.at_ns - now_ns < NEAR_NS
        if near and first.message is None and not first.shape.drop:
            latest_ns = first.due_ns - self._half_bundle_ns(
                self.shape.rate_bits
            )  # less would be served before
            leaves_ns = max((first.at_ns + first.due_ns) // 2, latest_ns)
            steps, bundle = self._following, self._bundle_bytes
            setting = pace_at(self.shape, leaves_ns, known_ns, steps, bundle, early=True)
            self._outage = setting, self.shaped.class_message(setting)

    def begin_outage(self, now_ns: int, known_ns: int) -> None:
        """Let packets wait, or lose them, from now on."""
        if self.shape.drop:
            self.slow = self.eased = None
            self.shaped.flush()
            return
        if self.slow is None and self._outage is not None:
            self.eased, message = self._outage
            self.slow = Slow()
            self._look_after(
                self.slow, now_ns
            )  # the debt of a packet that left long ago counts no more
            self.shaped.send(message)
            self._look_after(self.slow, now_ns)
        else:
            self.slow = self.slow or Slow()
            self.hold(now_ns, known_ns)
        self._outage = None
        self.shaped.send(self.shaped.limit_message(self.shape.queue_bytes))

    def hold(self, now_ns: int, known_ns: int) -> None:
        """Keep an outage going, or a low rate right, until the next change; those before ``known_ns`` are known."""
        if self.slow is not None and self._matters(self.slow, now_ns):
            self._look_after(self.slow, now_ns)
            if not self._ease(self._leaving(self.slow, now_ns), known_ns):
                self.settle()

    def settle(self) -> None:
        """Give the class the plain setting of its rate; in an outage it has none."""
        if self.eased is not None and self.shape.rate_bits:
            self.eased = None
            self.shaped.send(self.shaped.class_message(_pace(self.shape)))

    def _matters(self, slow: Slow, now_ns: int) -> bool:
        """Whether something that leaves before the next look could reach the next change."""
        if slow.asleep(now_ns) and self.eased is not None:
            return False
        if not self.shape.rate_bits:
            return True
        if not self.coming:
            return self.eased is not None
        reach_ns = frame_ns(self.shape.rate_bits, self.shape.overhead_bytes) + 2 * RENEW_NS
        return self.coming[0].due_ns - now_ns <= reach_ns or self.eased is not None

    def _leaving(self, slow: Slow, now_ns: int) -> int:
        """When something is likely to leave: what is awake may do so at any time until the next look or change.

        In an outage that is taken for the earliest, or the link would be back before it ends.
        """
        first_ns = max(now_ns, slow.awake_ns)
        spread_ns = slow.spread_ns if slow.awake_ns > now_ns else RENEW_NS // 2
        following_ns = self.coming[0].due_ns if self.coming else FOREVER_NS
        if now_ns < self._began[0]:  # told early: what was on its way leaves before it is due
            following_ns = self._began[0]
            if not self.shape.rate_bits:
                return max(first_ns, following_ns - self._half_bundle_ns(self._rate_before))
        elif not self.shape.rate_bits:
            return first_ns
        return first_ns + max(0, min(spread_ns, (following_ns - first_ns) // 2))

    def _half_bundle_ns(self, rate_bits: int) -> int:
        return round(4e9 * self._bundle_bytes / rate_bits) if rate_bits else 0

    def _look_after(self, slow: Slow, now_ns: int) -> None:
        seen = self.shaped.read()
        slow.saw(now_ns, seen.packets, seen.debt_ns)

    def _ease(self, leaves_ns: int, known_ns: int) -> bool:
        """Set the class for what leaves then; False if the plain setting is right, which is left to others."""
        before = replace(self.shape, rate_bits=self._rate_before)
        early = not self.shape.rate_bits
        pace = pace_at(before, leaves_ns, known_ns, self._steps, self._bundle_bytes, early=early)
        if self.shape.rate_bits and pace == _pace(self.shape):
            return False
        if pace != self.eased:
            self.eased = pace
            self.shaped.send(self.shaped.class_message(pace))
        return True

    def _steps(self) -> Iterator[Step]:
        return chain([self._began], self._following())

    def _following(self) -> Iterator[Step]:
        return ((due.due_ns, due.shape.rate_bits) for due in islice(self.coming, _FARTHEST))


def _pace(shape: Shape) -> Pace:
    return pace(shape.rate_bits or CLOSED_RATE_BITS, shape.overhead_bytes)


def _queueing(shape: Shape) -> tuple[int, int, bool]:
    return shape.rate_bits, shape.queue_bytes, shape.drop


def _pacing(shape: Shape) -> tuple[int, int]:
    return shape.rate_bits, shape.overhead_bytes
