"""The synchronous parameter server: every worker sends to the server, which answers all of them
with one update. ``Elastic…``: workers leave and return while the run goes on.
``WorkerSetServer``: some may be lost.

Several servers share the model: each answers for buckets of its own, as if it were the only one.

Frames of a run: each worker's HELLO to every server; then per step and bucket a GRADIENT of every
worker (that takes part in the step) and an UPDATE to all; BYE. Servers decide which step is the
last and send a BYE with that step's number before their UPDATE; a worker answers with a BYE once it
has all updates.

Where workers leave: who does says so with a LEAVE of the first step that it will miss, in the place
of its gradient, and gets nothing from then on. With a REJOIN it asks for the parameters; it gets
them, as an UPDATE of the step they are of, when the server has applied that, and takes part in the
next.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Literal

from testbed.errors import NodeLost, WireError
from testbed.exchange.base import (
    PREPARATION_S,
    ExchangeSpec,
    Membership,
    SentUnit,
    ServerSide,
    Ticket,
    TransferTiming,
    Update,
    WorkerSide,
)
from testbed.exchange.collect import MessageCollector, MissingMessages
from testbed.node import Buffer, Kind, Message, Node, Queue

_PATIENCE = 1.25
"""Workers wait for the server this much longer than the server for workers: it may have more to do
than they."""


class PsWorkerExchange(WorkerSide):
    """A worker's side."""

    content: Literal["gradient", "parameters"] = "gradient"
    """Content of its updates."""

    def __init__(self, node: Node, peers: Membership) -> None:
        super().__init__(node, peers)
        self.last_step = None  # the server says which
        self._patience = _PATIENCE
        self._servers = frozenset(peers.servers)
        self._updates: dict[tuple[int, int], Message] = {}
        self._expected: set[tuple[int, int]] = set()
        """Steps and buckets that were submitted, and have no update yet."""

    def connect(self) -> None:
        """Send HELLO to every server."""
        for server in self._peers.servers:
            self._send([server], Kind.HELLO, 0)

    def submit(self, step: int, bucket: int, payload: Buffer) -> Ticket:
        """Send a bucket's payload to its server."""
        self._expected.add((step, bucket))
        return self._submit(step, step, bucket, payload)

    def expect(self, step: int, bucket: int) -> Ticket:
        """Send nothing of ``bucket``, and wait for its update all the same."""
        self._expected.add((step, bucket))
        now_s = self._node.now()
        return Ticket(partial(self._finish, step, bucket, now_s, now_s, 0))

    def arrived(self, step: int, under_way: Collection[int]) -> int:
        """One of the buckets ``under_way`` whose ticket's ``wait`` would return at once; blocks
        until there is one.

        Others may be added to ``under_way`` meanwhile. Raises NodeLost, WireError.
        """
        # of a copy, made at once: another activity adds to it
        while not (ready := [bucket for bucket in [*under_way] if (step, bucket) in self._updates]):
            self._take(step, {self._peers.server_of(bucket) for bucket in [*under_way]})
        return ready[0]

    def close(self) -> None:
        """Say goodbye to the servers."""
        for server in self._peers.servers:
            self._send([server], Kind.BYE, self.last_step or 0)

    def _submit(self, step: int, version: int, bucket: int, payload: Buffer) -> Ticket:
        """Send what was computed in ``step`` on ``version`` of the parameters."""
        start_s = self._node.now()
        server = self._peers.server_of(bucket)
        bytes_up = self._send([server], Kind.GRADIENT, version, bucket, payload)
        return Ticket(partial(self._finish, step, bucket, start_s, self._node.now(), bytes_up))

    def _finish(
        self, step: int, bucket: int, start_s: float, sent_s: float, bytes_up: int
    ) -> tuple[Update, TransferTiming]:
        """Whatever the server answers with."""
        reply = self._update(step, bucket)
        timing = TransferTiming(
            start_s=start_s,
            # a reply may come before this thread has noticed that all was handed over
            sent_s=min(sent_s, reply.first_s),
            first_s=reply.first_s,
            arrived_s=reply.arrived_s,
            last_s=reply.last_s,
            bytes_up=bytes_up,
            bytes_down=self.frame_bytes(reply),
        )
        return Update(self.content, reply.step, reply.body), timing

    def _update(self, step: int, bucket: int) -> Message:
        """The server's UPDATE for ``bucket`` of ``step``. Raises NodeLost, or WireError for
        another."""
        while (step, bucket) not in self._updates:
            self._take(step, {self._peers.server_of(bucket)})
        return self._updates.pop((step, bucket))

    def _take(self, step: int, servers: Collection[int]) -> None:
        """The next message while an update of ``step`` is waited for, from one of ``servers``."""
        message = self._next(step, servers)
        slot = (message.step, message.bucket)
        expected = message.step == step and slot in self._expected
        from_its_server = message.sender == self._peers.server_of(message.bucket)
        if message.kind is Kind.BYE:
            self.last_step = message.step
        elif message.kind is Kind.UPDATE and expected and from_its_server:
            self._expected.discard(slot)
            self._updates[slot] = message
        else:
            raise WireError(
                f"{self._peers.names[message.sender]} sent {message.kind.name} of step "
                f"{message.step}, bucket {message.bucket}, while an update of step {step} was "
                "waited for"
            )

    def _next(self, step: int, servers: Collection[int] = ()) -> Message:
        """The next message. ``servers``: who is to send it, the first one unless others are
        given."""
        awaited = servers or self._peers.servers[:1]
        others = self._servers.difference(awaited)
        timeout_s = self._peers.timeout_s * self._patience
        return self._receive(Kind.UPDATE, step, timeout_s, awaited, others)


class PsServerExchange(ServerSide):
    """The server's side."""

    def __init__(self, node: Node, peers: Membership) -> None:
        super().__init__(node, peers)
        self._collector = MessageCollector(
            peers.names, peers.workers, self._receive, divert=self._divert
        )

    def await_workers(self) -> None:
        """Receive every worker's HELLO."""
        self._collect(Kind.HELLO, 0, self._peers.timeout_s + PREPARATION_S)

    def gather(self, step: int, bucket: int) -> list[Message]:
        """The GRADIENT of everyone who takes part, by rank. A message out of place is an error, not
        ignored: in a bulk synchronous run nobody has a reason to send one, and what was counted
        would be wrong."""
        return self.gather_any(step, [bucket])[1]

    def gather_any(self, step: int, buckets: Collection[int]) -> tuple[int, list[Message]]:
        """The first of ``buckets`` of which every worker's message is there, and these, by rank.
        Raises as ``gather``."""
        return self._collector.collect_any(
            Kind.GRADIENT, step, buckets, self._senders(step), self._peers.timeout_s
        )

    def broadcast(self, step: int, bucket: int, payload: Buffer, *, last: bool = False) -> SentUnit:
        """One UPDATE to all workers at once, after a BYE if it is the ``last``."""
        receivers = self._receivers()
        if last:
            self._send(receivers, Kind.BYE, step, bucket)
        start_s = self._node.now()
        frame_bytes = self._send(receivers, Kind.UPDATE, step, bucket, payload)
        return SentUnit(start_s, self._node.now(), frame_bytes)

    def await_goodbyes(self, step: int) -> None:
        """Receive every worker's BYE: all of them have the last update."""
        self._collect(Kind.BYE, step, self._peers.timeout_s)

    def _collect(self, kind: Kind, step: int, timeout_s: float) -> None:
        self._collector.collect(kind, step, 0, self._peers.workers, timeout_s)

    def _senders(self, step: int) -> Sequence[int]:
        """Who sends a gradient in ``step``."""
        return self._peers.of_step(step)

    def _receivers(self) -> Sequence[int]:
        """Who is answered."""
        return self._peers.workers

    def _divert(self, message: Message, awaited: MissingMessages) -> bool:  # noqa: ARG002
        """Return whether ``message`` was taken for something else than what is collected (see
        ``MessageCollector``)."""
        return False


class ElasticPsWorker(PsWorkerExchange):
    """A worker's side of an exchange that goes on without it for a while."""

    def leave(self, step: int) -> None:
        """Say that nothing comes of ``step`` and those after it."""
        self._send(self._peers.servers[:1], Kind.LEAVE, step)

    def rejoin(self, step: int) -> Message:
        """Ask for the parameters; blocks until they are there, of ``step`` or a later one, which
        the message says.

        The server gives their state as its body. Raises NodeLost, WireError.
        """
        self._send(self._peers.servers[:1], Kind.REJOIN, step)
        while (message := self._next(step)).kind is Kind.BYE:
            self.last_step = message.step
        if message.kind is not Kind.UPDATE or message.step < step:
            raise WireError(
                f"{self._peers.names[message.sender]} sent {message.kind.name} of step "
                f"{message.step} where parameters of step {step} or later were asked for"
            )
        return message


class ElasticPsServer(PsServerExchange):
    """The server's side. ``state``: gives what a returning worker is sent, as the last step has
    left it."""

    def __init__(self, node: Node, peers: Membership) -> None:
        super().__init__(node, peers)
        self.state: Callable[[], Buffer] = bytes
        self._away: set[int] = set()
        self._returning: list[int] = []
        self._ended: int | None = None
        self._listening = list(peers.workers)
        """Those who have not left, or have asked for the parameters: they may wait."""
        self._collector = MessageCollector(
            peers.names, self._listening, self._receive, divert=self._divert
        )

    def send_state_to_rejoined(self, step: int, *, last: bool) -> None:
        """Send the state, which is that of ``step``, to whoever has asked for it. ``last``: they
        stop after it."""
        returning, self._returning = self._returning, []
        if not returning:
            return
        self._away.difference_update(returning)
        if last:
            self._send(returning, Kind.BYE, step)
        self._send(returning, Kind.UPDATE, step, 0, self.state())

    def await_goodbyes(self, step: int) -> None:
        """See ``PsServerExchange``; those who are away are told when they return."""
        self._ended = step
        self._collect(Kind.BYE, step, self._peers.timeout_s + self._peers.away_s)

    def _senders(self, step: int) -> Sequence[int]:  # noqa: ARG002
        return self._receivers()

    def _receivers(self) -> Sequence[int]:
        return [peer for peer in self._peers.workers if peer not in self._away]

    def _divert(self, message: Message, awaited: MissingMessages) -> bool:
        """Take messages of those who leave and return."""
        sender = message.sender
        due = sender in awaited.count and message.step == awaited.step
        if message.kind is Kind.LEAVE and due:
            del awaited.count[sender]
            self._away.add(sender)
            self._listening.remove(sender)
            return True
        if message.kind is not Kind.REJOIN or sender not in self._away:
            return False
        self._returning.append(sender)
        self._listening.append(sender)
        awaited.waiting[sender] = None
        if self._ended is not None:
            self.send_state_to_rejoined(self._ended, last=True)
        return True


PARAMETER_SERVER = ExchangeSpec(
    PsWorkerExchange,
    PsServerExchange,
    buckets=True,
    partial=True,
    elastic=(ElasticPsWorker, ElasticPsServer),
)


class WorkerSetServer(PsServerExchange):
    """A server of workers of whom ``max_lost`` may be lost. ``alive``: those that are not, by rank;
    ``lost``: why others are. ``dropped``: gradients that came too late."""

    def __init__(self, node: Node, peers: Membership, max_lost: int) -> None:
        super().__init__(node, peers)
        self._max_lost = max_lost
        self._numbers = {peers.names[peer]: peer for peer in peers.workers}
        self._outgoing: dict[int, Queue[Message | None]] = {}
        self.alive = list(peers.workers)
        self.lost: list[NodeLost] = []
        self.dropped: list[Message] = []
        self._collector = MessageCollector(
            peers.names, self.alive, self.receive, divert=self._divert
        )

    def await_workers(self) -> None:
        """Receive every worker's HELLO: before the beginning nobody may be missing."""
        super().await_workers()
        for peer in self.alive:
            outgoing = self._outgoing[peer] = self._node.queue()
            self._node.spawn(partial(self._write, peer, outgoing))

    def await_goodbyes(self, step: int) -> None:
        """Wait until all who are alive have said goodbye."""
        self._collector.collect(Kind.BYE, step, 0, self.alive, self._peers.timeout_s)
        self.close()

    def receive(
        self,
        kind: Kind,
        step: int,
        timeout_s: float,
        awaited: Collection[int],
        waiting: Collection[int] = (),
    ) -> Message | None:
        """The next message; None when somebody was lost instead, or one who had been has sent it.

        Those of ``awaited`` who say nothing for the timeout are lost. Raises NodeLost when that are
        more than may be. ``waiting``: who can do nothing until the server goes on.
        """
        try:
            message = self._receive(kind, step, timeout_s, awaited, waiting)
        except NodeLost as lost:
            if kind is Kind.HELLO:
                raise
            named = [self._numbers[name] for name in lost.node.split(", ") if name in self._numbers]
            for peer in named or list(awaited):
                self._lose(peer, step, lost.reason, lost.phase)
            return None
        return message if message.sender in self.alive else None

    def enqueue(self, peer: int, kind: Kind, step: int, body: Buffer) -> int:
        """Begin to send to ``peer``; ``body`` must not change any more. Returns the frame's
        bytes."""
        message = Message(kind, step, 0, self._peers.own, body)
        self._outgoing[peer].put(message)
        frame_bytes = self.frame_bytes(message)
        self.bytes_sent += frame_bytes
        return frame_bytes

    def close(self) -> None:
        """Nothing more will be sent."""
        for outgoing in self._outgoing.values():
            outgoing.put(None)

    def _write(self, peer: int, outgoing: Queue[Message | None]) -> None:
        """In an activity for each worker: one that takes nothing holds up its own messages
        alone."""
        while (message := outgoing.get()) is not None:
            try:
                self._node.endpoint.send([peer], message)
            except NodeLost:
                return  # whoever receives hears of it too

    def _lose(self, peer: int, step: int, reason: str, phase: str | None = None) -> None:
        if peer not in self.alive:
            return
        phase = phase or self.phase
        lost = NodeLost(self._peers.names[peer], step or None, reason, phase=phase)
        if len(self.lost) >= self._max_lost:
            raise lost
        self.alive.remove(peer)
        self._outgoing[peer].put(None)
        self.lost.append(lost)
