"""What left in outages, and how soon service was back after them, from looks at a link direction. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

_LEAVING_S = 1e-3
"""What the rate before an outage gives in so long may leave after it was set: it was on its way."""

_SOON_S, _CLOSE_S = 0.2, 5e-3


@dataclass(slots=True)
class OutageSeen:
    """One outage of a link direction."""

    leaked_bytes: int = 0
    """Bytes that left in it: what the rate before it explains is not counted, nor what the rate after does."""
    resume_s: float | None = None
    """How long after a FIFO queue's first bundle ours had left; None: nothing waited for it, or it did not last so long."""


class Outages:
    """Gets the bytes so far (``carried``) and the queue at every look; times are seconds after t0."""

    def __init__(self) -> None:
        self.seen: list[OutageSeen] = []
        self._open: OutageSeen | None = None
        self._from = self._at_end = self._waiting = 0
        self.resumed_s: float | None = None
        """When the last outage was over, until something is known to have left since."""
        self._looked_s = 0.0

    def resuming(self, now_s: float) -> bool:
        """Whether service should have returned just now, so that looks should follow closely."""
        return self.resumed_s is not None and now_s - self.resumed_s < _SOON_S

    def begin(self, carried: int, rate_before_bits: int) -> None:
        """An outage has begun, after a link of that rate (0: none was before)."""
        self._open, self.resumed_s = OutageSeen(), None
        self._from = carried + round(rate_before_bits / 8 * _LEAVING_S)

    def end(
        self, due_s: float, last: tuple[int, int], now: tuple[int, float], rate_bits: int
    ) -> None:
        """It was over at ``due_s``. ``last``: bytes so far and queue at the last look before; ``now``: bytes
        so far at the first look after, and when that was."""
        if self._open is None:
            return
        carried, now_s = now
        explained = round(rate_bits / 8 * (max(0.0, now_s - due_s) + _LEAVING_S))
        self._open.leaked_bytes = max(0, carried - self._from - explained)
        self.seen.append(self._open)
        self._open = None
        self._at_end, self._waiting = last
        self._looked_s = due_s
        self.resumed_s = due_s if self._waiting else None

    def close(self, carried: int) -> None:
        """The replay is over, and perhaps an outage is not. ``carried``: bytes so far."""
        if self._open is not None:
            self._open.leaked_bytes = max(0, carried - self._from)
            self.seen.append(self._open)
            self._open = None

    def look(self, now_s: float, carried: int, due_s: Callable[[float, int], float]) -> None:
        """Find out how late service was back, as soon as something has left.

        ``due_s(from_s, size)``: when the packet after ``size`` bytes leaves at the latest that could from ``from_s`` on. Time
        since then is lost if all of them waited at the end of the outage, or if the look before was not long ago; else the link may have
        been idle meanwhile, and all that is known is that nothing had left at the look before.
        """
        if self.resumed_s is None:
            return
        left, before_s = carried - self._at_end, self._looked_s
        self._looked_s = now_s
        if not left:
            return
        if left < self._waiting or now_s - before_s <= _CLOSE_S:
            self.seen[-1].resume_s = max(0.0, now_s - due_s(self.resumed_s, left))
        elif (least_s := before_s - due_s(self.resumed_s, 0)) > 0:  # until then nothing had left
            self.seen[-1].resume_s = least_s
        self.resumed_s = None
