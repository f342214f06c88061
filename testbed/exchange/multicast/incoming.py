"""Messages as they come together at a receiver. Memory is taken for what has come, and for checked lengths only."""

from __future__ import annotations

from typing import NamedTuple

from testbed.errors import WireError
from testbed.exchange.frame import HEADER_BYTES, MAX_BODY, Header
from testbed.exchange.multicast.packet import PAYLOAD, packets_of, ranges

MOST_AHEAD = 32_768
"""Packets between the highest index so far and the next one; no sender has that many under way."""


class Frames(NamedTuple):
    """What frames a receiver takes: of which run, and how long their bodies may be."""

    run: int
    most_bytes: int = MAX_BODY


class Incoming:
    """One message of one sender."""

    def __init__(self, frames: Frames, sender: int) -> None:
        self._frames, self._sender = frames, sender
        self.header: Header | None = None
        self.stream = bytearray()
        self.reached = 0
        """One more than the highest index received."""
        self.missing: set[int] = set()
        self.first_ns = self.arrived_ns = 0
        self._total: int | None = None
        self._early: dict[int, bytes] = {}

    @property
    def complete(self) -> bool:
        """Whether all of it is here."""
        return self.header is not None and not self.missing and self.reached == self._total

    def put(
        self, index: int, payload: memoryview, last: bool, arrived_ns: int, now_ns: int
    ) -> bool:
        """Take a packet in; False if it was here already. Raises WireError for one that cannot be of this message."""
        if index < self.reached and index not in self.missing:
            return False
        self._check(index, len(payload), last)
        if self.header is not None:
            self._place(index, payload)
        elif index:
            self._early[index] = bytes(payload)
        else:
            self._begin(payload)
        self._mark(index)
        if last:
            self._total = index + 1
        self.first_ns = self.first_ns or now_ns
        self.arrived_ns = max(self.arrived_ns, arrived_ns)
        return True

    def ranges_missing(self) -> tuple[tuple[int, int], ...]:
        """What is missing below the highest index received."""
        return ranges(self.missing)

    def _check(self, index: int, length: int, last: bool) -> None:
        ends = self._total is not None and (
            index >= self._total or last != (index + 1 == self._total)
        )
        if ends or (last and index + 1 < self.reached) or index > self.reached + MOST_AHEAD:
            raise WireError(f"packet {index} of a message of {self._total}")
        if self.header is not None:
            whole = len(self.stream) - index * PAYLOAD
        else:
            whole = length if last and index else PAYLOAD
        if index and not (length == min(whole, PAYLOAD) and length > 0):
            raise WireError(f"packet {index} has {length} B")

    def _begin(self, payload: memoryview) -> None:
        """The first packet says how long the frame is."""
        header = Header.unpack(payload[:HEADER_BYTES], self._frames.most_bytes)
        whole = HEADER_BYTES + header.length
        total = packets_of(whole)
        late = max(self._early, default=0)
        fits = (
            len(payload) == min(whole, PAYLOAD)
            and late < total
            and self._total in (None, total)
            and all(
                len(part) == min(PAYLOAD, whole - n * PAYLOAD) for n, part in self._early.items()
            )
        )
        if header.run != self._frames.run or header.sender != self._sender or not fits:
            raise WireError("the frame is not what its packets say")
        self.header, self._total, self.stream = header, total, bytearray(whole)
        self._place(0, payload)
        for index, part in self._early.items():
            self._place(index, memoryview(part))
        self._early.clear()

    def _place(self, index: int, payload: memoryview) -> None:
        at = index * PAYLOAD
        self.stream[at : at + len(payload)] = payload

    def _mark(self, index: int) -> None:
        if index >= self.reached:
            self.missing.update(range(self.reached, index))
            self.reached = index + 1
        else:
            self.missing.discard(index)
