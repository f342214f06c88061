"""A sender's messages to one group, in their order; and what its packets meet on their way here."""

from __future__ import annotations

from dataclasses import dataclass, field

from testbed.errors import WireError
from testbed.exchange.multicast.incoming import Frames, Incoming
from testbed.exchange.multicast.packet import since

AHEAD = 64
"""So many messages of a group may be under way at once."""
_BEHIND = 0x4000
_LAG_ALLOWED_US = 10_000


@dataclass
class Way:
    """What packets of one sender meet on their way here: how much longer they take than the quickest did."""

    _least_us: int | None = None
    _queued_us: int | None = None

    def passed(self, stamp_us: int, arrived_us: int, rest: bool) -> None:
        """A full packet was sent and has arrived, each by the clock of its side."""
        took_us = since(stamp_us, arrived_us)
        if self._least_us is None or rest or took_us < self._least_us:
            self._least_us = took_us
        queued_us = took_us - self._least_us
        if self._queued_us is None or queued_us < self._queued_us:
            self._queued_us = queued_us

    def queued_us(self, lag_us: int) -> int:
        """The least delay since this was last asked; a receiver that is far behind with reading counts as a queue."""
        queued, self._queued_us = self._queued_us or 0, None
        return max(queued, lag_us - _LAG_ALLOWED_US)


@dataclass
class Stream:
    """A sender's messages to one group, in their order."""

    frames: Frames
    sender: int
    next: int = 0
    """The number, not folded, of the first message that has not been delivered."""
    parts: dict[int, Incoming] = field(default_factory=dict)
    heard_s: float = 0.0

    def find(self, folded: int) -> tuple[int, Incoming | None]:
        """A message by its number modulo 2**16; no Incoming where it has been delivered. Raises WireError."""
        ahead = (folded - self.next + 0x8000) % 0x10000 - 0x8000
        if not -_BEHIND <= ahead < AHEAD:
            raise WireError(f"message {folded} while {self.next} is due")
        number = self.next + ahead
        if ahead < 0:
            return number, None
        if number not in self.parts:
            self.parts[number] = Incoming(self.frames, self.sender)
        return number, self.parts[number]

    def ready(self) -> list[Incoming]:
        """Take out what is complete and whose turn it is."""
        found = []
        while (part := self.parts.get(self.next)) is not None and part.complete:
            found.append(self.parts.pop(self.next))
            self.next += 1
        return found
