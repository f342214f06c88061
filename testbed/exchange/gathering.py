"""Waiting for one message from each of several peers, some of which may be ahead."""

from __future__ import annotations

from collections.abc import Collection

from testbed.errors import NodeLost, WireError
from testbed.exchange.kinds import Peers
from testbed.node import Kind, Message, Node

Slot = tuple[Kind, int, int]
"""Kind, step and bucket."""

PHASES = {Kind.HELLO: "greeting", Kind.BYE: "goodbye"}


class Gathering:
    """What has come to a node and is not asked for yet. ``bytes_received``: frame bytes of all that came."""

    def __init__(self, node: Node, peers: Peers, ahead: int = 1) -> None:
        """``ahead``: how many steps a peer may be further than this node."""
        self._node, self._peers, self._ahead = node, peers, ahead
        self._waiting: dict[Slot, dict[int, Message]] = {}
        self.bytes_received = 0

    def collect(
        self,
        kind: Kind,
        step: int,
        bucket: int,
        senders: Collection[int],
        timeout_s: float,
        waiting: Collection[int] = (),
    ) -> list[Message]:
        """One message of that kind, step and bucket from each of ``senders``, in their order.

        ``waiting``: who can do nothing until this node goes on.

        Raises NodeLost naming who is missing, step and phase; WireError for a message that has no place.
        """
        here = self._waiting.setdefault((kind, step, bucket), {})
        while missing := [peer for peer in senders if peer not in here]:
            self._take(self._receive(kind, step, missing, timeout_s, waiting), kind, step)
        del self._waiting[kind, step, bucket]
        return [here[peer] for peer in senders]

    def any(self, kind: Kind, step: int, missing: Collection[int], timeout_s: float) -> Message:
        """The next message of that kind and step, of whatever bucket. ``missing``: whom something is waited for from,
        and who may themselves wait for what this node sends then.

        Raises as ``collect``.
        """
        while (found := self._came(kind, step)) is None:
            self._take(self._receive(kind, step, missing, timeout_s, missing), kind, step)
        return found

    def _came(self, kind: Kind, step: int) -> Message | None:
        """One that waits here; the first bucket goes first."""
        for slot, here in self._waiting.items():
            if slot[:2] == (kind, step):
                _, message = here.popitem()
                if not here:
                    del self._waiting[slot]
                return message
        return None

    def _receive(
        self,
        kind: Kind,
        step: int,
        missing: Collection[int],
        timeout_s: float,
        waiting: Collection[int],
    ) -> Message:
        try:
            message = self._node.endpoint.receive(timeout_s, missing, waiting)
        except NodeLost as lost:
            raise lost.during(step, PHASES.get(kind, "receiving")) from lost
        self.bytes_received += self._node.endpoint.frame_bytes(message)
        return message

    def _take(self, message: Message, kind: Kind, step: int) -> None:
        name = self._peers.names.get(message.sender, f"peer {message.sender}")
        near = step <= message.step <= step + self._ahead
        if message.kind is Kind.BYE and kind is not Kind.BYE and not near:
            raise NodeLost(name, step or None, "it said goodbye before the end")
        slot = message.kind, message.step, message.bucket
        here = self._waiting.setdefault(slot, {})
        if message.sender not in self._peers.workers or not near or message.sender in here:
            raise WireError(
                f"{name} sent {message.kind.name} of step {message.step}, bucket {message.bucket}, "
                f"while {kind.name} of step {step} was waited for"
            )
        here[message.sender] = message
