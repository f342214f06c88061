"""All that a role may touch: ``Node``, and the ``Endpoint`` through which it sends and receives
``Message``s.

Worker, server and controller code touches time, threads, randomness and the network only through a
``Node``. Behind it stand sockets and threads on a real host (``fabric/host_node.py``), or a virtual
clock (``fabric/sim/node.py``): the roles cannot tell. Everything blocks; there is one thread of
control per activity.

At the end of the file: ``CollectiveGroup``, collective operations of somebody else's library, where
a node has them. Of the exchanges, only ``testbed.exchange.gloo`` uses these.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from random import Random
from typing import TYPE_CHECKING, Generic, Literal, Protocol, TypeVar

if TYPE_CHECKING:
    from torch import Tensor


T = TypeVar("T")
Buffer = bytes | bytearray | memoryview


class Kind(IntEnum):
    """The kind of a frame."""

    HELLO = 1
    """A worker is there: to the servers, or to its peers. Servers answer with none."""
    GRADIENT = 2
    """A gradient of one step and bucket, or a part of one: of a worker."""
    UPDATE = 3
    """The answer to a step and bucket: the mean, or parameters. Of a server."""
    BYE = 4
    """The sender is done; of a server: the update of this step was the last."""
    WAIT_NOTICE = 5
    """Endpoints among themselves; roles see none."""
    LEAVE = 6
    """A worker takes no part from this step on."""
    REJOIN = 7
    """A worker that was away asks for the parameters; an UPDATE brings them."""


@dataclass(slots=True)
class Message:
    """One frame as sent or received. Not to be changed; it is not frozen, since that costs more
    than all else of it.

    ``body`` is opaque bytes; times are seconds of ``Node.now()``: when the sender began to send,
    and at the receiver when the header had been read, when the last byte had come to the host's
    network stack, and when it had been read.
    """

    kind: Kind
    step: int
    bucket: int
    sender: int
    body: Buffer
    sent_s: float = 0.0
    first_s: float = 0.0
    arrived_s: float = 0.0
    last_s: float = 0.0


class Endpoint(Protocol):
    """A node's place on the data network. Peers are known by number (server 0, workers 1…)."""

    def send(self, destinations: Iterable[int], message: Message) -> int:
        """Hand ``message`` to every destination; returns when the last byte is handed over.

        Returns the frame bytes sent, headers included, summed over destinations.
        Raises NodeLost when a destination cannot be reached.
        """
        ...

    def form_groups(self, groups: Sequence[frozenset[int]]) -> None:
        """Name the sets of peers that will be multicast to, before t0; all nodes name the same in
        the same order.

        Raises MachineError where this network has no multicast.
        """
        ...

    def multicast(self, group: int, message: Message) -> int:
        """Hand ``message`` to every member of ``groups[group]`` but oneself, as one copy on this
        node's link.

        It is as reliable as ``send``; returns when the last byte is handed over, while repairs may
        still be under way. Returns the frame bytes, once however many members. Raises NodeLost.
        """
        ...

    def receive(
        self, timeout: float, awaited: Collection[int] = (), waiting: Collection[int] = ()
    ) -> Message:
        """The next message from any peer, within ``timeout`` seconds. Raises NodeLost otherwise.

        ``awaited``: peers from which a message is expected; NodeLost names those of them that sent
        nothing for ``timeout`` seconds, even if others did. ``waiting``: peers that wait for this
        node; they are told that it waits itself, so that they do not take it for lost.
        """
        ...

    def frame_bytes(self, message: Message) -> int:
        """Bytes that ``message`` takes as a frame, header included."""
        ...


class Queue(Protocol, Generic[T]):
    """A first-in first-out queue between a node's activities."""

    def put(self, item: T) -> None:
        """Add ``item``; never blocks."""
        ...

    def get(self, timeout: float | None = None) -> T:
        """Take the oldest item. Raises TimeoutError after ``timeout`` seconds."""
        ...


class NodeTask(Protocol):
    """A spawned activity."""

    def join(self) -> None:
        """Wait for its end; raises what it raised."""
        ...


class Node(Protocol):
    """A role's whole world, in groups.

    ==========  ==================================================
    identity    ``name``
    time        ``now``, ``cpu``, ``sleep_until``, ``compressed``
    network     ``endpoint``, ``group``, ``asked_rate``
    activities  ``spawn``, ``background``, ``queue``
    randomness  ``rng``
    records     ``record``, ``recording``
    ==========  ==================================================
    """

    @property
    def name(self) -> str:
        """Name in the scenario, ``worker-0``."""
        ...

    def now(self) -> float:
        """Seconds since t0 (negative before it)."""
        ...

    def cpu(self) -> float:
        """CPU seconds this thread has used; the virtual clock's time under simulation."""
        ...

    def sleep_until(self, time_s: float) -> None:
        """Sleep until ``now()`` is at least ``time_s``."""
        ...

    def compressed(self, pieces: int, elements: int) -> None:
        """Let the virtual clock pass the time that compressing ``pieces`` vectors of ``elements``
        in all takes; nothing on a real host, whose clock has gone on.
        """
        ...

    @property
    def endpoint(self) -> Endpoint:
        """The data network."""
        ...

    def group(self, members: Sequence[int], patience_s: float, timeout_s: float) -> CollectiveGroup:
        """A group of ``members`` (peers, by rank), who all ask for it, before t0; there is one at
        most.

        They are waited for ``patience_s``, and an operation may take ``timeout_s``. Raises
        MachineError where nodes cannot have one, NodeLost when the others do not come.
        """
        ...

    def asked_rate(self, link: str, direction: Literal["up", "down"]) -> float | None:
        """Latest asked rate of a link's direction, bit/s, if this node is told of it."""
        ...

    def spawn(self, activity: Callable[[], None]) -> NodeTask:
        """Run ``activity`` beside this one."""
        ...

    def background(self, work: Callable[[], T]) -> T:
        """Do ``work`` and return its result, giving way to whatever else this host has to do
        meanwhile.

        For computation: what several nodes compute on one host must not hold up their messages.
        """
        ...

    def queue(self) -> Queue[T]:
        """A new queue for this node's activities."""
        ...

    @property
    def rng(self) -> Random:
        """Private source of randomness, seeded from the run's seed and the node's name."""
        ...

    def record(self, event: dict[str, object]) -> None:
        """Add one event to the run's records."""
        ...

    recording: bool
    """True where ``record`` keeps what it is given; of very many simulated nodes only some do."""


@dataclass(frozen=True, slots=True)
class GroupTraffic:
    """Traffic that an interface has carried, in bytes with all headers that it sees."""

    interface: str
    sent: int
    received: int

    def since(self, before: GroupTraffic) -> GroupTraffic:
        """From ``before`` on."""
        return GroupTraffic(
            self.interface, self.sent - before.sent, self.received - before.received
        )

    def to_json(self) -> dict[str, str | int]:
        """As it is recorded."""
        return {"interface": self.interface, "sent": self.sent, "received": self.received}


class Pending(Protocol):
    """An operation under way. The tensors it was given must stay as they are."""

    def wait(self) -> float:
        """Until it has ended; returns when it did, in seconds of ``Node.now()``.

        Raises NodeLost with what the library says when a member cannot be reached.
        """
        ...


class CollectiveGroup(Protocol):
    """Some nodes on the data network. All members make the same operations in the same order.

    The library brings connections of its own, which nobody counts frames on: what a group moved is
    read from the counters of the node's interface (``carried``).
    """

    def add_up(self, values: Tensor) -> Pending:
        """Begin to set ``values`` (float32 or bfloat16, contiguous) to all members' sum."""
        ...

    def gather(self, own: Tensor, everybodys: Tensor) -> Pending:
        """Begin to copy all members' ``own`` (m,) to ``everybodys`` (n·m,), by rank."""
        ...

    def carried(self) -> GroupTraffic:
        """Return the traffic of the node's data interface since the group was made."""
        ...

    def close(self) -> None:
        """End all connections. Nothing of the group may be used after it."""
        ...
