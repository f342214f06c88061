"""Parts that all exchanges share: what a worker submits and gets back, both sides' common base, who
the peers are, and what an exchange consists of (``ExchangeSpec``).

A new exchange needs a ``WorkerSide`` and, unless workers are each other's peers, a ``ServerSide``.
Some fields of ``ExchangeSpec`` ask more of them:

    field               worker's side                 server's side
    (every exchange)    WorkerSide                    ServerSide, or none
    buckets             PsWorkerExchange: arrived     PsServerExchange: gather_any
    partial             PsWorkerExchange: expect      gathers from Membership.of_step, answers all
    elastic             ElasticPsWorker               ElasticPsServer
    max_lost_workers    WorkerSide                    WorkerSetServer: alive, lost, dropped
    unit "blocks"       CodedExchange                 none
    unit "vector"       updates are float32 vectors   none

The named classes are in ``parameter_server`` and ``coded.exchange``. To register one:
``exchanges.add(name, spec)``, or an entry point of the group ``narrows.exchanges``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from testbed.errors import NodeLost
from testbed.node import Buffer, Kind, Message, Node
from testbed.registry import Options, Registry, read


@dataclass(frozen=True, slots=True)
class Update:
    """Result that a ticket brings: a mean gradient (or parameters) of a version, as a payload.

    ``gradients``: nobody has averaged yet. ``parts`` are all workers' messages by rank, one's own
    among them.
    """

    kind: Literal["gradient", "parameters", "gradients"]
    version: int
    payload: Buffer = b""
    parts: Sequence[Message] = ()
    later_updates: Sequence[Update] = ()
    """Updates of the steps that follow, as far as they have come already: whoever is behind takes
    them in as well."""


@dataclass(frozen=True, slots=True)
class TransferTiming:
    """How a bucket travelled, in seconds of ``Node.now()`` and frame bytes."""

    start_s: float
    """Start of sending."""
    sent_s: float
    """The last byte was handed to the network stack."""
    first_s: float
    """The reply's header had come."""
    arrived_s: float
    """The reply's last byte had come to the host's network stack."""
    last_s: float
    """The reply's last byte had been read."""
    bytes_up: int
    bytes_down: int

    def after(self, time_s: float) -> TransferTiming:
        """Return the part of it after ``time_s``, with all of the bytes."""
        return replace(
            self,
            start_s=max(self.start_s, time_s),
            sent_s=max(self.sent_s, time_s),
            first_s=max(self.first_s, time_s),
            arrived_s=max(self.arrived_s, time_s),
            last_s=max(self.last_s, time_s),
        )


def merge_timings(timings: Sequence[TransferTiming]) -> TransferTiming:
    """Return the timing of buckets sent one after the other: from the first one's start to the last
    one's end."""
    if len(timings) == 1:
        return timings[0]
    first_s = min(timing.first_s for timing in timings)
    return TransferTiming(
        start_s=min(timing.start_s for timing in timings),
        sent_s=min(first_s, max(timing.sent_s for timing in timings)),
        first_s=first_s,
        arrived_s=max(timing.arrived_s for timing in timings),
        last_s=max(timing.last_s for timing in timings),
        bytes_up=sum(timing.bytes_up for timing in timings),
        bytes_down=sum(timing.bytes_down for timing in timings),
    )


def timing_of(
    start_s: float, sent_s: float, messages: Collection[Message], bytes_up: int, bytes_down: int
) -> TransferTiming:
    """Return the timing of a step in which ``messages`` were received. What came during sending was
    not waited for."""
    return TransferTiming(
        start_s=start_s,
        sent_s=sent_s,
        first_s=max(sent_s, min((message.first_s for message in messages), default=sent_s)),
        arrived_s=max([sent_s, *(message.arrived_s for message in messages)]),
        last_s=max([sent_s, *(message.last_s for message in messages)]),
        bytes_up=bytes_up,
        bytes_down=bytes_down,
    )


class Ticket:
    """A submitted bucket. ``finish`` blocks until its update is there; returns it and how it
    went."""

    def __init__(self, finish: Callable[[], tuple[Update, TransferTiming]]) -> None:
        self._finish = finish
        self._travel: TransferTiming | None = None

    def wait(self) -> Update:
        """Block until the update is there. Raises NodeLost, WireError."""
        update, self._travel = self._finish()
        return update

    @property
    def travel(self) -> TransferTiming:
        """How it went. Raises RuntimeError before ``wait``."""
        if self._travel is None:
            raise RuntimeError("travel is known after wait()")
        return self._travel


Unit = Literal["payload", "vector", "blocks"]

PREPARATION_S = 120.0
"""How much longer a greeting is waited for: nodes load data and build models at their own speed."""


@dataclass(frozen=True, slots=True)
class Membership:
    """Who takes part, by number in frames, and how long a silent one is waited for."""

    own: int
    servers: Sequence[int]
    """Buckets go round: the first to the first of them, and so on."""
    workers: Sequence[int]
    """Peer numbers, by rank."""
    names: Mapping[int, str]
    timeout_s: float
    """Longest time a worker may need from one message to the next: computing, sending, outages."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The algorithm's ``exchange_options``."""
    last_step: int | None = None
    """The step the run ends with, where no server says so."""
    drawn: Callable[[int], Sequence[int]] | None = None
    """Function from a step to the workers that take part in it, by rank; None: all do."""
    away_s: float = 0.0
    """The longest that one of them is away."""

    def of_step(self, step: int) -> Sequence[int]:
        """The workers that send a gradient in ``step``."""
        return self.workers if self.drawn is None else self.drawn(step)

    @property
    def others(self) -> list[int]:
        """All workers but oneself, by rank."""
        return [peer for peer in self.workers if peer != self.own]

    def server_of(self, bucket: int) -> int:
        """Who answers for ``bucket``."""
        return self.servers[bucket % len(self.servers)]


_PHASES = {Kind.HELLO: "greeting", Kind.BYE: "goodbye"}


class ExchangeSide:
    """A node's side of an exchange. ``bytes_sent``, ``bytes_received``: frame bytes so far, of all
    kinds of frames; a multicast counts once, however many members its group has."""

    phase = "receiving"
    """Activity during which a node is lost that is waited for."""

    def __init__(self, node: Node, peers: Membership) -> None:
        self._node, self._peers = node, peers
        self.bytes_sent = self.bytes_received = 0

    def frame_bytes(self, message: Message) -> int:
        """Bytes of ``message`` on the wire, as a frame."""
        return self._node.endpoint.frame_bytes(message)

    def _send(
        self,
        destinations: Collection[int],
        kind: Kind,
        step: int,
        bucket: int = 0,
        body: Buffer = b"",
        group: int | None = None,
    ) -> int:
        """Send a copy to each of ``destinations``, or one to all of ``group``. Returns frame bytes
        when the last is handed over. Raises NodeLost with the step."""
        message = Message(kind, step, bucket, self._peers.own, body)
        endpoint = self._node.endpoint
        try:
            if group is None:
                sent = endpoint.send(destinations, message)
            else:
                sent = endpoint.multicast(group, message)
        except NodeLost as lost:
            raise lost.during(step, "sending") from lost
        self.bytes_sent += sent
        return sent

    def _receive(
        self,
        kind: Kind,
        step: int,
        timeout_s: float,
        awaited: Collection[int],
        waiting: Collection[int] = (),
    ) -> Message:
        """The next message, of any kind, while ``kind`` of ``step`` is waited for. Raises NodeLost
        with step and phase."""
        try:
            message = self._node.endpoint.receive(timeout_s, awaited, waiting)
        except NodeLost as lost:
            raise lost.during(step, _PHASES.get(kind, self.phase)) from lost
        self.bytes_received += self.frame_bytes(message)
        return message


class WorkerSide(ExchangeSide, ABC):
    """An exchange as a worker uses it: ``connect``, then ``submit`` for every bucket and step,
    ``close``. The unit is a bucket: one or more layers."""

    def __init__(self, node: Node, peers: Membership) -> None:
        super().__init__(node, peers)
        self.last_step = peers.last_step
        """The step the run ends with, as soon as it is known: at the latest with that step's
        update."""

    @abstractmethod
    def connect(self) -> None:
        """Make oneself known, so that connections exist before the clock starts."""

    @abstractmethod
    def submit(self, step: int, bucket: int, payload: Buffer) -> Ticket:
        """Send a bucket's payload on its way; returns when its last byte is handed over."""

    @abstractmethod
    def close(self) -> None:
        """Say goodbye to the peers."""


@dataclass(frozen=True, slots=True)
class SentUnit:
    """A message to all workers, in seconds of ``Node.now()`` and frame bytes summed over them."""

    start_s: float
    end_s: float
    frame_bytes: int


class ServerSide(ExchangeSide, ABC):
    """An exchange as the server uses it: ``await_workers``; ``gather``, ``broadcast`` per step;
    ``await_goodbyes``."""

    phase = "gathering"

    @abstractmethod
    def await_workers(self) -> None:
        """Wait until every worker has made itself known. Raises NodeLost naming who did not."""

    @abstractmethod
    def gather(self, step: int, bucket: int) -> list[Message]:
        """Every worker's message for ``bucket`` of ``step``, by rank.

        Raises NodeLost naming the missing workers, WireError for a message that has no place here.
        """

    @abstractmethod
    def broadcast(self, step: int, bucket: int, payload: Buffer, *, last: bool = False) -> SentUnit:
        """One message to all workers. ``last``: they stop after this step."""

    @abstractmethod
    def await_goodbyes(self, step: int) -> None:
        """Wait until every worker has the update of ``step``, the last, and has said goodbye."""


@dataclass(frozen=True, slots=True)
class ExchangeSpec:
    """Both sides of one way to exchange gradients."""

    # how it is made
    worker: Callable[[Node, Membership], WorkerSide]
    server: Callable[[Node, Membership], ServerSide] | None = None
    """None: workers are each other's peers; a scenario's servers stand aside."""
    elastic: (
        tuple[Callable[[Node, Membership], WorkerSide], Callable[[Node, Membership], ServerSide]]
        | None
    ) = None
    """Both sides where workers leave and return, an ``ElasticPsWorker`` and an ``ElasticPsServer``;
    None: nobody can."""
    options: type[Options] = Options
    """Options that ``exchange_options`` may set."""

    # what it carries
    unit: Unit = "payload"
    """Form of what ``submit`` is given and an update holds: a ``payload`` as the compressor writes
    it; the whole gradient and its mean as a float32 ``vector``; int32 ``blocks`` (blocks, size),
    and their mean as a float32 vector."""
    multicasts: bool = False
    """True if its messages go to several peers as one copy."""
    buckets: bool = False
    """True if what it carries may come in several buckets a step, in any order: its sides are a
    ``PsWorkerExchange`` and a ``PsServerExchange``."""
    overlaps: bool = False
    """True if parts of a vector are submitted while the backward pass goes on: buckets count from
    its end."""
    down: tuple[str, ...] | None = None
    """Codings that can write what comes back; None: all."""

    # where it may be used, and how it goes on
    suits: Callable[[Mapping[str, Any], int, int], None] = lambda _options, _workers, _batch: None
    """Raises InputError where so many workers, with batches of so many samples, cannot exchange
    like this."""
    work: Callable[[Mapping[str, Any], int], float] = lambda _options, _workers: 1.0
    """Samples that one of so many workers computes at most, in its batches."""
    partial: bool = False
    """True if only some workers may take part in a step: its side is a ``PsWorkerExchange``, its
    server gathers from ``Membership.of_step`` and answers all."""
    lockstep: bool = True
    """Nobody is more than a step ahead of anybody, and all of a step's gradients are in its
    mean."""
    asynchronous: bool = False
    """Updates are parameters; workers' replicas differ, and the server's is the model."""
    agrees: bool = True
    """True if what controllers agree upon can go with gradients."""
    most_servers: int | None = None
    """None: any number may share the model."""
    max_lost_workers: Callable[[Mapping[str, Any], int], int] = lambda _options, _workers: 0
    """How many workers may be lost without an end to the run, by ``exchange_options`` and their
    number."""

    def check(self, options: Mapping[str, Any]) -> None:
        """Raise InputError for options that it does not have."""
        read("exchange_options", self.options, options)


exchanges: Registry[ExchangeSpec] = Registry("exchange", "narrows.exchanges")
