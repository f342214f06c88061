"""Framed TCP between peers: one connection and one reader thread per peer.

Bytes are received straight into buffers that are used again: two per peer and bucket, so a peer may
have two messages of a bucket under way. For large messages of few peers; for others there is
``testbed.transport.epoll_endpoint``.
"""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress

from testbed.errors import NodeLost, WireError
from testbed.node import Kind, Message
from testbed.transport.connection import BlockingConnection
from testbed.transport.endpoint import LOOK_S, PAUSE_S, SocketEndpoint
from testbed.transport.multicast.endpoint import Multicaster

_Inbox = queue.SimpleQueue[Message | NodeLost | None]
"""None: the endpoint was closed."""


class ThreadedEndpoint(SocketEndpoint[BlockingConnection]):
    """A node's place on the data network, on sockets and threads (``testbed.node.Endpoint``)."""

    def _set_up(self) -> None:
        self._inbox: _Inbox = queue.SimpleQueue()
        self._changed = threading.Condition()
        self.multicaster: Multicaster | None = None
        """Carrier of messages to groups, if there is one; it gives what comes to ``deliver``."""

    def listen(self, address: str, port: int) -> None:
        """Accept peers from now on; each introduces itself with the first frame it sends."""
        listener = self._open(address, port)
        listener.settimeout(LOOK_S)
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

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
        """See ``testbed.node.Endpoint``."""
        if self.multicaster is None:
            super().form_groups(groups)
        else:
            self.multicaster.form_groups(groups)

    def multicast(self, group: int, message: Message) -> int:
        """See ``testbed.node.Endpoint``."""
        if self.multicaster is None:
            return super().multicast(group, message)
        return self.multicaster.send(group, message)

    def deliver(self, item: Message | NodeLost) -> None:
        """Have ``receive`` return, or raise, what has come another way than over TCP."""
        if isinstance(item, Message):
            self._peers[item.sender].delivered += 1
            self._put(item)
        elif not self._closing:
            self._put(item)

    def close(self) -> None:
        """Close every connection; peers see an end of stream."""
        self._closing = True
        if self._listener is not None:  # first: peers of the next run must not find this run's
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        for connection in self._pending.all():
            connection.shutdown()
        if self.multicaster is not None:
            self.multicaster.close()
        for connection in self._peers.values():
            connection.close()
        self._inbox.put(None)

    def _look(
        self, timeout: float, awaited: Collection[int], waiting: Collection[int], begun_s: float
    ) -> None:
        if self.multicaster is not None:
            for peer in self._peers.keys() & set(awaited):
                self._peers[peer].note_activity(self.multicaster.heard_s(peer))
        super()._look(timeout, awaited, waiting, begun_s)

    def _still_coming(self, timeout: float) -> bool:
        recent = self.multicaster is not None and self.multicaster.silent_s() < timeout
        return recent or super()._still_coming(timeout)

    def _put(self, item: Message | NodeLost) -> None:
        self._inbox.put(item)

    def _next(self, timeout: float) -> Message | NodeLost | None:
        try:
            item = self._inbox.get(timeout=timeout)
        except queue.Empty:
            return None
        if item is None:
            self._inbox.put(None)  # for whoever receives next
            raise NodeLost(self._name(self.number), None, "its endpoint was closed")
        return item

    def _wrap(self, connected: socket.socket, most_bytes: int) -> BlockingConnection:
        return BlockingConnection(connected, self._config, most_bytes)

    def _accept(self, listener: socket.socket) -> None:
        while not self._closing:
            self._shut_expired()
            try:
                accepted, (address, *_) = listener.accept()
                self._begin_greeting(self._let_in(accepted, address))
            except TimeoutError:
                continue
            except (OSError, RuntimeError):
                # the end, somebody who is gone again, or this process has too many sockets or
                # threads
                time.sleep(PAUSE_S)

    def _begin_greeting(self, connection: BlockingConnection) -> None:
        """Raises RuntimeError where there is no thread for it."""
        try:
            threading.Thread(target=self._greet, args=(connection,), daemon=True).start()
        except RuntimeError:
            self._pending.remove(connection)
            connection.close()
            raise

    def _greet(self, connection: BlockingConnection) -> None:
        try:
            first = connection.receive()
            with self._changed:
                first = self._check_greeting(connection, first)
                self._adopt(first.sender, connection, first)
        except (WireError, OSError):
            self.rejected_connections += 1
            connection.close()
        finally:
            self._pending.remove(connection)

    def _adopt(self, peer: int, stream: BlockingConnection, first: Message | None = None) -> None:
        with self._changed:
            super()._adopt(peer, stream, first)
            self._changed.notify_all()
        try:
            threading.Thread(target=self._read, args=(peer, stream), daemon=True).start()
        except RuntimeError as error:
            self._put(NodeLost(self._name(peer), None, f"nothing can be read from it: {error}"))

    def _read(self, peer: int, connection: BlockingConnection) -> None:
        said_goodbye = False
        reason = "its connection was closed"
        try:
            while (message := connection.receive()) is not None:
                self._deliver(peer, connection, message)
                said_goodbye = message.kind is Kind.BYE
        except (WireError, OSError) as error:
            reason = str(error)
        if not (said_goodbye or self._closing):
            self._put(NodeLost(self._name(peer), None, reason))
            if self.multicaster is not None:
                self.multicaster.gone(peer, reason)

    def _connection(self, peer: int) -> BlockingConnection:
        with self._changed:
            if not self._changed.wait_for(lambda: peer in self._peers, self._config.silence_s):
                raise NodeLost(self._name(peer), None, "it never connected")
            return self._peers[peer]

    def _reached(self, peer: int, action: Callable[[], None]) -> None:
        try:
            action()
        except OSError as error:
            raise self._unreachable(peer, error) from error
