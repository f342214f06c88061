"""Framed TCP between peers: one connection and one reader thread per peer.

Bytes are received straight into buffers that are used again: two per peer and bucket, so a peer may have
two messages of a bucket under way. Frames that are not ours are counted and their connection is dropped.
"""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

from testbed.errors import MachineError, NodeLost, WireError
from testbed.exchange.connection import Connection
from testbed.exchange.frame import HEADER_BYTES
from testbed.exchange.tcp_info import SocketCounters
from testbed.node import Kind, Message

_Inbox = queue.SimpleQueue[Message | NodeLost]


class TcpEndpoint:
    """A node's place on the data network, on sockets (``testbed.node.Endpoint``).

    ``clock`` turns nanoseconds of the host's monotonic clock into the run's seconds; ``names`` gives
    peers their names for error messages; ``silence_s`` is how long unanswered data is waited for.
    """

    def __init__(
        self,
        number: int,
        run: int,
        *,
        names: dict[int, str],
        clock: Callable[[int], float],
        silence_s: float,
    ) -> None:
        self.number, self.run = number, run
        self.strangers = 0
        """Connections dropped because what came over them was not a frame of this run."""
        self._names, self._clock, self._silence_s = names, clock, silence_s
        self._inbox: _Inbox = queue.SimpleQueue()
        self._peers: dict[int, Connection] = {}
        self._least_rtt_us: dict[int, int] = {}
        self._changed = threading.Condition()
        self._listener: socket.socket | None = None
        self._closing = False

    def listen(self, address: str, port: int) -> None:
        """Accept peers from now on; each introduces itself with the first frame it sends."""
        self._listener = socket.create_server((address, port), backlog=128)
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def connect(self, peer: int, address: str, port: int, timeout_s: float) -> None:
        """Connect to ``peer``, again and again until it listens. Raises NodeLost after ``timeout_s``."""
        give_up = time.monotonic() + timeout_s
        while True:
            try:
                connected = socket.create_connection((address, port), timeout=timeout_s)
                break
            except OSError as error:
                if time.monotonic() > give_up:
                    raise NodeLost(self._name(peer), None, f"cannot connect: {error}") from error
                time.sleep(0.05)
        connected.settimeout(None)
        self._adopt(peer, Connection(connected, self.run, self._clock, self._silence_s))

    def send(self, destinations: Iterable[int], message: Message) -> int:
        """See ``testbed.node.Endpoint``. Several destinations are served side by side."""
        connections = [(peer, self._connection(peer)) for peer in destinations]
        if len(connections) == 1:
            peer, connection = connections[0]
            self._reached(peer, lambda: connection.send(message))
        else:
            tickets = [(peer, connection.send_later(message)) for peer, connection in connections]
            for peer, finished in tickets:
                self._reached(peer, finished)
        return len(connections) * self.frame_bytes(message)

    def form_groups(self, groups: Sequence[frozenset[int]]) -> None:
        """TCP has none."""
        raise MachineError(f"there is no multicast here, and {len(groups)} groups were asked for")

    def multicast(self, group: int, message: Message) -> int:
        """TCP has none."""
        raise MachineError(f"there is no multicast here: {message.kind.name} to group {group}")

    def receive(self, timeout: float) -> Message:
        """See ``testbed.node.Endpoint``. A message that is still coming in is waited for."""
        arrived = self._bytes_arrived()
        while True:
            try:
                item = self._inbox.get(timeout=timeout)
                break
            except queue.Empty:
                before, arrived = arrived, self._bytes_arrived()
                if arrived > before:
                    continue
                missing = ", ".join(self._name(peer) for peer in sorted(self._peers)) or "any peer"
                raise NodeLost(missing, None, f"nothing was received for {timeout:g} s") from None
        if isinstance(item, NodeLost):
            raise item
        return item

    def frame_bytes(self, message: Message) -> int:
        """See ``testbed.node.Endpoint``."""
        return HEADER_BYTES + len(memoryview(message.body).cast("B"))

    def counters(self) -> dict[int, SocketCounters]:
        """What the kernel counted on each peer's connection so far.

        The kernel forgets a least round-trip time after minutes; that of connecting, on idle links, is kept here.
        """
        now = {peer: connection.counters() for peer, connection in list(self._peers.items())}
        return {peer: self._with_least(peer, counted) for peer, counted in now.items()}

    def close(self) -> None:
        """Close every connection; peers see an end of stream."""
        self._closing = True
        if self._listener is not None:
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        for connection in self._peers.values():
            connection.close()

    def _bytes_arrived(self) -> int:
        return sum(
            connection.counters().bytes_received for connection in list(self._peers.values())
        )

    def _accept(self, listener: socket.socket) -> None:
        while not self._closing:
            try:
                accepted, _ = listener.accept()
            except OSError:
                return
            connection = Connection(accepted, self.run, self._clock, self._silence_s)
            threading.Thread(target=self._greet, args=(connection,), daemon=True).start()

    def _greet(self, connection: Connection) -> None:
        """The first frame says who it is; anything else is a stranger."""
        try:
            first = connection.receive()
            if first is None or first.kind is not Kind.HELLO or first.sender not in self._names:
                raise WireError("the first frame is not a greeting of a known peer")
            if first.sender in self._peers:
                raise WireError(f"peer {first.sender} is connected already")
        except (WireError, OSError):
            self.strangers += 1
            connection.close()
            return
        self._inbox.put(first)
        self._adopt(first.sender, connection)

    def _with_least(self, peer: int, counted: SocketCounters) -> SocketCounters:
        seen = (self._least_rtt_us.get(peer), counted.least_rtt_us)
        known = [time_us for time_us in seen if time_us is not None]
        return replace(counted, least_rtt_us=min(known, default=None))

    def _adopt(self, peer: int, connection: Connection) -> None:
        with suppress(OSError):  # a peer that is gone already is found out by the reader
            if (least := connection.counters().least_rtt_us) is not None:
                self._least_rtt_us[peer] = least
        with self._changed:
            self._peers[peer] = connection
            self._changed.notify_all()
        threading.Thread(target=self._read, args=(peer, connection), daemon=True).start()

    def _read(self, peer: int, connection: Connection) -> None:
        said_goodbye = False
        reason = "its connection was closed"
        try:
            while (message := connection.receive()) is not None:
                said_goodbye = message.kind is Kind.BYE
                self._inbox.put(message)
        except (WireError, OSError) as error:
            reason = str(error)
        if not (said_goodbye or self._closing):
            self._inbox.put(NodeLost(self._name(peer), None, reason))

    def _connection(self, peer: int) -> Connection:
        with self._changed:
            if not self._changed.wait_for(lambda: peer in self._peers, self._silence_s):
                raise NodeLost(self._name(peer), None, "it never connected")
            return self._peers[peer]

    def _reached(self, peer: int, action: Callable[[], None]) -> None:
        try:
            action()
        except OSError as error:
            raise NodeLost(self._name(peer), None, f"cannot send: {error}") from error

    def _name(self, peer: int) -> str:
        return self._names.get(peer, f"peer {peer}")
