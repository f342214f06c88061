"""A server's side of its workers where some may be lost: who is still there, what they send, and answers that hold up
nobody else."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from testbed.errors import NodeLost, WireError
from testbed.exchange.kinds import PREPARATION_S, Peers
from testbed.node import Buffer, Kind, Message, Node, Queue


class Crowd:
    """The workers of ``peers``, of whom ``spares`` may be lost. ``here``: those that are not, by rank."""

    def __init__(self, node: Node, peers: Peers, spares: int) -> None:
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

        Those of ``awaited`` who say nothing for the timeout are lost. Raises NodeLost when that are more than may be.
        ``waiting``: who can do nothing until the server goes on.
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
        """Begin to send to ``peer``; ``body`` must not change any more. Returns the frame's bytes."""
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
        """What ``peer`` is called."""
        return self._peers.names.get(peer, f"peer {peer}")

    def _write(self, peer: int, outgoing: Queue[Message | None]) -> None:
        """In an activity for each worker: one that takes nothing holds up its own messages alone."""
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
