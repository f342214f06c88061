"""Framed TCP between peers: all connections in one loop, which the role's own thread turns.

The role's own thread does so inside ``receive`` and ``send``: no thread switch lies between the
network and the role. While the role is busy with something else for long, a caretaker does, so that
peers are read from all the time.

For small messages, or many peers: there is no thread to switch to between the network and the role.
While a role sends, the loop goes on reading, so two peers that send to each other at the same time
both get on; what is read is held in buffers that are used again, two per peer and bucket, as in
``testbed.transport.threaded_endpoint``.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from select import EPOLLIN, EPOLLOUT

from testbed.errors import NodeLost, WireError
from testbed.node import Kind, Message
from testbed.transport.connection import NonBlockingConnection
from testbed.transport.endpoint import LOOK_S, PAUSE_S, SocketEndpoint
from testbed.transport.frame import Frame, framed

FOREVER_S = 1e6
_AWAY_S = 0.02
"""For so long nobody need turn the loop: the kernel's buffers hold what comes meanwhile."""


class LoopOwner:
    """``once(timeout)`` handles what there is, or waits for it for at most so many seconds."""

    def __init__(self, once: Callable[[float], None]) -> None:
        self._once = once
        self._free = threading.Condition(threading.Lock())
        self._busy = self._cared = self._ended = False
        self._count = self._wanting = 0
        self.waker = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """Readable when ``once`` shall return: it is to wait for that too, and to call
        ``clear_wakeup`` then."""
        self._caretaker = threading.Thread(
            target=self._background_turns, name="caretaker", daemon=True
        )
        self._caretaker.start()

    def run_until(self, done: Callable[[], object], end_s: float) -> bool:
        """Turn the loop until ``done``, or until ``end_s`` of the monotonic clock; whether it is
        done."""
        while not done():
            left_s = end_s - time.monotonic()
            if left_s <= 0 or self._ended:
                return False
            if self._take(done, left_s):
                self._turn(left_s)
        return True

    def clear_wakeup(self, _events: int = 0) -> None:
        """Take back the call for ``once`` to return."""
        os.eventfd_read(self.waker)

    def end(self) -> None:
        """Nobody turns the loop any more."""
        with self._free:
            self._ended = True
            os.eventfd_write(self.waker, 1)
            self._free.notify_all()
        if threading.current_thread() is not self._caretaker:
            self._caretaker.join()
        with self._free:
            while self._busy:
                self._free.wait()
        os.close(self.waker)

    def _take(self, done: Callable[[], object], left_s: float) -> bool:
        """Become the one who turns it; False after waiting for another one's turn to end, or if it
        is ``done`` already, or has ended.

        A turn that ended before this one held the lock may have done it, and told nobody.
        """
        with self._free:
            if self._ended or done():
                return False
            if not self._busy:
                self._busy = True
                return True
            self._wanting += 1
            # others end their turn when something has happened; calling them back for nothing, two
            # who wait would go on calling each other
            if self._cared:
                os.eventfd_write(self.waker, 1)
            self._free.wait(left_s)
            self._wanting -= 1
            return False

    def _turn(self, left_s: float) -> None:
        try:
            self._once(left_s)
        finally:
            with self._free:
                self._busy = False
                self._count += 1
                if self._wanting or self._ended:
                    self._free.notify_all()

    def _background_turns(self) -> None:
        """Take over when nobody has turned the loop for a while, until somebody wants to."""
        while not self._ended:
            before = self._count
            time.sleep(_AWAY_S)
            with self._free:
                if self._busy or self._count != before:
                    continue
                self._busy = self._cared = True
            try:
                while not (self._wanting or self._ended):
                    self._once(FOREVER_S)
            finally:
                self._cared = False
                self._turn(0.0)


_EVENTS_AT_ONCE, _ACCEPTED_AT_ONCE = 256, 16


class EpollEndpoint(SocketEndpoint[NonBlockingConnection]):
    """A node's place on the data network, on sockets and one loop (``testbed.node.Endpoint``)."""

    def _set_up(self) -> None:
        self._inbox: deque[Message | NodeLost] = deque()
        self._poll, self._watching = select.epoll(), threading.Lock()
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._owner = LoopOwner(self._once)
        self._handle(self._owner.waker, self._owner.clear_wakeup)

    def listen(self, address: str, port: int) -> None:
        """Accept peers from now on; each introduces itself with the first frame it sends."""
        listener = self._open(address, port)
        listener.setblocking(False)
        self._handle(listener.fileno(), self._accept)

    def send(self, destinations: Iterable[int], message: Message) -> int:
        """See ``testbed.node.Endpoint``. Several destinations are served side by side.

        Whoever sends to several begins with the lowest, so that no two senders wait for each other.
        """
        channels = [self._channel(peer) for peer in sorted(destinations)]
        frame = framed(message, self._config.run, self._config.now_ns())
        unsent = [channel for channel in channels if not self._begin(channel, frame)]
        if unsent:
            self._finish(unsent)
        for channel in channels:
            if channel.failure is not None:
                assert channel.peer is not None
                raise self._unreachable(channel.peer, channel.failure) from channel.failure
        return len(channels) * self.frame_bytes(message)

    def close(self) -> None:
        """Close every connection; peers see an end of stream."""
        if self._closing:
            return
        self._closing = True
        self._owner.end()
        self._poll.close()
        if self._listener is not None:
            self._listener.close()
        for channel in [*self._pending.all(), *self._peers.values()]:
            channel.close()

    def _wrap(self, connected: socket.socket, most_bytes: int) -> NonBlockingConnection:
        return NonBlockingConnection(connected, self._config, most_bytes)

    def _next(self, timeout: float) -> Message | NodeLost | None:
        inbox = self._inbox
        if inbox or self._owner.run_until(inbox.__len__, time.monotonic() + timeout):
            return inbox.popleft()
        if self._closing:
            raise NodeLost(self._name(self.number), None, "its endpoint was closed")
        return None

    def _put(self, item: Message | NodeLost) -> None:
        self._inbox.append(item)

    def _adopt(
        self, peer: int, stream: NonBlockingConnection, first: Message | None = None
    ) -> None:
        stream.peer = peer
        super()._adopt(peer, stream, first)
        self._watch(stream)

    def _channel(self, peer: int) -> NonBlockingConnection:
        until_s = time.monotonic() + self._config.silence_s
        if peer not in self._peers and not self._owner.run_until(
            lambda: peer in self._peers, until_s
        ):
            raise NodeLost(self._name(peer), None, "it never connected")
        return self._peers[peer]

    def _begin(self, channel: NonBlockingConnection, frame: Frame) -> bool:
        """Hand over what the kernel takes at once; whether nothing is left to be done."""
        channel.sending.acquire()
        try:
            done = channel.begin(frame)
        except OSError as error:
            channel.fail(error)
            done = True
        if done:
            channel.sending.release()
        else:
            self._watch(channel)
        return done

    def _finish(self, unsent: list[NonBlockingConnection]) -> None:
        """Turn the loop until the frames that were begun are handed over, or their peers lost."""
        try:
            end_s = time.monotonic() + FOREVER_S
            if not self._owner.run_until(
                lambda: not any(channel.sends for channel in unsent), end_s
            ):
                for channel in unsent:
                    channel.fail(OSError(errno.ESHUTDOWN, "the endpoint was closed"))
        finally:
            for channel in unsent:
                channel.sending.release()

    def _once(self, timeout_s: float) -> None:
        """One turn of the loop: wait for something to happen, and handle it."""
        if self._pending:
            self._shut_expired()
            timeout_s = min(timeout_s, LOOK_S)
        for descriptor, events in self._poll.poll(timeout_s, _EVENTS_AT_ONCE):
            if (handler := self._handlers.get(descriptor)) is not None:
                handler(events)

    def _accept(self, _events: int) -> None:
        assert self._listener is not None
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                accepted, (address, *_) = self._listener.accept()
                self._watch(self._let_in(accepted, address))
            except BlockingIOError:
                return
            except OSError as error:  # somebody who is gone again, or too many sockets
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    time.sleep(PAUSE_S)
                    return

    def _serve(self, channel: NonBlockingConnection, events: int) -> None:
        if channel.sends and (channel.ended or events & EPOLLOUT):
            self._flush(channel)
        if not channel.ended and events & ~EPOLLOUT:
            self._read(channel)

    def _flush(self, channel: NonBlockingConnection) -> None:
        try:
            channel.flush()
        except OSError as error:
            channel.fail(error)
        if not channel.sends:
            self._watch(channel)

    def _read(self, channel: NonBlockingConnection) -> None:
        try:
            while (message := channel.read()) is not None:
                self._take(channel, message)
                if not channel.staged:
                    return
        except EOFError:
            self._end(channel, "its connection was closed")
        except (WireError, OSError) as error:
            self._end(channel, str(error))

    def _take(self, channel: NonBlockingConnection, message: Message) -> None:
        if channel.peer is None:
            first = self._check_greeting(channel, message)
            self._pending.remove(channel)
            self._adopt(first.sender, channel, first)
        else:
            channel.said_goodbye = message.kind is Kind.BYE
            self._deliver(channel.peer, channel, message)

    def _end(self, channel: NonBlockingConnection, reason: str) -> None:
        """Nothing more is read. What is on its way to a peer goes on until the kernel says that it
        cannot."""
        channel.ended = True
        self._watch(channel)
        if channel.peer is None:
            self._pending.remove(channel)
            self.rejected_connections += 1
            channel.close()
        elif not (channel.said_goodbye or self._closing):
            self._put(NodeLost(self._name(channel.peer), None, reason))

    def _watch(self, channel: NonBlockingConnection) -> None:
        """Have the loop wait for what the channel's state asks for. Any thread may call."""
        with self._watching:
            wanted = (0 if channel.ended else EPOLLIN) | (EPOLLOUT if channel.sends else 0)
            descriptor, before = channel.socket.fileno(), channel.events
            channel.events = wanted
            if wanted == before:
                return
            if not wanted:
                self._poll.unregister(descriptor)
                del self._handlers[descriptor]
            elif before:
                self._poll.modify(descriptor, wanted)
            else:
                self._handle(descriptor, partial(self._serve, channel), wanted)

    def _handle(
        self, descriptor: int, handler: Callable[[int], None], events: int = EPOLLIN
    ) -> None:
        self._handlers[descriptor] = handler
        self._poll.register(descriptor, events)
