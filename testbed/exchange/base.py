"""Protocols of exchanges: what a worker submits and gets back, a server's side, who the peers are,
and what an exchange consists of (``ExchangeSpec``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from testbed.node import Buffer, Message, Node
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
    more: Sequence[Update] = ()
    """Updates of the steps that follow, as far as they are there already: whoever is behind takes
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


def merge_timings(travels: Sequence[TransferTiming]) -> TransferTiming:
    """Return the timing of buckets sent one after the other: from the first one's start to the last
    one's end."""
    if len(travels) == 1:
        return travels[0]
    first_s = min(travel.first_s for travel in travels)
    return TransferTiming(
        start_s=min(travel.start_s for travel in travels),
        sent_s=min(first_s, max(travel.sent_s for travel in travels)),
        first_s=first_s,
        arrived_s=max(travel.arrived_s for travel in travels),
        last_s=max(travel.last_s for travel in travels),
        bytes_up=sum(travel.bytes_up for travel in travels),
        bytes_down=sum(travel.bytes_down for travel in travels),
    )


class Ticket(Protocol):
    """A submitted bucket."""

    def wait(self) -> Update:
        """Block until the update is there."""
        ...

    @property
    def travel(self) -> TransferTiming:
        """How it went; complete after ``wait``."""
        ...


class Exchange(Protocol):
    """A worker's side of an exchange. The unit is a bucket: one or more layers."""

    def submit(self, step: int, bucket: int, payload: Buffer) -> Ticket:
        """Send a bucket's payload on its way."""
        ...

    def close(self) -> None:
        """Say goodbye to the peers."""
        ...


Carries = Literal["payload", "vector", "blocks"]

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


class WorkerSide(Exchange, Protocol):
    """An exchange as a worker uses it: ``greet``, then ``submit`` for every bucket and step,
    ``close``."""

    @property
    def bytes_sent(self) -> int:
        """Frame bytes so far, of every kind of frame."""
        ...

    @property
    def bytes_received(self) -> int:
        """The same of what came."""
        ...

    @property
    def last_step(self) -> int | None:
        """The step the run ends with, as soon as it is known: at the latest with that step's
        update."""
        ...

    def greet(self) -> None:
        """Make oneself known, so that connections exist before the clock starts."""
        ...


@dataclass(frozen=True, slots=True)
class SentUnit:
    """A message to all workers, in seconds of ``Node.now()`` and frame bytes summed over them."""

    start_s: float
    end_s: float
    frame_bytes: int


class BlocksSide(WorkerSide, Protocol):
    """A worker's side of an exchange that carries blocks."""

    def samples(self, count: int) -> list[slice]:
        """Where this worker's blocks of the coming step are in the mini-batch of all workers,
        ``count`` samples."""
        ...

    @property
    def over(self) -> float:
        """Return the divisor of the sum of a block's gradients before it is written: the same for
        all blocks."""
        ...

    def report(self, saturated: int) -> None:
        """How many elements of the blocks that are submitted next did not fit."""
        ...


class ServerSide(Protocol):
    """An exchange as the server uses it: ``welcome``; ``gather``, ``broadcast`` per step;
    ``farewell``."""

    @property
    def bytes_sent(self) -> int:
        """Frame bytes so far, of every kind of frame."""
        ...

    @property
    def bytes_received(self) -> int:
        """The same of what came."""
        ...

    def welcome(self) -> None:
        """Wait until every worker has made itself known. Raises NodeLost naming who did not."""
        ...

    def gather(self, step: int, bucket: int) -> list[Message]:
        """Every worker's message for ``bucket`` of ``step``, by rank.

        Raises NodeLost naming the missing workers, WireError for a message that has no place here.
        """
        ...

    def broadcast(self, step: int, bucket: int, payload: Buffer, *, last: bool = False) -> SentUnit:
        """One message to all workers. ``last``: they stop after this step."""
        ...

    def farewell(self, step: int) -> None:
        """Wait until every worker has the update of ``step``, the last, and has said goodbye."""
        ...


class LeavingServer(ServerSide, Protocol):
    """A server's side where workers leave and return. ``state``: gives what those who do are
    sent."""

    state: Callable[[], Buffer]

    def welcome_back(self, step: int, *, last: bool) -> None:
        """Send the state, which is that of ``step``, to whoever has asked for it. ``last``: they
        stop after it."""
        ...


class BucketsSide(WorkerSide, Protocol):
    """A worker's side of an exchange of several buckets a step."""

    def arrived(self, step: int, under_way: Collection[int]) -> int:
        """One of the buckets ``under_way`` whose ticket's ``wait`` would return at once; blocks
        until there is one.

        Others may be added to ``under_way`` meanwhile. Raises NodeLost, WireError.
        """
        ...


class BucketsServer(ServerSide, Protocol):
    """A server's side of it."""

    def gather_any(self, step: int, buckets: Collection[int]) -> tuple[int, list[Message]]:
        """The first of ``buckets`` of which every worker's message is there, and these, by rank.
        Raises as ``gather``."""
        ...


class PartialSide(WorkerSide, Protocol):
    """A worker's side of an exchange in which it may rest in a step."""

    def expect(self, step: int, bucket: int) -> Ticket:
        """Send nothing of ``bucket``, and wait for its update all the same."""
        ...


class LeavingSide(WorkerSide, Protocol):
    """A worker's side of an exchange that goes on without it for a while."""

    def leave(self, step: int) -> None:
        """Say that nothing comes of ``step`` and those after it."""
        ...

    def come_back(self, step: int) -> Message:
        """Ask for the parameters; blocks until they are there, of ``step`` or a later one, which
        the message says.

        The server gives their state as its body. Raises NodeLost, WireError.
        """
        ...


def no_spares(options: Mapping[str, Any], workers: int) -> int:  # noqa: ARG001
    """Nobody may be lost."""
    return 0


@dataclass(frozen=True, slots=True)
class ExchangeSpec:
    """Both sides of one way to exchange gradients."""

    worker: Callable[[Node, Membership], WorkerSide]
    server: Callable[[Node, Membership], ServerSide] | None = None
    """None: workers are each other's peers; a scenario's servers stand aside."""
    carries: Carries = "payload"
    """Form of what ``submit`` is given and an update holds: a ``payload`` as the compressor writes
    it; the whole gradient and its mean as a float32 ``vector``; int32 ``blocks`` (blocks, size),
    and their mean as a float32 vector."""
    multicasts: bool = False
    """True if its messages go to several peers as one copy."""
    buckets: bool = False
    """True if what it carries may come in several buckets a step, in any order: its sides are
    ``BucketsSide`` and ``BucketsServer``."""
    overlaps: bool = False
    """True if parts of a vector are submitted while the backward pass goes on: buckets count from
    its end."""
    options: type[Options] = Options
    """Options that ``exchange_options`` may set."""
    suits: Callable[[Mapping[str, Any], int, int], None] = lambda _options, _workers, _batch: None
    """Raises InputError where so many workers, with batches of so many samples, cannot exchange
    like this."""
    work: Callable[[Mapping[str, Any], int], float] = lambda _options, _workers: 1.0
    """Samples that one of so many workers computes at most, in its batches."""
    lockstep: bool = True
    """Nobody is more than a step ahead of anybody, and all of a step's gradients are in its
    mean."""
    asynchronous: bool = False
    """Updates are parameters; workers' replicas differ, and the server's is the model."""
    agrees: bool = True
    """True if what controllers agree upon can go with gradients."""
    most_servers: int | None = None
    """None: any number may share the model."""
    down: tuple[str, ...] | None = None
    """Codings that can write what comes back; None: all."""
    partial: bool = False
    """True if only some workers may take part in a step: its side is a ``PartialSide``, its server
    gathers from ``Membership.of_step`` and answers all."""
    leaving: (
        tuple[
            Callable[[Node, Membership], LeavingSide], Callable[[Node, Membership], LeavingServer]
        ]
        | None
    ) = None
    """Both sides where workers leave and return; None: nobody can."""
    spares: Callable[[Mapping[str, Any], int], int] = no_spares
    """How many workers may be lost without an end to the run, by ``exchange_options`` and their
    number."""

    def check(self, options: Mapping[str, Any]) -> None:
        """Raise InputError for options that it does not have."""
        read("exchange_options", self.options, options)


exchanges: Registry[ExchangeSpec] = Registry("exchange", "narrows.exchanges")
