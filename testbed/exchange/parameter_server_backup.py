"""A parameter server with backup workers (Chen et al. 2016, "Revisiting Distributed Synchronous
SGD", §3.1).

Of N workers the server averages the first N − b gradients of a step, and answers all; later ones of
that step are dropped. A worker that is behind takes in all updates that are there already, and goes
on at the newest step. Frames are those of ``testbed.exchange.parameter_server``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import Field

from testbed.errors import NodeLost, WireError
from testbed.exchange.base import (
    ExchangeSpec,
    Membership,
    SentUnit,
    Ticket,
    TransferTiming,
    Update,
    timing_of,
)
from testbed.exchange.collect import MissingMessages
from testbed.exchange.parameter_server import PsWorkerExchange, WorkerSetServer
from testbed.node import Buffer, Kind, Message, Node, Queue
from testbed.registry import Options, read


class BackupOptions(Options):
    """Options that ``exchange_options`` may set."""

    backups: int = Field(default=1, ge=0, lt=2**15)
    """b: how many workers' gradients a step does not wait for."""


def max_lost_workers(options: Mapping[str, Any], workers: int) -> int:  # noqa: ARG001
    """As many as no step waits for."""
    return read("exchange_options", BackupOptions, options).backups


class BackupPsWorker(PsWorkerExchange):
    """A worker's side. An activity of its own receives: so it is known what is there already."""

    def __init__(self, node: Node, peers: Membership) -> None:
        super().__init__(node, peers)
        self._inbox: Queue[Message | NodeLost] = node.queue()
        self._listens = False

    def submit(self, step: int, bucket: int, payload: Buffer) -> Ticket:
        """Send a gradient. From the first one on, listen."""
        if not self._listens:  # not before: others may still prepare
            self._listens = True
            self._node.spawn(self._listen)
        return self._submit(step, step, bucket, payload)

    def _finish(
        self,
        step: int,
        bucket: int,  # noqa: ARG002
        start_s: float,
        sent_s: float,
        bytes_up: int,
    ) -> tuple[Update, TransferTiming]:
        """The mean gradient of the step, and those of later steps that are there already."""
        messages = self._newest(step)
        bytes_down = sum(map(self.frame_bytes, messages))
        timing = timing_of(start_s, sent_s, messages[:1], bytes_up, bytes_down)
        first, *later = [Update("gradient", message.step, message.body) for message in messages]
        return replace(first, later_updates=later), timing

    def _newest(self, step: int) -> list[Message]:
        """UPDATEs from ``step`` up to the newest that is there. Raises NodeLost, WireError."""
        updates: list[Message] = []
        while (item := self._item(wait=not updates)) is not None:
            if isinstance(item, NodeLost):
                if updates:
                    self._inbox.put(item)
                    break
                raise item.during(step, self.phase)
            if item.kind is Kind.BYE:
                self.last_step = item.step
            elif item.kind is Kind.UPDATE and item.step == step + len(updates):
                updates.append(item)
            else:
                raise WireError(
                    f"{self._peers.names[item.sender]} sent {item.kind.name} of step {item.step} "
                    f"while the update of step {step + len(updates)} was waited for"
                )
        return updates

    def _item(self, *, wait: bool) -> Message | NodeLost | None:
        """Return what came next; None where nothing is there and nothing is waited for."""
        try:
            return self._inbox.get(None if wait else 0.0)
        except TimeoutError:
            return None

    def _listen(self) -> None:
        """Until the last update. What comes is copied by nobody: buffers are new ones."""
        last_step: int | None = None
        while True:
            try:
                message = self._next(0)
            except NodeLost as lost:
                self._inbox.put(lost)
                return
            self._inbox.put(message)
            if message.kind is Kind.BYE:
                last_step = message.step
            elif message.step == last_step:
                return


class BackupPsServer(WorkerSetServer):
    """The server's side."""

    def __init__(self, node: Node, peers: Membership) -> None:
        backups = max_lost_workers(peers.options, len(peers.workers))
        super().__init__(node, peers, backups)
        self._needed = len(peers.workers) - backups
        self._averaged = 0
        """The last step that was."""

    def gather(self, step: int, bucket: int) -> list[Message]:
        """The first N − b workers' GRADIENT of ``step``, by rank. Raises NodeLost, WireError."""
        first = self._collector.collect(
            Kind.GRADIENT, step, bucket, self.alive, self._peers.timeout_s, count=self._needed
        )
        self._averaged = step
        return first

    def broadcast(self, step: int, bucket: int, payload: Buffer, *, last: bool = False) -> SentUnit:  # noqa: ARG002
        """One UPDATE to all who are alive, after a BYE if it is the ``last``. It does not wait
        until it has left."""
        start_s, body = self._node.now(), bytes(payload)
        if last:
            for peer in self.alive:
                self.enqueue(peer, Kind.BYE, step, b"")
        frame_bytes = sum(self.enqueue(peer, Kind.UPDATE, step, body) for peer in self.alive)
        return SentUnit(start_s, self._node.now(), frame_bytes)

    def _divert(self, message: Message, awaited: MissingMessages) -> bool:  # noqa: ARG002
        """Drop what comes after its step was averaged."""
        late = message.kind is Kind.GRADIENT and 0 < message.step <= self._averaged
        if late:
            self.dropped.append(message)
        return late


BACKUP = ExchangeSpec(
    BackupPsWorker,
    BackupPsServer,
    options=BackupOptions,
    lockstep=False,
    agrees=False,
    most_servers=1,
    max_lost_workers=max_lost_workers,
)
