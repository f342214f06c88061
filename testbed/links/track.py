"""One link direction while its history is replayed: prepared changes, and how the kernel is told of them."""

from __future__ import annotations

from typing import NamedTuple

from testbed.links import htb
from testbed.links.end import CLOSED_RATE_BITS, ShapedEnd
from testbed.links.line import DelayLine, Setting
from testbed.links.outage import Outage
from testbed.links.sampling import Sampler
from testbed.scenario.shape import End, LinkChange, Shape

FOREVER_NS = 1 << 62
EARLIEST_NS = 5_000_000
"""No change is made earlier than this before it is due."""


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

    def __init__(self, shaped: ShapedEnd, shape: Shape, line: DelayLine | None = None) -> None:
        self.shaped, self.shape, self.line = shaped, shape, line
        self.sampler = Sampler(shaped, shape, shaped.where.index)
        self.outage: Outage | None = None
        self.failure: str | None = None
        self._service = shape
        self._told_ns, self._told = 0, shape
        self._told_line = line.setting if line is not None else None

    def due(self, change: LinkChange, due_ns: int, bundle_bits: int) -> Due:
        """Prepare a change; they must come in order of time.

        A busy class takes on a new rate at the end of the bundle that it has just sent. That is half a
        bundle's time late on average, which on rises would never be made up: so the kernel is told that much
        before the change is due. Before an outage it is a whole one: the bundle by which the link falls silent.
        Of the line's packets none would see the difference.
        """
        before, shape = self._told, change.shape
        early_ns = 0
        if before.rate_bits and shape.rate_bits != before.rate_bits:
            bundles = 0.5 if shape.rate_bits else 1.0
            early_ns = round(bundles * bundle_bits * 1e9 / before.rate_bits)
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

    def apply(self, due: Due) -> None:
        """Have the kernel take a change; what stays as it is is not told. Raises KernelRefused."""
        before, self.shape = self.shape, due.shape
        if due.line is not None and self.line is not None:
            self.line.apply(due.line)
        if due.message is None:
            if _queueing(before) != _queueing(due.shape):
                self.begin_outage()
            return
        if before.queue_bytes != due.shape.queue_bytes or not before.rate_bits:
            self.shaped.send(self.shaped.limit_message(due.shape.queue_bytes))
        if _pacing(before) != _pacing(due.shape):
            self.shaped.send(due.message)
        self.outage, self._service = None, due.shape

    def begin_outage(self) -> None:
        """Let packets wait, or lose them, from now on."""
        if self.shape.drop:
            self.outage = None
            self.shaped.flush()
        else:
            self.shaped.send(self.shaped.limit_message(self.shape.queue_bytes))
            self.outage = Outage(ends_ns=FOREVER_NS, packets=self.shaped.read().packets)

    def hold(self, now_ns: int, ends_ns: int, following: Due | None) -> None:
        """Keep an outage going whose end is known, or known not to come before ``ends_ns``."""
        if self.outage is None:
            return
        self.outage.ends_ns = ends_ns
        pace = self.outage.charging(now_ns)
        if pace is None:
            return
        self.shaped.send(self.shaped.class_message(pace))
        seen = self.shaped.read()
        if self.outage.saw(now_ns, seen.packets, seen.debt_ns):
            # Asleep until the end, whatever its rate: it can wake with the right one, however late we are.
            service = following.shape if following else self._service
            self.shaped.send(self.shaped.class_message(_pace(service)))


def _pace(shape: Shape) -> htb.Pace:
    return htb.pace(shape.rate_bits or CLOSED_RATE_BITS, shape.overhead_bytes)


def _queueing(shape: Shape) -> tuple[int, int, bool]:
    return shape.rate_bits, shape.queue_bytes, shape.drop


def _pacing(shape: Shape) -> tuple[int, int]:
    return shape.rate_bits, shape.overhead_bytes
