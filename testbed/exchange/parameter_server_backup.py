"""A parameter server with backup workers (Chen et al. 2016, "Revisiting Distributed Synchronous
SGD", §3.1).

Of N workers the server averages the first N − b gradients of a step, and answers all; later ones of
that step are dropped. A worker that is behind takes in all updates that are there already, and goes
on at the newest step. Frames are those of ``testbed.exchange.parameter_server``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from testbed.errors import NodeLost, WireError
from testbed.exchange.all_gather import timing_of
from testbed.exchange.base import ExchangeSpec, Membership, SentUnit, Ticket, TransferTiming, Update
from testbed.exchange.collect import WorkerSet, WorkerSetServer
from testbed.exchange.parameter_server import PsWorkerExchange
from testbed.node import Buffer, Kind, Message, Node, Queue
from testbed.registry import Options, read


class BackupOptions(Options):
    """Options that ``exchange_options`` may set."""

    backups: int = Field(default=1, ge=0, lt=2**15)
    """b: how many workers' gradients a step does not wait for."""


def spares(options: Mapping[str, Any], workers: int) -> int:  # noqa: ARG001
    """As many as no step waits for."""
    return read("exchange_options", BackupOptions, options).backups


class BackupPsWorker(PsWorkerExchange):
    """A worker's side. An activity of its own receives: so it is known what is there already."""

    def __init__(self, node: Node, peers: Membership) -> None:
        super().__init__(node, peers)
        self._came: Queue[Message | NodeLost] = node.queue()
        self._listens = False

    def submit(self, step: int, bucket: int, payload: Buffer) -> Ticket:
        """Send a gradient; returns when its last byte is handed over. From the first one on,
        listen."""
        if not self._listens:  # not before: others may still prepare
            self._listens = True
            self._node.spawn(self._listen)
        start_s = self._node.now()
        server = self._peers.server_of(bucket)
        frame_bytes = self._send(server, Kind.GRADIENT, step, bucket, payload)
        return BackupTicket(self, step, start_s, self._node.now(), frame_bytes)

    def updates(self, step: int) -> list[Message]:
        """UPDATEs from ``step`` up to the newest that is there. Raises NodeLost, WireError."""
        found: list[Message] = []
        while (item := self._item(wait=not found)) is not None:
            if isinstance(item, NodeLost):
                if found:
                    self._came.put(item)
                    break
                raise item.during(step, "receiving")
            if item.kind is Kind.BYE:
                self._last_step = item.step
            elif item.kind is Kind.UPDATE and item.step == step + len(found):
                found.append(item)
            else:
                raise WireError(
                    f"{self._peers.names[item.sender]} sent {item.kind.name} of step {item.step} "
                    f"while the update of step {step + len(found)} was waited for"
                )
        return found

    def _item(self, *, wait: bool) -> Message | NodeLost | None:
        """Return what came next; None where nothing is there and nothing is waited for."""
        try:
            return self._came.get(None if wait else 0.0)
        except TimeoutError:
            return None

    def _listen(self) -> None:
        """Until the last update. What comes is copied by nobody: buffers are new ones."""
        last_step: int | None = None
        while True:
            try:
                message = self._receive(0)
            except NodeLost as lost:
                self._came.put(lost)
                return
            self._came.put(message)
            if message.kind is Kind.BYE:
                last_step = message.step
            elif message.step == last_step:
                return


class BackupTicket:
    """A submitted gradient (``testbed.exchange.base.Ticket``)."""

    def __init__(
        self, exchange: BackupPsWorker, step: int, start_s: float, sent_s: float, bytes_up: int
    ) -> None:
        self._exchange, self._step = exchange, step
        self._start_s, self._sent_s, self._bytes_up = start_s, sent_s, bytes_up
        self._travel: TransferTiming | None = None

    def wait(self) -> Update:
        """The mean gradient of the step, and those of later steps that are there already."""
        came = self._exchange.updates(self._step)
        bytes_down = sum(self._exchange.frame_bytes(message) for message in came)
        self._travel = timing_of(self._start_s, self._sent_s, came[:1], self._bytes_up, bytes_down)
        first, *more = [Update("gradient", message.step, message.body) for message in came]
        return Update(first.kind, first.version, first.payload, more=more)

    @property
    def travel(self) -> TransferTiming:
        """How it went. Raises RuntimeError before ``wait``."""
        if self._travel is None:
            raise RuntimeError("travel is known after wait()")
        return self._travel


class BackupPsServer(WorkerSetServer):
    """The server's side (``testbed.exchange.base.ServerSide``)."""

    def __init__(self, node: Node, peers: Membership) -> None:
        self._node = node
        backups = spares(peers.options, len(peers.workers))
        super().__init__(WorkerSet(node, peers, backups))
        self._needed = len(peers.workers) - backups
        self.dropped: list[Message] = []
        """Gradients that came after their step was averaged."""

    def gather(self, step: int, bucket: int) -> list[Message]:  # noqa: ARG002
        """The first N − b workers' GRADIENT of ``step``, by rank. Raises NodeLost, WireError."""
        first: dict[int, Message] = {}
        while len(first) < self._needed:
            awaited = [peer for peer in self.crowd.here if peer not in first]
            message = self.crowd.receive(step, awaited, list(first))
            if message is None:
                continue
            if self._late(message, step):
                self.dropped.append(message)
            elif message.step == step and message.sender not in first:
                first[message.sender] = message
            else:
                raise self._misplaced(message, step)
        return [first[peer] for peer in sorted(first)]

    def broadcast(self, step: int, bucket: int, payload: Buffer, *, last: bool = False) -> SentUnit:  # noqa: ARG002
        """One UPDATE to all who are there, after a BYE if it is the ``last``. It does not wait
        until it has left."""
        start_s, body = self._node.now(), bytes(payload)
        if last:
            for peer in self.crowd.here:
                self.crowd.post(peer, Kind.BYE, step, b"")
        sent = sum(self.crowd.post(peer, Kind.UPDATE, step, body) for peer in self.crowd.here)
        return SentUnit(start_s, self._node.now(), sent)

    def farewell(self, step: int) -> None:
        """Wait until all who are there have said goodbye."""
        waiting = set(self.crowd.here)
        while waiting := waiting.intersection(self.crowd.here):
            message = self.crowd.receive(step, sorted(waiting))
            if message is None:
                continue
            if message.kind is Kind.BYE:
                waiting.discard(message.sender)
            elif self._late(message, step + 1):
                self.dropped.append(message)
            else:
                raise self._misplaced(message, step)
        self.crowd.leave()

    def _late(self, message: Message, step: int) -> bool:
        return message.kind is Kind.GRADIENT and 0 < message.step < step

    def _misplaced(self, message: Message, step: int) -> NodeLost | WireError:
        name = self.crowd.name(message.sender)
        if message.kind is Kind.BYE:
            return NodeLost(name, step, "it said goodbye before the end")
        return WireError(
            f"{name} sent {message.kind.name} of step {message.step} while GRADIENT of step {step} "
            "was due"
        )


BACKUP = ExchangeSpec(
    BackupPsWorker,
    BackupPsServer,
    options=BackupOptions,
    lockstep=False,
    agrees=False,
    most_servers=1,
    spares=spares,
)
