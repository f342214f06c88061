"""The asynchronous parameter server: each gradient is applied when it comes, and its sender alone
is answered.

Frames of a run: each worker's HELLO; then GRADIENTs, each answered by an UPDATE that holds
parameters; BYE. An UPDATE's step is its version, the number of gradients that its parameters are
made of; a GRADIENT's step is the version that it was computed on, so that gradients applied in
between, its staleness, can be counted. After the last gradient every worker's next message is
answered by a BYE and the final parameters; it says BYE then.

With a bound (stale synchronous parallel: Ho et al. 2013) a worker that is more than so many of its
own steps ahead of the slowest is answered when that one has caught up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from testbed.errors import WireError
from testbed.exchange.base import ExchangeSpec, Membership, SentUnit, Ticket
from testbed.exchange.collect import MissingMessages
from testbed.exchange.parameter_server import PsWorkerExchange, WorkerSetServer
from testbed.node import Buffer, Kind, Message, Node
from testbed.registry import Options, read


class AsyncOptions(Options):
    """Options that ``exchange_options`` may set."""

    bound: int | None = Field(default=None, ge=0, lt=2**31)
    """How many steps a worker may be ahead of the slowest."""


class AsyncWorker(PsWorkerExchange):
    """A worker's side."""

    content = "parameters"

    def __init__(self, node: Node, peers: Membership) -> None:
        super().__init__(node, peers)
        self._version = 0
        if read("exchange_options", AsyncOptions, peers.options).bound is not None:
            self._patience += 1  # one that is held waits for a step of the slowest

    def submit(self, step: int, bucket: int, payload: Buffer) -> Ticket:
        """Send the gradient, computed on the parameters that came last."""
        return self._submit(step, self._version, bucket, payload)

    def close(self) -> None:
        """Say goodbye, with the version that came last."""
        self._send(self._peers.servers[:1], Kind.BYE, self._version)

    def _update(self, step: int, bucket: int) -> Message:  # noqa: ARG002
        """The parameters to go on with. A BYE before them: ``step`` was this worker's last."""
        while (message := self._next(step)).kind is Kind.BYE:
            self.last_step = step
        if message.kind is not Kind.UPDATE or message.step < self._version:
            raise WireError(
                f"{self._peers.names[message.sender]} sent {message.kind.name} of version "
                f"{message.step} to a worker that has version {self._version}"
            )
        self._version = message.step
        return message


class AsyncPsServer(WorkerSetServer):
    """The server's side. Its steps are versions: gradients applied. ``gradients``: how many of each
    worker were taken."""

    def __init__(self, node: Node, peers: Membership) -> None:
        super().__init__(node, peers, max_lost_workers(peers.options, len(peers.workers)))
        self._bound = read("exchange_options", AsyncOptions, peers.options).bound
        self.gradients = dict.fromkeys(peers.workers, 0)
        self._given = dict.fromkeys(peers.workers, 0)
        """The version that each has been given last."""
        self._owed: dict[int, None] = {}
        """Who has sent a gradient and not been answered, in that order."""
        self._version, self._payload, self._last = 0, b"", False
        self.bytes_down = 0

    def gather(self, step: int, bucket: int) -> list[Message]:
        """The next gradient, whosever it is. Raises NodeLost when too many are lost, WireError."""
        while True:
            busy = [peer for peer in self.alive if peer not in self._owed]
            message = self.receive(
                Kind.GRADIENT, step, self._peers.timeout_s, busy, list(self._owed)
            )
            if message is not None:
                self._check(message, bucket)
                self.gradients[message.sender] += 1
                self._owed[message.sender] = None
                return [message]
            self._answer()  # the slowest may be gone

    def broadcast(self, step: int, bucket: int, payload: Buffer, *, last: bool = False) -> SentUnit:  # noqa: ARG002
        """Parameters of version ``step`` to whoever may go on."""
        start_s = self._node.now()
        self._version, self._payload, self._last = step, bytes(payload), last
        return SentUnit(start_s, self._node.now(), self._answer())

    def _divert(self, message: Message, awaited: MissingMessages) -> bool:  # noqa: ARG002
        """Drop and answer what was computed while the last gradient came."""
        if not self._last or message.kind is Kind.BYE:
            return False
        self._check(message, 0)
        self.dropped.append(message)
        self._owed[message.sender] = None
        self._answer()
        return True

    def _answer(self) -> int:
        """Parameters to all who are owed them and not too far ahead; frame bytes of the UPDATEs."""
        frame_bytes = 0
        slowest = min((self.gradients[peer] for peer in self.alive), default=0)
        for peer in list(self._owed):
            ahead = self.gradients[peer] - slowest
            if not self._last and self._bound is not None and ahead > self._bound:
                continue
            del self._owed[peer]
            if peer in self.alive:
                frame_bytes += self._give(peer)
        self.bytes_down += frame_bytes
        return frame_bytes

    def _give(self, peer: int) -> int:
        if self._last:
            self.enqueue(peer, Kind.BYE, self._version, b"")
        self._given[peer] = self._version
        return self.enqueue(peer, Kind.UPDATE, self._version, self._payload)

    def _check(self, message: Message, bucket: int) -> None:
        name = self._peers.names[message.sender]
        given = self._given[message.sender]
        due = message.kind is Kind.GRADIENT and message.bucket == bucket
        if not due or message.sender in self._owed or message.step != given:
            raise WireError(
                f"{name} sent {message.kind.name} of version {message.step}, bucket "
                f"{message.bucket}, while GRADIENT of version {given}, bucket {bucket} was due "
                "from it"
            )


def max_lost_workers(options: Mapping[str, Any], workers: int) -> int:  # noqa: ARG001
    """A run goes on until one is left."""
    return workers - 1


ASYNCHRONOUS = ExchangeSpec(
    AsyncWorker,
    AsyncPsServer,
    options=AsyncOptions,
    lockstep=False,
    asynchronous=True,
    agrees=False,
    most_servers=1,
    down=("fp32", "fp16", "bf16"),
    max_lost_workers=max_lost_workers,
)
