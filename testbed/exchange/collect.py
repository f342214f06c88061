"""Waiting for one message from each of several peers, some of which may be ahead; and a server's
view of workers of which some may be lost.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from testbed.errors import NodeLost, WireError
from testbed.exchange.base import PREPARATION_S, Membership
from testbed.node import Buffer, Kind, Message, Node, Queue

Slot = tuple[Kind, int, int]
"""Kind, step and bucket."""

PHASES = {Kind.HELLO: "greeting", Kind.BYE: "goodbye"}


class MessageCollector:
    """Messages that came to a node and are not asked for yet. ``bytes_received``: frame bytes of
    all that came."""

    def __init__(self, node: Node, peers: Membership, ahead: int = 1) -> None:
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

        Raises NodeLost naming who is missing, step and phase; WireError for a message that has no
        place.
        """
        here = self._waiting.setdefault((kind, step, bucket), {})
        while missing := [peer for peer in senders if peer not in here]:
            self._take(self._receive(kind, step, missing, timeout_s, waiting), kind, step)
        del self._waiting[kind, step, bucket]
        return [here[peer] for peer in senders]

    def any(self, kind: Kind, step: int, missing: Collection[int], timeout_s: float) -> Message:
        """The next message of that kind and step, of whatever bucket. ``missing``: whom something
        is waited for from, and who may themselves wait for what this node sends then.

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


class WorkerSet:
    """The workers of ``peers``, of whom ``spares`` may be lost. ``here``: those that are not, by
    rank."""

    def __init__(self, node: Node, peers: Membership, spares: int) -> None:
        self._node, self._peers, self._spares = node, peers, spares
        self._numbers = {peers.names[peer]: peer for peer in peers.workers}
        self._outgoing: dict[int, Queue[Message | None]] = {}
        self.here = list(peers.workers)
        self.lost: list[NodeLost] = []
        self.bytes_sent = self.bytes_received = 0

    def welcome(self) -> None:
        """Receive every worker's HELLO: before the beginning nobody may be missing."""
        missing = set(self.here)
        while missing:
            message = self._next(self._peers.timeout_s + PREPARATION_S, missing)
            if message.kind is not Kind.HELLO or message.sender not in missing:
                raise WireError(
                    f"{self.name(message.sender)} sent {message.kind.name} before the start"
                )
            missing.discard(message.sender)
        for peer in self.here:
            outgoing = self._outgoing[peer] = self._node.queue()
            self._node.spawn(partial(self._write, peer, outgoing))

    def receive(
        self, step: int, awaited: Collection[int], waiting: Collection[int] = ()
    ) -> Message | None:
        """The next message; None when somebody was lost instead, or one who had been has sent it.

        Those of ``awaited`` who say nothing for the timeout are lost. Raises NodeLost when that are
        more than may be. ``waiting``: who can do nothing until the server goes on.
        """
        try:
            message = self._node.endpoint.receive(self._peers.timeout_s, awaited, waiting)
        except NodeLost as lost:
            named = [self._numbers[name] for name in lost.node.split(", ") if name in self._numbers]
            for peer in named or list(awaited):
                self._lose(peer, step, lost.reason)
            return None
        self.bytes_received += self._node.endpoint.frame_bytes(message)
        return message if message.sender in self.here else None

    def post(self, peer: int, kind: Kind, step: int, body: Buffer) -> int:
        """Begin to send to ``peer``; ``body`` must not change any more. Returns the frame's
        bytes."""
        message = Message(kind, step, 0, self._peers.own, body)
        frame_bytes = self._node.endpoint.frame_bytes(message)
        self._outgoing[peer].put(message)
        self.bytes_sent += frame_bytes
        return frame_bytes

    def leave(self) -> None:
        """Nothing more will be sent."""
        for outgoing in self._outgoing.values():
            outgoing.put(None)

    def name(self, peer: int) -> str:
        """Return the name of ``peer``."""
        return self._peers.names.get(peer, f"peer {peer}")

    def _write(self, peer: int, outgoing: Queue[Message | None]) -> None:
        """In an activity for each worker: one that takes nothing holds up its own messages
        alone."""
        while (message := outgoing.get()) is not None:
            try:
                self._node.endpoint.send([peer], message)
            except NodeLost:
                return  # whoever receives hears of it too

    def _next(self, timeout_s: float, missing: Collection[int]) -> Message:
        try:
            message = self._node.endpoint.receive(timeout_s)
        except NodeLost as lost:
            names = ", ".join(self.name(peer) for peer in sorted(missing))
            raise NodeLost(names, None, lost.reason, phase="greeting") from lost
        self.bytes_received += self._node.endpoint.frame_bytes(message)
        return message

    def _lose(self, peer: int, step: int, reason: str) -> None:
        if peer not in self.here:
            return
        lost = NodeLost(self.name(peer), step or None, reason, phase="gathering")
        if len(self.lost) >= self._spares:
            raise lost
        self.here.remove(peer)
        self._outgoing[peer].put(None)
        self.lost.append(lost)


class WorkerSetServer:
    """The part that servers share whose workers are a set from which some may be lost."""

    def __init__(self, crowd: WorkerSet) -> None:
        self.crowd = crowd

    @property
    def bytes_sent(self) -> int:
        """Frame bytes so far."""
        return self.crowd.bytes_sent

    @property
    def bytes_received(self) -> int:
        """Frame bytes so far."""
        return self.crowd.bytes_received

    def welcome(self) -> None:
        """Receive every worker's HELLO; see ``WorkerSet.welcome``."""
        self.crowd.welcome()
