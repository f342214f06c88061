"""The seam of exchange: what a worker submits, and what it gets back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from testbed.node import Buffer, Message


@dataclass(frozen=True, slots=True)
class Update:
    """What a ticket brings: a mean gradient (or parameters) of a version, as a payload.

    ``gradients``: nobody has averaged yet. ``parts`` are all workers' messages by rank, one's own among them.
    """

    kind: Literal["gradient", "parameters", "gradients"]
    version: int
    payload: Buffer = b""
    parts: Sequence[Message] = ()
    more: Sequence[Update] = ()
    """Of the steps that follow, as far as they are there already: whoever is behind takes them in as well."""


@dataclass(frozen=True, slots=True)
class Travel:
    """How a bucket travelled, in seconds of ``Node.now()`` and frame bytes."""

    start_s: float
    """Start of sending."""
    sent_s: float
    """The last byte was handed to the network stack."""
    first_s: float
    """The reply's header had come."""
    arrived_s: float
    """The reply's last byte had come to the host's network stack."""
    last_s: float
    """The reply's last byte had been read."""
    bytes_up: int
    bytes_down: int

    def after(self, time_s: float) -> Travel:
        """What of it was after ``time_s``; all of the bytes."""
        return replace(
            self,
            start_s=max(self.start_s, time_s),
            sent_s=max(self.sent_s, time_s),
            first_s=max(self.first_s, time_s),
            arrived_s=max(self.arrived_s, time_s),
            last_s=max(self.last_s, time_s),
        )


def together(travels: Sequence[Travel]) -> Travel:
    """Of buckets that were sent one after the other: from the first one's start to the last one's end."""
    if len(travels) == 1:
        return travels[0]
    first_s = min(travel.first_s for travel in travels)
    return Travel(
        start_s=min(travel.start_s for travel in travels),
        sent_s=min(first_s, max(travel.sent_s for travel in travels)),
        first_s=first_s,
        arrived_s=max(travel.arrived_s for travel in travels),
        last_s=max(travel.last_s for travel in travels),
        bytes_up=sum(travel.bytes_up for travel in travels),
        bytes_down=sum(travel.bytes_down for travel in travels),
    )


class Ticket(Protocol):
    """A submitted bucket."""

    def wait(self) -> Update:
        """Block until the update is there."""
        ...

    @property
    def travel(self) -> Travel:
        """How it went; complete after ``wait``."""
        ...


class Exchange(Protocol):
    """A worker's side of an exchange. The unit is a bucket: one or more layers."""

    def submit(self, step: int, bucket: int, payload: Buffer) -> Ticket:
        """Send a bucket's payload on its way."""
        ...

    def close(self) -> None:
        """Say goodbye to the peers."""
        ...
