"""Collective operations of somebody else's library, where a node can have them: the baselines of all-reduce.

A library brings connections of its own, which nobody counts frames on; what a group moved is read from the counters of
the node's interface.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Carried:
    """What an interface has carried, in bytes with all headers that it sees."""

    interface: str
    sent: int
    received: int

    def since(self, before: Carried) -> Carried:
        """From ``before`` on."""
        return Carried(self.interface, self.sent - before.sent, self.received - before.received)

    def to_json(self) -> dict[str, str | int]:
        """As it is recorded."""
        return {"interface": self.interface, "sent": self.sent, "received": self.received}


class Pending(Protocol):
    """An operation under way. The tensors it was given must stay as they are."""

    def wait(self) -> float:
        """Until it has ended; returns when it did, in seconds of ``Node.now()``.

        Raises NodeLost with what the library says when a member cannot be reached.
        """
        ...


class Group(Protocol):
    """Some nodes on the data network. All members make the same operations in the same order."""

    def add_up(self, values: Tensor) -> Pending:
        """Begin to set ``values`` (float32 or bfloat16, contiguous, on the host) to the sum of all members'."""
        ...

    def gather(self, own: Tensor, everybodys: Tensor) -> Pending:
        """Begin to copy all members' ``own`` (m,) to ``everybodys`` (n·m,), by rank."""
        ...

    def carried(self) -> Carried:
        """What the node's data interface has carried since the group was made."""
        ...

    def close(self) -> None:
        """End all connections. Nothing of the group may be used after it."""
        ...
