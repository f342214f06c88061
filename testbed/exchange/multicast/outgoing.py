"""One message on its way to the members of a group: what each has, what is to be sent again, who is silent."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from testbed.exchange.multicast.batch import Bytes
from testbed.exchange.multicast.packet import PAYLOAD, Report, packets_of, since

GATHER_S = 0.002
"""A packet that one member misses may be missed by others, whose reports are waited for this long."""


@dataclass
class Progress:
    """What a member has said: one more than the highest index it has."""

    reached: int = 0
    done: bool = False


@dataclass
class Repair:
    """A packet to be sent again, not before ``due_s``."""

    due_s: float
    members: set[int] = field(default_factory=set)


class Outgoing:
    """A message until every member has all of it. Times are seconds of the engine's clock."""

    def __init__(self, group: int, number: int, members: Iterable[int], stream: bytes) -> None:
        self.group, self.number = group, number
        self.stream: Bytes = np.frombuffer(stream, np.uint8)
        self.count = packets_of(len(stream))
        self.sent = 0
        self.members = {member: Progress() for member in members}
        self.handed_over = threading.Event()
        self.repairs: dict[int, Repair] = {}
        self.begun_s = 0.0
        self.ask_s = 0.0
        """When to ask the members again, if nothing is heard before."""
        self.asked = 0
        """How often that has been done in a row."""
        self._stamps = array("I")
        self._repaired: set[int] = set()

    @property
    def done(self) -> bool:
        """Whether every member has confirmed all of it."""
        return all(progress.done for progress in self.members.values())

    def waiting(self) -> list[int]:
        """The members that have not."""
        return [member for member, progress in self.members.items() if not progress.done]

    def reached(self) -> int:
        """How many packets have passed the slowest member, received or lost."""
        ways = (self.count if p.done else p.reached for p in self.members.values())
        return min(self.sent, min(ways, default=self.sent))

    def length_of(self, index: int) -> int:
        """Bytes of a packet's payload."""
        return min(PAYLOAD, len(self.stream) - index * PAYLOAD)

    def stamp(self, count: int, stamp_us: int) -> None:
        """The next ``count`` packets have been sent."""
        self._stamps.extend([stamp_us] * count)
        self.sent += count

    def stamp_repairs(self, indices: Iterable[int], stamp_us: int) -> None:
        """These have been sent again."""
        for index in indices:
            self._stamps[index] = stamp_us
            self._repaired.add(index)
            del self.repairs[index]

    def heard(
        self, member: int, reached: int, done: bool, report: Report, answered_us: int, now_s: float
    ) -> int:
        """Take a member's report in; returns how many of its packets turn out to be lost.

        Packets keep their order on the way. So what was sent before the packet that is answered, and has not come, is
        lost. Raises ValueError for a report of what was never sent.
        """
        if reached > self.sent:
            raise ValueError(f"a report of {reached} packets of {self.sent}")
        progress = self.members[member]
        progress.reached = max(progress.reached, reached)
        if done and not progress.done:
            progress.done, progress.reached = True, self.count
            self._forget(member)
        if progress.done:
            return 0
        return sum(
            self._want(index, member, now_s)
            for index in self._missing(reached, report)
            if self._is_lost(index, reached, answered_us)
        )

    def drop(self, member: int) -> None:
        """A member is gone."""
        if self.members.pop(member, None) is not None:
            self._forget(member)

    def due(self, now_s: float) -> list[tuple[int, set[int]]]:
        """The packets to be sent again now, and who misses each."""
        return [
            (index, repair.members)
            for index, repair in sorted(self.repairs.items())
            if repair.due_s <= now_s
        ]

    def _missing(self, reached: int, report: Report) -> Iterable[int]:
        for first, count in report.missing:
            yield from range(first, min(first + count, reached))
        yield from range(reached, self.sent)

    def _is_lost(self, index: int, reached: int, answered_us: int) -> bool:
        age_us = since(self._stamps[index], answered_us)
        return age_us > 0 or (age_us == 0 and index < reached and index not in self._repaired)

    def _want(self, index: int, member: int, now_s: float) -> bool:
        repair = self.repairs.setdefault(index, Repair(now_s + GATHER_S))
        new = member not in repair.members
        repair.members.add(member)
        return new

    def _forget(self, member: int) -> None:
        for index, repair in list(self.repairs.items()):
            repair.members.discard(member)
            if not repair.members:
                del self.repairs[index]
