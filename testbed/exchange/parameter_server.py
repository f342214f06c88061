"""The synchronous parameter server: every worker sends to the server, which answers all of them
with one update. ``Elastic…``: workers leave and return while the run goes on.

Several servers share the model: each answers for buckets of its own, as if it were the only one.

Frames of a run: each worker's HELLO to every server; then per step and bucket a GRADIENT of every
worker (that takes part in the step) and an UPDATE to all; BYE. Servers decide which step is the
last and send a BYE with that step's number before their UPDATE; a worker answers with a BYE once it
has all updates.

Beside the frames of ``testbed.exchange.parameter_server``: who leaves says so with an AWAY of the
first step that it will miss, in the place of its gradient, and gets nothing from then on. With a
BACK it asks for the parameters; it gets them, as an UPDATE of the step they are of, when the server
has applied that, and takes part in the next.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Literal

from testbed.errors import NodeLost, WireError
from testbed.exchange.base import (
    PREPARATION_S,
    ExchangeSpec,
    Membership,
    SentUnit,
    Ticket,
    TransferTiming,
    Update,
)
from testbed.node import Buffer, Kind, Message, Node

_PATIENCE = 1.25
"""Workers wait for the server this much longer than the server for workers: it may have more to do
than they."""


class PsWorkerExchange:
    """A worker's side."""

    brings: Literal["gradient", "parameters"] = "gradient"
    """Content of its updates."""

    def __init__(self, node: Node, peers: Membership) -> None:
        self._node, self._peers, self._patience = node, peers, _PATIENCE
        self._arrived: dict[tuple[int, int], Message] = {}
        self._asked: set[tuple[int, int]] = set()
        """Steps and buckets that were submitted, and have no update yet."""
        self._last_step: int | None = None
        self.bytes_sent = self.bytes_received = 0

    @property
    def last_step(self) -> int | None:
        """The step the run ends with, once the server has said so."""
        return self._last_step

    def greet(self) -> None:
        """Send HELLO to every server."""
        for server in self._peers.servers:
            self._send(server, Kind.HELLO, 0, 0, b"")

    def submit(self, step: int, bucket: int, payload: Buffer) -> Ticket:
        """Send a bucket's payload to its server; returns when its last byte is handed over."""
        self._asked.add((step, bucket))
        start_s = self._node.now()
        frame_bytes = self._send(
            self._peers.server_of(bucket), Kind.GRADIENT, step, bucket, payload
        )
        return PsTicket(self, step, bucket, start_s, self._node.now(), frame_bytes)

    def expect(self, step: int, bucket: int) -> Ticket:
        """See ``testbed.exchange.base.PartialSide``."""
        self._asked.add((step, bucket))
        now_s = self._node.now()
        return PsTicket(self, step, bucket, now_s, now_s, 0)

    def update(self, step: int, bucket: int) -> Message:
        """The server's UPDATE for ``bucket`` of ``step``. Raises NodeLost, or WireError for
        another."""
        while (step, bucket) not in self._arrived:
            self._take(step, {self._peers.server_of(bucket)})
        return self._arrived.pop((step, bucket))

    def arrived(self, step: int, under_way: Collection[int]) -> int:
        """See ``testbed.exchange.base.BucketsSide``."""
        # of a copy, made at once: another activity adds to it
        while not (there := [one for one in [*under_way] if (step, one) in self._arrived]):
            self._take(step, {self._peers.server_of(bucket) for bucket in [*under_way]})
        return there[0]

    def close(self) -> None:
        """Say goodbye to the servers."""
        for server in self._peers.servers:
            self._send(server, Kind.BYE, self._last_step or 0, 0, b"")

    def frame_bytes(self, message: Message) -> int:
        """Bytes of ``message`` on the wire, as a frame."""
        return self._node.endpoint.frame_bytes(message)

    def _take(self, step: int, servers: Collection[int]) -> None:
        """The next message while an update of ``step`` is waited for, from one of ``servers``."""
        message = self._receive(step, servers)
        if message.kind is Kind.BYE:
            self._last_step = message.step
        elif self._due(message, step):
            self._asked.discard((step, message.bucket))
            self._arrived[step, message.bucket] = message
        else:
            raise WireError(
                f"{self._peers.names[message.sender]} sent {message.kind.name} of step "
                f"{message.step}, bucket {message.bucket}, while an update of step {step} was "
                "waited for"
            )

    def _due(self, message: Message, step: int) -> bool:
        """Return whether it is an update of ``step``, asked for and not there yet, from the server
        of its bucket."""
        from_it = message.sender == self._peers.server_of(message.bucket)
        asked = message.step == step and (step, message.bucket) in self._asked
        return message.kind is Kind.UPDATE and asked and from_it

    def _send(self, server: int, kind: Kind, step: int, bucket: int, body: Buffer) -> int:
        message = Message(kind, step, bucket, self._peers.own, body)
        try:
            sent = self._node.endpoint.send([server], message)
        except NodeLost as lost:
            raise lost.during(step, "sending") from lost
        self.bytes_sent += sent
        return sent

    def _receive(self, step: int, servers: Collection[int] = ()) -> Message:
        awaited = servers or self._peers.servers[:1]
        others = [other for other in self._peers.servers if other not in awaited]
        patience_s = self._peers.timeout_s * self._patience
        try:
            message = self._node.endpoint.receive(patience_s, awaited, others)
        except NodeLost as lost:
            raise lost.during(step, "receiving") from lost
        self.bytes_received += self.frame_bytes(message)
        return message


class PsTicket:
    """A submitted bucket (``testbed.exchange.base.Ticket``)."""

    def __init__(
        self,
        exchange: PsWorkerExchange,
        step: int,
        bucket: int,
        start_s: float,
        sent_s: float,
        bytes_up: int,
    ) -> None:
        self._exchange, self._step, self._bucket = exchange, step, bucket
        self._start_s, self._sent_s, self._bytes_up = start_s, sent_s, bytes_up
        self._travel: TransferTiming | None = None

    def wait(self) -> Update:
        """The mean gradient of the step, or whatever else the server answers with."""
        reply = self._exchange.update(self._step, self._bucket)
        self._travel = TransferTiming(
            start_s=self._start_s,
            # a reply may come before this thread has noticed that all was handed over
            sent_s=min(self._sent_s, reply.first_s),
            first_s=reply.first_s,
            arrived_s=reply.arrived_s,
            last_s=reply.last_s,
            bytes_up=self._bytes_up,
            bytes_down=self._exchange.frame_bytes(reply),
        )
        return Update(self._exchange.brings, reply.step, reply.body)

    @property
    def travel(self) -> TransferTiming:
        """How it went. Raises RuntimeError before ``wait``."""
        if self._travel is None:
            raise RuntimeError("travel is known after wait()")
        return self._travel


class PsServerExchange:
    """The server's side."""

    def __init__(self, node: Node, peers: Membership) -> None:
        self._node, self._peers = node, peers
        self._parts: dict[int, dict[int, Message]] = {}
        """Messages of buckets of a step that are not complete, by bucket and sender."""
        self.bytes_sent = self.bytes_received = 0

    def welcome(self) -> None:
        """Receive every worker's HELLO."""
        self._collect(Kind.HELLO, 0, 0, self._peers.timeout_s + PREPARATION_S)

    def gather(self, step: int, bucket: int) -> list[Message]:
        """The GRADIENT of everyone who takes part, by rank. A message out of place is an error, not
        ignored: in a bulk synchronous run nobody has a reason to send one, and what was counted
        would be wrong."""
        return self._collect(
            Kind.GRADIENT, step, bucket, self._peers.timeout_s, self._peers.of_step(step)
        )

    def gather_any(self, step: int, buckets: Collection[int]) -> tuple[int, list[Message]]:
        """See ``testbed.exchange.base.BucketsServer``."""
        workers = self._peers.workers
        parts = self._parts
        left = {
            worker: sum(worker not in parts.get(bucket, ()) for bucket in buckets)
            for worker in workers
        }
        while True:
            lacking = [worker for worker in workers if left[worker]]
            waiting = [worker for worker in workers if not left[worker]]
            message = self._receive(step, lacking, waiting, self._peers.timeout_s)
            bucket = message.bucket if message.bucket in buckets else min(buckets)
            here = parts.setdefault(bucket, {})
            self._check(message, Kind.GRADIENT, step, bucket, [w for w in workers if w not in here])
            here[message.sender] = message
            left[message.sender] -= 1
            if len(here) == len(workers):
                del parts[bucket]
                return bucket, [here[worker] for worker in workers]

    def broadcast(self, step: int, bucket: int, payload: Buffer, *, last: bool = False) -> SentUnit:
        """One UPDATE to all workers at once, after a BYE if it is the ``last``."""
        if last:
            self._send(Kind.BYE, step, bucket, b"")
        start_s = self._node.now()
        sent = self._send(Kind.UPDATE, step, bucket, payload)
        return SentUnit(start_s, self._node.now(), sent)

    def farewell(self, step: int) -> None:
        """Receive every worker's BYE: all of them have the last update."""
        self._collect(Kind.BYE, step, 0, self._peers.timeout_s)

    def _send(self, kind: Kind, step: int, bucket: int, body: Buffer) -> int:
        return self._post(self._receivers(), kind, step, bucket, body)

    def _post(
        self, receivers: Sequence[int], kind: Kind, step: int, bucket: int, body: Buffer
    ) -> int:
        message = Message(kind, step, bucket, self._peers.own, body)
        try:
            sent = self._node.endpoint.send(receivers, message)
        except NodeLost as lost:
            raise lost.during(step, "sending") from lost
        self.bytes_sent += sent
        return sent

    def _collect(
        self,
        kind: Kind,
        step: int,
        bucket: int,
        timeout_s: float,
        senders: Sequence[int] | None = None,
    ) -> list[Message]:
        """From each of ``senders`` (None: all workers), by rank; the others wait for this node all
        the while."""
        arrived: dict[int, Message] = {}
        senders = self._peers.workers if senders is None else senders
        missing = dict.fromkeys(senders)
        waiting = dict.fromkeys(peer for peer in self._peers.workers if peer not in missing)
        while missing:
            # who has said goodbye waits for nothing, and may be gone
            message = self._receive(step, missing, () if kind is Kind.BYE else waiting, timeout_s)
            if self._moved(message, step, missing, waiting):
                continue
            self._check(message, kind, step, bucket, missing)
            arrived[message.sender] = message
            waiting[message.sender] = missing.pop(message.sender)
        return [arrived[peer] for peer in senders if peer in arrived]

    def _receivers(self) -> Sequence[int]:
        """Who is answered."""
        return self._peers.workers

    def _moved(
        self,
        message: Message,  # noqa: ARG002
        step: int,  # noqa: ARG002
        missing: dict[int, None],  # noqa: ARG002
        waiting: dict[int, None],  # noqa: ARG002
    ) -> bool:
        """Return whether ``message`` says that somebody leaves or returns; here nobody does."""
        return False

    def _receive(
        self, step: int, missing: Collection[int], waiting: Collection[int], timeout_s: float
    ) -> Message:
        try:
            message = self._node.endpoint.receive(timeout_s, missing, waiting)
        except NodeLost as lost:
            raise lost.during(step, "gathering") from lost
        self.bytes_received += self._node.endpoint.frame_bytes(message)
        return message

    def _check(
        self, message: Message, kind: Kind, step: int, bucket: int, missing: Collection[int]
    ) -> None:
        due = message.kind is kind and message.step == step and message.bucket == bucket
        if due and message.sender in missing:
            return
        name = self._peers.names.get(message.sender, f"peer {message.sender}")
        if message.kind is Kind.BYE and kind is not Kind.BYE:
            raise NodeLost(name, step or None, "it said goodbye before the end")
        raise WireError(
            f"{name} sent {message.kind.name} of step {message.step}, bucket {message.bucket}, "
            f"while {kind.name} of step {step}, bucket {bucket} was due "
            f"from {', '.join(self._peers.names[peer] for peer in missing)}"
        )


PARAMETER_SERVER = ExchangeSpec(PsWorkerExchange, PsServerExchange, buckets=True, partial=True)


class ElasticPsWorker(PsWorkerExchange):
    """A worker's side (``testbed.exchange.base.LeavingSide``)."""

    def leave(self, step: int) -> None:
        """Say that nothing comes of ``step`` and those after it."""
        self._send(self._peers.servers[0], Kind.AWAY, step, 0, b"")

    def come_back(self, step: int) -> Message:
        """See ``LeavingSide``."""
        self._send(self._peers.servers[0], Kind.BACK, step, 0, b"")
        while (message := self._receive(step)).kind is Kind.BYE:
            self._last_step = message.step
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
        self._back: list[int] = []
        self._ended: int | None = None

    def gather(self, step: int, bucket: int) -> list[Message]:
        """The GRADIENT of everyone who is there, by rank."""
        timeout_s = self._peers.timeout_s
        return self._collect(Kind.GRADIENT, step, bucket, timeout_s, self._receivers())

    def welcome_back(self, step: int, *, last: bool) -> None:
        """Send the parameters, which are those of ``step``, to whoever has asked for them."""
        returning, self._back = self._back, []
        if not returning:
            return
        self._away.difference_update(returning)
        if last:
            self._post(returning, Kind.BYE, step, 0, b"")
        self._post(returning, Kind.UPDATE, step, 0, self.state())

    def farewell(self, step: int) -> None:
        """See ``PsServerExchange``; those who are away are told when they return."""
        self._ended = step
        self._collect(Kind.BYE, step, 0, self._peers.timeout_s + self._peers.away_s)

    def _receivers(self) -> list[int]:
        return [peer for peer in self._peers.workers if peer not in self._away]

    def _moved(
        self, message: Message, step: int, missing: dict[int, None], waiting: dict[int, None]
    ) -> bool:
        sender = message.sender
        if message.kind is Kind.AWAY and message.step == step and sender in missing:
            del missing[sender]
            self._away.add(sender)
            return True
        if message.kind is not Kind.BACK or sender not in self._away:
            return False
        self._back.append(sender)
        waiting[sender] = None
        if self._ended is not None:
            self.welcome_back(self._ended, last=True)
        return True
