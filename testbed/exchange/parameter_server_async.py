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
from testbed.exchange.base import ExchangeSpec, Membership, SentUnit
from testbed.exchange.collect import WorkerSet, WorkerSetServer
from testbed.exchange.parameter_server import PsTicket, PsWorkerExchange
from testbed.node import Buffer, Kind, Message, Node
from testbed.registry import Options, read


class AsyncOptions(Options):
    """Options that ``exchange_options`` may set."""

    bound: int | None = Field(default=None, ge=0, lt=2**31)
    """How many steps a worker may be ahead of the slowest."""


def options_of(given: Mapping[str, Any]) -> AsyncOptions:
    """Read them. Raises InputError."""
    return read("exchange_options", AsyncOptions, given)


class AsyncWorker(PsWorkerExchange):
    """A worker's side."""

    brings = "parameters"

    def __init__(self, node: Node, peers: Membership) -> None:
        super().__init__(node, peers)
        self._version = 0
        bound = options_of(peers.options).bound
        self._patience += bound or 0  # one that is held waits for so many steps of another

    def submit(self, step: int, bucket: int, payload: Buffer) -> PsTicket:
        """Send the gradient, computed on the parameters that came last."""
        start_s = self._node.now()
        server = self._peers.server_of(bucket)
        frame_bytes = self._send(server, Kind.GRADIENT, self._version, bucket, payload)
        return PsTicket(self, step, bucket, start_s, self._node.now(), frame_bytes)

    def update(self, step: int, bucket: int) -> Message:  # noqa: ARG002
        """The parameters to go on with. A BYE before them: ``step`` was this worker's last."""
        while (message := self._receive(step)).kind is Kind.BYE:
            self._last_step = step
        if message.kind is not Kind.UPDATE or message.step < self._version:
            raise WireError(
                f"{self._peers.names[message.sender]} sent {message.kind.name} of version "
                f"{message.step} to a worker that has version {self._version}"
            )
        self._version = message.step
        return message


class AsyncPsServer(WorkerSetServer):
    """The server's side (``testbed.exchange.base.ServerSide``). Its steps are versions: gradients
    applied."""

    def __init__(self, node: Node, peers: Membership) -> None:
        self._node = node
        super().__init__(WorkerSet(node, peers, spares(peers.options, len(peers.workers))))
        self._bound = options_of(peers.options).bound
        self._made = dict.fromkeys(peers.workers, 0)
        self._given = dict.fromkeys(peers.workers, 0)
        """The version that each has been given last."""
        self._owed: dict[int, None] = {}
        """Who has sent a gradient and not been answered, in that order."""
        self._version, self._payload, self._last = 0, b"", False
        self.bytes_down = 0
        self.dropped: list[Message] = []
        """Gradients that came after the last."""

    def made(self, peer: int) -> int:
        """How many gradients of ``peer`` were taken."""
        return self._made[peer]

    def gather(self, step: int, bucket: int) -> list[Message]:
        """The next gradient, whosever it is. Raises NodeLost when too many are lost, WireError."""
        while True:
            message = self.crowd.receive(step, self._busy(), list(self._owed))
            if message is None:
                self._answer()  # the slowest may be gone
                continue
            self._check(message, bucket)
            self._made[message.sender] += 1
            self._owed[message.sender] = None
            return [message]

    def broadcast(self, step: int, bucket: int, payload: Buffer, *, last: bool = False) -> SentUnit:  # noqa: ARG002
        """Parameters of version ``step`` to whoever may go on."""
        start_s = self._node.now()
        self._version, self._payload, self._last = step, bytes(payload), last
        return SentUnit(start_s, self._node.now(), self._answer())

    def farewell(self, step: int) -> None:
        """Answer those that were computing, and wait until all have said goodbye."""
        waiting = set(self.crowd.here)
        while waiting := waiting.intersection(self.crowd.here):
            message = self.crowd.receive(step, sorted(waiting))
            if message is None:
                continue
            if message.kind is Kind.BYE:
                waiting.discard(message.sender)
                continue
            self._check(message, 0)
            self.dropped.append(message)
            self._owed[message.sender] = None
            self._answer()
        self.crowd.leave()

    def _busy(self) -> list[int]:
        """Who is to send next."""
        return [peer for peer in self.crowd.here if peer not in self._owed]

    def _answer(self) -> int:
        """Parameters to all who are owed them and not too far ahead; frame bytes of the UPDATEs."""
        here, frame_bytes = self.crowd.here, 0
        slowest = min((self._made[peer] for peer in here), default=0)
        for peer in list(self._owed):
            ahead = self._made[peer] - slowest
            if not self._last and self._bound is not None and ahead > self._bound:
                continue
            del self._owed[peer]
            if peer in here:
                frame_bytes += self._give(peer)
        self.bytes_down += frame_bytes
        return frame_bytes

    def _give(self, peer: int) -> int:
        if self._last:
            self.crowd.post(peer, Kind.BYE, self._version, b"")
        self._given[peer] = self._version
        return self.crowd.post(peer, Kind.UPDATE, self._version, self._payload)

    def _check(self, message: Message, bucket: int) -> None:
        name = self.crowd.name(message.sender)
        given = self._given[message.sender]
        due = message.kind is Kind.GRADIENT and message.bucket == bucket
        if not due or message.sender in self._owed or message.step != given:
            raise WireError(
                f"{name} sent {message.kind.name} of version {message.step}, bucket "
                f"{message.bucket}, while GRADIENT of version {given}, bucket {bucket} was due "
                "from it"
            )


def spares(options: Mapping[str, Any], workers: int) -> int:  # noqa: ARG001
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
    spares=spares,
)
