"""Framed TCP between peers: all connections in one loop, which the role's own thread turns.

For small messages, or many peers: there is no thread to switch to between the network and the role. While a role
sends, the loop goes on reading, so two peers that send to each other at the same time both get on; what is read is
held in buffers that are used again, two per peer and bucket, as in ``testbed.exchange.endpoint``.
"""

from __future__ import annotations

import errno
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from select import EPOLLIN, EPOLLOUT

from testbed.errors import NodeLost, WireError
from testbed.exchange.channel import Channel
from testbed.exchange.frame import Frame, framed
from testbed.exchange.socket_endpoint import SocketEndpoint
from testbed.exchange.turns import FOREVER_S, Turns
from testbed.node import Kind, Message

_LOOK_S, _PAUSE_S = 0.5, 0.01
"""Between two looks for strangers that say nothing; after there were no sockets left."""
_EVENTS_AT_ONCE, _ACCEPTED_AT_ONCE = 256, 16


class LoopEndpoint(SocketEndpoint[Channel]):
    """A node's place on the data network, on sockets and one loop (``testbed.node.Endpoint``)."""

    def _set_up(self) -> None:
        self._inbox: deque[Message | NodeLost] = deque()
        self._poll, self._watching = select.epoll(), threading.Lock()
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._turns = Turns(self._once)
        self._handle(self._turns.waker, self._turns.calm)

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
        frame = framed(message, self._terms.run, time.monotonic_ns())
        held = [channel for channel in channels if not self._begin(channel, frame)]
        if held:
            self._finish(held)
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
        self._turns.end()
        self._poll.close()
        if self._listener is not None:
            self._listener.close()
        for channel in [*self._doorway.all(), *self._peers.values()]:
            channel.close()

    def _wrap(self, connected: socket.socket, most_bytes: int) -> Channel:
        return Channel(connected, self._terms, most_bytes)

    def _next(self, timeout: float) -> Message | NodeLost | None:
        inbox = self._inbox
        if inbox or self._turns.until(inbox.__len__, time.monotonic() + timeout):
            return inbox.popleft()
        return None

    def _put(self, item: Message | NodeLost) -> None:
        self._inbox.append(item)

    def _adopt(self, peer: int, stream: Channel, first: Message | None = None) -> None:
        stream.peer = peer
        super()._adopt(peer, stream, first)
        self._watch(stream)

    def _channel(self, peer: int) -> Channel:
        until_s = time.monotonic() + self._terms.silence_s
        if peer not in self._peers and not self._turns.until(lambda: peer in self._peers, until_s):
            raise NodeLost(self._name(peer), None, "it never connected")
        return self._peers[peer]

    def _begin(self, channel: Channel, frame: Frame) -> bool:
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

    def _finish(self, held: list[Channel]) -> None:
        """Turn the loop until the frames that were begun are handed over, or their peers lost."""
        try:
            end_s = time.monotonic() + FOREVER_S
            if not self._turns.until(lambda: not any(one.sends for one in held), end_s):
                for channel in held:
                    channel.fail(OSError(errno.ESHUTDOWN, "the endpoint was closed"))
        finally:
            for channel in held:
                channel.sending.release()

    def _once(self, timeout_s: float) -> None:
        """One turn of the loop: wait for something to happen, and handle it."""
        if self._doorway:
            self._shut_overdue()
            timeout_s = min(timeout_s, _LOOK_S)
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
                    time.sleep(_PAUSE_S)
                    return

    def _serve(self, channel: Channel, events: int) -> None:
        if channel.sends and (channel.ended or events & EPOLLOUT):
            self._flush(channel)
        if not channel.ended and events & ~EPOLLOUT:
            self._read(channel)

    def _flush(self, channel: Channel) -> None:
        try:
            channel.flush()
        except OSError as error:
            channel.fail(error)
        if not channel.sends:
            self._watch(channel)

    def _read(self, channel: Channel) -> None:
        try:
            while (message := channel.read()) is not None:
                self._take(channel, message)
                if not channel.staged:
                    return
        except EOFError:
            self._end(channel, "its connection was closed")
        except (WireError, OSError) as error:
            self._end(channel, str(error))

    def _take(self, channel: Channel, message: Message) -> None:
        if channel.peer is None:
            first = self._check_greeting(channel, message)
            self._doorway.leave(channel)
            self._adopt(first.sender, channel, first)
        else:
            channel.said_goodbye = message.kind is Kind.BYE
            self._deliver(channel.peer, channel, message)

    def _end(self, channel: Channel, reason: str) -> None:
        """Nothing more is read. What is on its way to a peer goes on until the kernel says that it cannot."""
        channel.ended = True
        self._watch(channel)
        if channel.peer is None:
            self._doorway.leave(channel)
            self.strangers += 1
            channel.close()
        elif not (channel.said_goodbye or self._closing):
            self._put(NodeLost(self._name(channel.peer), None, reason))

    def _watch(self, channel: Channel) -> None:
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
