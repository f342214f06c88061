"""Common part of endpoints on sockets: peers, strangers, the kernel's counts, and connections that
have not said who they are.

Whoever has a reason to connect introduces itself; a stranger that says nothing holds nothing up,
and a flood of strangers takes a bounded number of sockets. Of too many, the oldest of the same
address goes first.

Frames that are not ours are counted and their connection is dropped; nobody but a peer has memory
taken for a body.
"""

from __future__ import annotations

import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Generic, TypeVar

from testbed.errors import MachineError, NodeLost, WireError
from testbed.node import Kind, Message
from testbed.transport.connection import LOOKS, ConnectionConfig, FramedSocket, SocketCounters
from testbed.transport.frame import MAX_BODY, frame_bytes

_PAUSE_S = 0.05
"""The least pause between two attempts to connect."""
PATIENCE = 1.5
"""Times the timeout: for peers that say that they wait themselves, who know first."""


def connect_patiently(
    address: tuple[str, int], patience_s: float, timeout_s: float
) -> socket.socket:
    """Connect, again and again until somebody listens there. Raises OSError after ``patience_s``;
    ``timeout_s``: of each attempt.

    Each pause is at least half of the time waited so far: attempts that are refused cross the link
    as well, and no socket's counters name them.
    """
    begun = time.monotonic()
    while True:
        try:
            connected = socket.create_connection(address, timeout_s)
            connected.settimeout(None)
            return connected
        except OSError:
            waited = time.monotonic() - begun
            if waited > patience_s:
                raise
            time.sleep(max(_PAUSE_S, min(waited / 2, patience_s - waited)))


class LivenessMonitor:
    """The waits of one node: who is waited for, and since when nothing has been heard of them.

    Bytes of a peer's messages are a sign of life, as they come or as it takes in what it is sent,
    however slowly. One that waits itself for a third has none to send. It says so now and then
    (``Kind.WAIT_NOTICE``), and for how long whom it waits for has been silent: so whoever is at the
    end of such a chain does not take it for lost, and it is the one next to a lost peer that finds
    out. If nobody in a circle has anything to say, all of them know at about the same time.

    Times are seconds of the monotonic clock.
    """

    def __init__(self) -> None:
        self._since: dict[int, float] = {}
        self._looked_s = 0.0

    def due(self, timeout_s: float, now_s: float) -> bool:
        """Return whether the last look was a while ago."""
        return now_s >= self._looked_s + timeout_s / LOOKS

    def look(self, awaited: Collection[int], begun_s: float, now_s: float) -> None:
        """``awaited`` are waited for since ``begun_s``, or since the looks before."""
        self._looked_s = now_s
        self._since = {peer: self._since.get(peer, begun_s) for peer in awaited}

    def on_message(self, peer: int) -> None:
        """A message of it: if there is to be another, the wait for it begins anew."""
        self._since.pop(peer, None)

    def lost(self, peers: Mapping[int, FramedSocket], timeout_s: float, now_s: float) -> list[int]:
        """Those of whom nothing has been heard for too long."""
        return [
            peer
            for peer in self._since
            if self._silent_s(peer, peers, now_s) >= self._limit_s(peer, peers, timeout_s, now_s)
        ]

    def next_check_s(
        self, peers: Mapping[int, FramedSocket], timeout_s: float, now_s: float
    ) -> float:
        """Until the next look: a while, or less if somebody will be lost before."""
        left_s = [
            self._limit_s(peer, peers, timeout_s, now_s) - self._silent_s(peer, peers, now_s)
            for peer in self._since
        ]
        return max(0.0, min([timeout_s / LOOKS, *left_s]))

    def waits_long(self, timeout_s: float, now_s: float) -> bool:
        """Return whether somebody is waited for so long that those who wait for this node are to be
        told."""
        return any(now_s >= since_s + timeout_s / LOOKS for since_s in self._since.values())

    def silent_s(self, peers: Mapping[int, FramedSocket], now_s: float) -> float:
        """Since when nothing has been heard of the one who has been silent for longest."""
        return max((self._silent_s(peer, peers, now_s) for peer in self._since), default=0.0)

    def _silent_s(self, peer: int, peers: Mapping[int, FramedSocket], now_s: float) -> float:
        last_s = self._since[peer]
        if (stream := peers.get(peer)) is not None:
            last_s = max(last_s, stream.last_progress_s(now_s), stream.wait_notice[1])
        return max(0.0, now_s - last_s)  # a notice may have come since ``now_s`` was read

    def _limit_s(
        self, peer: int, peers: Mapping[int, FramedSocket], timeout_s: float, now_s: float
    ) -> float:
        stream = peers.get(peer)
        waits = stream is not None and now_s - stream.wait_notice[0] < 2 * timeout_s / LOOKS
        return timeout_s * PATIENCE if waits else timeout_s


S = TypeVar("S")

GREETING_S = 10.0
"""How long an accepted connection may take to introduce itself."""
GREETING_BYTES = 4096
"""Most bytes of the body with which it does so."""
_OF_ONE_ADDRESS, _IN_ALL = 32, 512


class PendingConnections(Generic[S]):
    """Who waits, in order of arrival. Any thread may call."""

    def __init__(self, greeting_s: float = GREETING_S) -> None:
        self._greeting_s = greeting_s
        self._waiting: dict[S, tuple[str, float]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, stream: S, address: str, now_s: float) -> S | None:
        """``stream`` waits from now on; returns the one that has to go for it."""
        with self._lock:
            same = [other for other, (whose, _) in self._waiting.items() if whose == address]
            self._waiting[stream] = address, now_s + self._greeting_s
            if len(same) >= _OF_ONE_ADDRESS:
                return self._take_out(same[0])
            if len(self._waiting) > _IN_ALL:
                return self._take_out(next(iter(self._waiting)))
            return None

    def remove(self, stream: S) -> None:
        """It has introduced itself, or is gone."""
        with self._lock:
            self._waiting.pop(stream, None)

    def expired(self, now_s: float) -> list[S]:
        """Those that have waited too long; they do not wait any more."""
        with self._lock:
            late = [stream for stream, (_, until_s) in self._waiting.items() if until_s <= now_s]
            return [self._take_out(stream) for stream in late]

    def all(self) -> list[S]:
        """Everybody who waits."""
        with self._lock:
            return list(self._waiting)

    def _take_out(self, stream: S) -> S:
        del self._waiting[stream]
        return stream


StreamT = TypeVar("StreamT", bound=FramedSocket)

LOOK_S, PAUSE_S = 0.5, 0.01
"""Between two looks for strangers that say nothing; after somebody could not be let in."""
_MOST_UNREAD = 1 << 14
"""Messages of a peer that wait to be received; in a run it is two steps' buckets."""
_TICK_S = 0.01
"""The kernel's clock of what came last is not finer."""
_BACKLOG = 1024


class SocketEndpoint(ABC, Generic[StreamT]):
    """The common part of ``ThreadedEndpoint`` and ``EpollEndpoint``.

    ``clock`` turns nanoseconds of the host's monotonic clock into the run's seconds; ``names``
    gives peers their names for error messages, ``addresses`` says where they connect from, as far
    as that is known: a greeting from elsewhere is a stranger's. ``silence_s`` is how long
    unanswered data is waited for, ``greeting_s`` how long somebody who has connected may say
    nothing; ``most_bytes``: of a peer's body; ``lockstep``, ``unsent_bytes`` and
    ``ahead_ns``: see ``ConnectionConfig``.
    """

    def __init__(
        self,
        number: int,
        run: int,
        *,
        names: Mapping[int, str],
        addresses: Mapping[int, str] | None = None,
        clock: Callable[[int], float],
        silence_s: float,
        greeting_s: float = GREETING_S,
        most_bytes: int = MAX_BODY,
        lockstep: bool = True,
        unsent_bytes: int | None = None,
        ahead_ns: int = 0,
    ) -> None:
        self.number, self.run = number, run
        self.rejected_connections = 0
        """Connections dropped because what came over them was not a frame of this run, or
        nothing."""
        self._names, self._addresses = names, addresses or {}
        self._config = ConnectionConfig(
            run, clock, silence_s, most_bytes, lockstep, unsent_bytes, ahead_ns
        )
        self._liveness = LivenessMonitor()
        self._pending: PendingConnections[StreamT] = PendingConnections(greeting_s)
        self._peers: dict[int, StreamT] = {}
        self._least_rtt_us: dict[int, int] = {}
        self._listener: socket.socket | None = None
        self._closing = False
        self._set_up()

    def connect(self, peer: int, address: str, port: int, timeout_s: float) -> None:
        """Connect to ``peer``, again and again until it listens. Raises NodeLost after
        ``timeout_s``."""
        try:
            connected = connect_patiently((address, port), timeout_s, timeout_s)
        except OSError as error:
            raise NodeLost(self._name(peer), None, f"cannot connect: {error}") from error
        self._adopt(peer, self._wrap(connected, self._config.most_bytes))

    frame_bytes = staticmethod(frame_bytes)

    def form_groups(self, groups: Sequence[frozenset[int]]) -> None:
        """TCP has none."""
        raise MachineError(f"there is no multicast here, and {len(groups)} groups were asked for")

    def multicast(self, group: int, message: Message) -> int:
        """TCP has none."""
        raise MachineError(f"there is no multicast here: {message.kind.name} to group {group}")

    def counters(self) -> dict[int, SocketCounters]:
        """Return the kernel's counts on each peer's connection so far.

        The kernel forgets a least round-trip time after minutes; that of connecting, on idle links,
        is kept here.
        """
        now = {peer: stream.counters() for peer, stream in list(self._peers.items())}
        return {peer: self._with_least(peer, counted) for peer, counted in now.items()}

    @property
    def wait_notice_bytes(self) -> tuple[int, int]:
        """Bytes of frames, sent and received, by which nodes that wait told each other so; no role
        counts them."""
        streams = list(self._peers.values())
        return sum(s.notice_bytes_out for s in streams), sum(s.notice_bytes_in for s in streams)

    @abstractmethod
    def _set_up(self) -> None:
        """Set up what an endpoint needs besides."""

    @abstractmethod
    def _wrap(self, connected: socket.socket, most_bytes: int) -> StreamT:
        """A connection of the endpoint's own kind."""

    @abstractmethod
    def _next(self, timeout: float) -> Message | NodeLost | None:
        """The oldest item of what was put; None after ``timeout`` seconds without one."""

    @abstractmethod
    def _put(self, item: Message | NodeLost) -> None:
        """Have ``receive`` return it, or raise it, after everything that came before."""

    def _adopt(self, peer: int, stream: StreamT, first: Message | None = None) -> None:
        """``stream`` is ``peer``'s from now on; ``first`` is what it introduced itself with."""
        stream.allow_large_frames(self._config.most_bytes)
        with suppress(OSError):  # a peer that is gone already is found out by who reads
            if (least := stream.counters().least_rtt_us) is not None:
                self._least_rtt_us[peer] = least
        self._peers[peer] = stream
        if first is not None:
            self._deliver(peer, stream, first)

    def _open(self, address: str, port: int) -> socket.socket:
        self._listener = socket.create_server((address, port), backlog=_BACKLOG)
        return self._listener

    def _let_in(self, accepted: socket.socket, address: str) -> StreamT:
        """Somebody who has to introduce itself; when there are too many, another one is shut out
        for it."""
        stream = self._wrap(accepted, GREETING_BYTES)
        stream.address = address
        if (out := self._pending.add(stream, address, time.monotonic())) is not None:
            out.shutdown()
        return stream

    def _shut_expired(self) -> None:
        """Those who have been silent for too long; whoever reads them drops them."""
        for stream in self._pending.expired(time.monotonic()):
            stream.shutdown()

    def _check_greeting(self, stream: StreamT, first: Message | None) -> Message:
        """The first frame says who it is. Raises WireError for a stranger."""
        if first is None or first.kind is not Kind.HELLO or first.sender not in self._names:
            raise WireError("the first frame is not a greeting of a known peer")
        if stream.address != self._addresses.get(first.sender, stream.address):
            raise WireError(f"{stream.address} is not the address of peer {first.sender}")
        if first.sender in self._peers:
            raise WireError(f"peer {first.sender} is connected already")
        return first

    def _deliver(self, peer: int, stream: StreamT, message: Message) -> None:
        """Hand a peer's message to the role. Raises WireError for what it has no reason to send."""
        if message.sender != peer:
            raise WireError(f"it sent a frame of {self._name(message.sender)}")
        if message.kind is Kind.WAIT_NOTICE:
            stream.on_wait_notice(message, time.monotonic())
            return
        stream.delivered += 1
        if stream.delivered - stream.taken > _MOST_UNREAD:
            raise WireError(f"more than {_MOST_UNREAD} messages of it wait to be received")
        self._put(message)

    def _received(self, item: Message | NodeLost) -> Message:
        """Return what was taken out of the inbox. Raises it where it is a loss."""
        if isinstance(item, NodeLost):
            raise item
        self._peers[item.sender].taken += 1
        self._liveness.on_message(item.sender)
        return item

    def receive(
        self, timeout: float, awaited: Collection[int] = (), waiting: Collection[int] = ()
    ) -> Message:
        """See ``testbed.node.Endpoint``. A message that is still coming in is waited for."""
        look_s, begun_s = timeout / LOOKS if awaited else timeout, time.monotonic()
        if awaited and self._liveness.due(timeout, begun_s):
            self._look(timeout, awaited, waiting, begun_s)
        while (item := self._next(look_s)) is None:
            if awaited:
                self._look(timeout, awaited, waiting, begun_s)
                look_s = self._liveness.next_check_s(self._peers, timeout, time.monotonic())
            elif not self._still_coming(timeout):
                raise self._silence(self._peers, timeout)
        return self._received(item)

    def _look(
        self, timeout: float, awaited: Collection[int], waiting: Collection[int], begun_s: float
    ) -> None:
        """Now and then while nothing comes. Raises NodeLost; tells those who wait for this node."""
        now_s = time.monotonic()
        self._liveness.look([p for p in awaited if not self._unread(p)], begun_s, now_s)
        if lost := self._liveness.lost(self._peers, timeout, now_s):
            raise self._silence(lost, timeout)
        if not self._liveness.waits_long(timeout, now_s):
            return
        silent_ms = int(1e3 * self._liveness.silent_s(self._peers, now_s))
        for peer in waiting:
            if peer in self._peers:
                self._peers[peer].try_send_wait_notice(
                    Message(Kind.WAIT_NOTICE, silent_ms, 0, self.number, b"")
                )

    def _unread(self, peer: int) -> bool:
        """Return whether a message of ``peer`` waits to be received."""
        stream = self._peers.get(peer)
        return stream is not None and stream.delivered > stream.taken

    def _still_coming(self, timeout: float) -> bool:
        """Return whether bytes of a message have come in the last ``timeout`` seconds."""
        recent_s = timeout - _TICK_S
        return any(stream.silent_s() < recent_s for stream in list(self._peers.values()))

    def _silence(self, silent: Iterable[int], timeout: float) -> NodeLost:
        missing = ", ".join(self._name(peer) for peer in sorted(silent)) or "any peer"
        return NodeLost(missing, None, f"nothing was received for {timeout:g} s")

    def _unreachable(self, peer: int, error: OSError) -> NodeLost:
        return NodeLost(self._name(peer), None, f"cannot send: {error}")

    def _with_least(self, peer: int, counted: SocketCounters) -> SocketCounters:
        times_us = (self._least_rtt_us.get(peer), counted.least_rtt_us)
        known = [time_us for time_us in times_us if time_us is not None]
        return replace(counted, least_rtt_us=min(known, default=None))

    def _name(self, peer: int) -> str:
        return self._names.get(peer, f"peer {peer}")
