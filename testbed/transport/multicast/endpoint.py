"""A node's multicasts: groups are joined, messages are sent and delivered, silent peers are named.

One thread of its own moves all packets; ``send`` waits until that thread has handed the last one to
the kernel.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from testbed.errors import NodeLost, WireError
from testbed.node import Message
from testbed.transport.frame import HEADER_BYTES, MAX_BODY, framed
from testbed.transport.multicast.packet import (
    DATAGRAM,
    MAGIC,
    Flag,
    MulticastCounters,
    ReceiverReport,
    fold,
)
from testbed.transport.multicast.packet import HEADER_BYTES as PACKET_HEADER
from testbed.transport.multicast.receiver import Datagram, Frames, Incoming, Receiving
from testbed.transport.multicast.sender import Sending
from testbed.transport.multicast.udp import (
    Address,
    Outgoing,
    Receiver,
    Sockets,
    Transmitter,
    group_address,
)

_ROUNDS = 4
"""So many batches are read before anything is sent."""
_LOOK_S = 0.25
_LINGER_S = 0.3


class Multicaster:
    """Made where its sockets shall be: in the calling thread's network namespace. Raises OSError.

    ``clock`` turns nanoseconds of the host's monotonic clock into the run's seconds; ``addresses``
    are the peers' on the data network, by number; ``deliver`` is called in this object's thread;
    ``most_bytes``: of a peer's body.
    """

    def __init__(
        self,
        own: int,
        run: int,
        *,
        names: Mapping[int, str],
        clock: Callable[[int], float],
        silence_s: float,
        addresses: Mapping[int, str],
        port: int,
        deliver: Callable[[Message | NodeLost], None],
        most_bytes: int = MAX_BODY,
    ) -> None:
        self.own, self.run = own, run
        self._fold, self._names, self._clock = fold(run), names, clock
        self._silence_s, self._deliver, self._port = silence_s, deliver, port
        self._counters = MulticastCounters()
        self._sockets = Sockets(addresses[own], port)
        self._receiver = Receiver()
        peers = {peer: Address(address, port) for peer, address in addresses.items()}
        transmitter = Transmitter(own, self._fold, self._sockets, self._counters)
        self._sending = Sending(transmitter, peers, silence_s, self._lose)
        self._receiving = Receiving(
            Frames(run, most_bytes), transmitter, peers, self._counters, self._complete
        )
        self._members: dict[int, frozenset[int]] = {}
        self._numbers: dict[int, int] = {}
        self._lost: dict[int, NodeLost] = {}
        self._coming: deque[Outgoing] = deque()
        self._lock = threading.Lock()
        self._bell, self._ear = socket.socketpair(type=socket.SOCK_DGRAM)
        self._closing = threading.Event()
        self._abandoned = False
        self._failure: Exception | None = None
        self._look_s = 0.0
        self._heard_s: dict[int, float] = {}
        self._gone: deque[tuple[int, str]] = deque()
        self._thread = threading.Thread(target=self._serve, name="multicast", daemon=True)
        self._thread.start()

    def form_groups(self, groups: Sequence[frozenset[int]]) -> None:
        """Name the sets of peers, the same on every node; those that this node is in are joined.

        Raises MachineError where it may not be in so many.
        """
        for number, members in enumerate(groups):
            address = group_address(self.run, number)
            others = members - {self.own}
            self._sending.groups[number] = Address(address, self._port)
            self._members[number] = others
            if self.own in members:
                self._receiving.senders[number] = others
                self._sockets.join(address)

    def send(self, group: int, message: Message) -> int:
        """Hand ``message`` to all others in a group; returns its frame bytes once the kernel has
        all of it.

        Where there are none, nothing is sent. Raises NodeLost when one of them does not answer any
        more.
        """
        members = self._members[group]
        self._check(members)
        if not members:
            return 0
        header, body = framed(message, self.run, time.monotonic_ns())
        with self._lock:
            number = self._numbers.get(group, 0)
            self._numbers[group] = number + 1
            outgoing = Outgoing(group, number, members, header + body)
            self._coming.append(outgoing)
        self._bell.send(b"!")
        while not outgoing.handed_over.wait(_LOOK_S):
            self._check(members)  # the thread that sends may have ended meanwhile
        self._check(members)
        self._counters.frame_bytes_sent += len(header) + len(body)
        return len(header) + len(body)

    def counters(self) -> MulticastCounters:
        """Return the counts of what has been sent and received so far."""
        return self._counters

    @property
    def idle(self) -> bool:
        """Return whether members have confirmed everything that was sent."""
        return self._sending.idle and not self._coming

    def gone(self, peer: int, reason: str) -> None:
        """It is known otherwise that ``peer`` was lost: nothing waits for it any more."""
        self._gone.append((peer, reason))
        with suppress(OSError):
            self._bell.send(b"!")

    def heard_s(self, peer: int) -> float:
        """When anything last came of ``peer``, by the monotonic clock."""
        return self._heard_s.get(peer, 0.0)

    def silent_s(self) -> float:
        """Since when no part of a message has come."""
        return time.monotonic() - self._receiving.heard_s

    def abandon(self) -> None:
        """``close`` is not to wait for anybody: something went wrong, and others are to hear of it
        soon."""
        self._abandoned = True

    def close(self) -> None:
        """Leave all groups, once members have confirmed what was sent, or are silent."""
        self._closing.set()
        with suppress(OSError):
            self._bell.send(b"!")
        self._thread.join(self._silence_s + 2 * _LINGER_S)
        for used in (*self._sockets, self._bell, self._ear):
            used.close()

    def _check(self, members: frozenset[int]) -> None:
        if self._failure is not None:
            raise NodeLost(self._name(self.own), None, f"its multicasts ended: {self._failure}")
        for member in members & self._lost.keys():
            raise self._lost[member]

    def _serve(self) -> None:
        try:
            self._loop()
        except Exception as error:  # whoever waits must hear of it
            if not self._closing.is_set():
                self._failure = error
                reason = f"its multicasts ended: {type(error).__name__}: {error}"
                self._deliver(NodeLost(self._name(self.own), None, reason))
        for outgoing in list(self._coming):
            outgoing.handed_over.set()
        self._sending.abandon()

    def _loop(self) -> None:
        poll = select.poll()
        for readable in (self._sockets.groups, self._sockets.own, self._ear):
            poll.register(readable, select.POLLIN)
        out = self._sockets.out.fileno()
        waiting, quiet_s = False, time.monotonic()
        while not self._over(quiet_s):
            if waiting is not self._sending.blocked:
                waiting = self._sending.blocked
                (poll.register(out, select.POLLOUT) if waiting else poll.unregister(out))
            ready = {descriptor for descriptor, _ in poll.poll(self._patience_ms())}
            if self._ear.fileno() in ready:
                self._ear.recv(16)
                while self._gone:
                    self._lose(*self._gone.popleft())
                while self._coming:
                    self._sending.begin(self._coming.popleft())
            for readable in (self._sockets.own, self._sockets.groups):
                if readable.fileno() in ready:
                    self._read(readable)
                    quiet_s = time.monotonic()
            self._receiving.report(time.monotonic_ns())
            now_s = time.monotonic()
            self._sending.ask(now_s)
            self._sending.transmit(now_s)
            self._look(now_s)

    def _over(self, quiet_s: float) -> bool:
        """Whoever closes stays a little, to confirm to those who have not heard it."""
        quiet = time.monotonic() - quiet_s > _LINGER_S
        return self._closing.is_set() and (self._abandoned or (self.idle and quiet))

    def _patience_ms(self) -> float:
        left_s = min(self._sending.next_s() - time.monotonic(), _LOOK_S)
        return max(0.0, left_s * 1e3)

    def _read(self, readable: socket.socket) -> None:
        for _ in range(_ROUNDS):
            datagrams, read_ns = self._receiver.receive(readable.fileno()), time.monotonic_ns()
            if not datagrams:
                return
            for fields, length, payload, arrived_ns in datagrams:
                self._counters.received.add(1, length)
                try:
                    self._sort(fields, length, payload, arrived_ns, read_ns)
                except (WireError, ValueError):
                    self._counters.strangers += 1

    def _sort(
        self,
        fields: tuple[int, ...],
        length: int,
        payload: memoryview,
        arrived_ns: int,
        read_ns: int,
    ) -> None:
        """Raises WireError, or ValueError, for what no peer can have sent."""
        magic, flags, sender, run, group, number, index, stamp_us = fields
        whole = PACKET_HEADER <= length <= DATAGRAM
        if not whole or magic != MAGIC or run != self._fold or sender in self._lost:
            raise WireError("not of this run")
        if sender == self.own:
            return  # a loopback interface gives everybody everything
        self._heard_s[sender] = read_ns / 1e9
        if flags & Flag.REPORT:
            report, done = ReceiverReport.unpack(bytes(payload)), bool(flags & Flag.DONE)
            self._sending.on_report(sender, (group, number), index, done, report, stamp_us)
        else:
            self._receiving.take(
                Datagram(
                    flags, sender, group, number, index, stamp_us, payload, arrived_ns, read_ns
                )
            )

    def _complete(self, part: Incoming, now_ns: int) -> None:
        assert part.header is not None
        self._counters.frame_bytes_received += len(part.stream)
        body, clock = memoryview(part.stream)[HEADER_BYTES:], self._clock
        kind, sender, _, step, bucket, _, sent_ns = part.header
        times = clock(sent_ns), clock(part.first_ns), clock(part.arrived_ns), clock(now_ns)
        self._deliver(Message(kind, step, bucket, sender, body, *times))

    def _look(self, now_s: float) -> None:
        """Now and then, for senders that have gone in the middle of a message."""
        if now_s < self._look_s:
            return
        self._look_s = now_s + _LOOK_S
        for sender in self._receiving.silent(now_s - self._silence_s):
            reason = f"it went silent in the middle of a multicast, {self._silence_s:g} s ago"
            self._lose(sender, reason)

    def _lose(self, peer: int, reason: str) -> None:
        if peer not in self._lost:
            self._lost[peer] = NodeLost(self._name(peer), None, reason)
            self._sending.drop(peer)
            self._receiving.drop(peer)
            self._deliver(self._lost[peer])

    def _name(self, peer: int) -> str:
        return self._names.get(peer, f"peer {peer}")
